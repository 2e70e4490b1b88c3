//! The only access to the database: the log of every run, and the rows that are derived from it.
//!
//! One thread writes to a [`Store`]. A [`Commit`] is a value with all changes of a batch, and the only write.
//! [`sqlite::Readers`] run queries beside the writer and never wait for it.

// No panic is reachable from what is stored.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admin;
mod commit;
mod cursor;
mod error;
pub mod limits;
mod log_row;
mod principal;
mod rows;
mod schedule;
pub mod sqlite;
mod upkeep;

pub use admin::{
    ADMIN_LOG, Actor, AdminAction, AdminEvent, Binding, ChainHead, PurgedRun, RowKind, StoredAdminEvent,
    new_run_facts, run_facts,
};
pub use commit::{
    ClaimKey, ClaimState, Commit, Committed, Conflict, DefinitionChange, Expected, NewClaim, NewDefinition,
    NewRun, Purge, Refused, RegistryChange, RunCommit, RunState, ScheduleChange,
};
pub use cursor::{Cursor, InvalidCursor, NameCursor, RunCursor};
pub use error::StoreError;
pub use log_row::{RowContent, link};
pub use principal::{Principal, Relay, Right, TokenScope};
pub use rows::{
    Account, AccountKind, After, Approval, Definition, EventPage, Head, ListRuns, Pins, Purged, RawEvent,
    Rerun, RunId, RunRow, Session, StepRow, StoredEvent, Timer, UnknownCall, Usage, Wanted, attempt_digest,
};
pub use schedule::{Fired, Overlap, Schedule};
pub use upkeep::{Health, Opened, RestoredBackup, Upkeep};

use steprail_core::run::{Millis, Payload};

/// The writer of an engine: one write, and the loads that decisions need.
pub trait Store: Send {
    /// Applies a commit in one transaction, or nothing of it. It is durable when this returns.
    fn commit(&mut self, commit: &Commit) -> Result<Committed, Refused>;
    /// A secret that was created with the database.
    fn secret(&mut self) -> Result<[u8; 32], StoreError>;
    /// Returns the facts about a run, if it exists.
    fn head(&mut self, run: RunId) -> Result<Option<Head>, StoreError>;
    /// Returns the log of a run. A log whose hashes do not match is damaged.
    fn log(&mut self, run: RunId) -> Result<Vec<StoredEvent>, StoreError>;
    /// Returns a value of a run.
    fn value(&mut self, run: RunId, wanted: Wanted) -> Result<Payload, StoreError>;
    /// Finds a definition.
    fn definition(&mut self, which: DefinitionQuery<'_>) -> Result<Option<Definition>, StoreError>;
    /// Finds the run that a user started with a request key.
    fn request(&mut self, by: &str, request_key: &str) -> Result<Option<RunId>, StoreError>;
    /// Returns runs that have not ended, in the order of their ids after `after`.
    fn unfinished(
        &mut self,
        which: Unfinished,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError>;
    /// Returns timers and schedules that are due at a time, oldest first, up to `limit` of each.
    fn due(&mut self, now: Millis, limit: usize) -> Result<Due, StoreError>;
    /// Returns the step executions that wait for an event or for an idempotency key.
    fn waiting(&mut self, event: &str) -> Result<Vec<(RunId, u32)>, StoreError>;
    /// Returns the state of an idempotency key.
    fn claim(&mut self, key: &ClaimKey, now: Millis) -> Result<ClaimState, StoreError>;
    /// Returns the last approval of a step execution, by its path.
    fn approval(&mut self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError>;
    /// Does work between commits that no request asks for. A store without files has none.
    fn maintain(&mut self, task: Upkeep) -> Result<Health, StoreError> {
        let _ = task;
        Ok(Health::default())
    }
}

/// Which definition to find.
#[derive(Debug, Clone, Copy)]
pub enum DefinitionQuery<'q> {
    /// By its id in the store.
    Id(i64),
    /// The newest version that can be started.
    Newest(&'q str),
    /// A version that can be started.
    Version(&'q str, u32),
}

/// Which of the runs that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// Runs on which the engine had work to do.
    Active,
    /// Runs that a restart interrupts.
    Interruptible,
    /// All runs that are not interrupted.
    All,
    /// All runs.
    WithInterrupted,
    /// Runs that a run waits for.
    ChildrenOf(RunId),
}

/// Timers and schedules that are due.
#[derive(Debug, Default)]
pub struct Due {
    /// Timers, oldest first.
    pub timers: Vec<Timer>,
    /// Schedules, oldest first.
    pub schedules: Vec<Schedule>,
    /// Names and due times of schedules whose rows are not what the log says. They do not start anything.
    pub refused_schedules: Vec<(String, Millis)>,
}

/// Questions about what is stored, answered beside the writer.
pub trait Reads: Send + Sync {
    /// A run.
    fn run(&self, id: RunId) -> Result<Option<RunRow>, StoreError>;
    /// Every attempt of every step of a run, in the order in which they began.
    fn steps(&self, id: RunId) -> Result<Vec<StepRow>, StoreError>;
    /// Runs, newest first.
    fn runs(&self, list: &ListRuns) -> Result<Vec<RunRow>, StoreError>;
    /// Events of one run after a position.
    fn events(&self, id: RunId, after: After, limit: usize) -> Result<EventPage<StoredEvent>, StoreError>;
    /// Events of all runs after a cursor, with the user whose run it is; of the runs of one user or of all.
    fn feed(
        &self,
        after: Cursor,
        limit: usize,
        user: Option<&str>,
    ) -> Result<EventPage<(RawEvent, String)>, StoreError>;
    /// The cursor of the last event of all runs, also if it was deleted.
    fn last_event(&self) -> Result<Cursor, StoreError>;
    /// Open questions, oldest first; of the runs of one user or of all.
    fn open_approvals(&self, user: Option<&str>, limit: usize) -> Result<Vec<Approval>, StoreError>;
    /// Open questions of a run and of those that it waits for, oldest first.
    fn run_approvals(&self, run: RunId) -> Result<Vec<Approval>, StoreError>;
    /// Calls of a run and of those that it waits for whose outcome is unknown, in the order in which they began.
    fn unknown_calls(&self, run: RunId) -> Result<Vec<UnknownCall>, StoreError>;
    /// What a user occupies. At most `limit` unfinished runs are counted.
    fn usage(&self, user: &str, limit: u64) -> Result<Usage, StoreError>;
    /// The session of a client.
    fn session(&self, id: &str) -> Result<Option<Session>, StoreError>;
    /// Every account.
    fn accounts(&self) -> Result<Vec<Account>, StoreError>;
    /// Every schedule, by name.
    fn schedules(&self) -> Result<Vec<Schedule>, StoreError>;
    /// The newest version of every definition, by name.
    fn definitions(&self) -> Result<Vec<Definition>, StoreError>;
    /// The newest version of every definition that is offered as a tool, by name.
    fn published(&self) -> Result<Vec<Definition>, StoreError>;
    /// The versions of a definition that can be started, newest first.
    fn versions(&self, name: &str) -> Result<Vec<Definition>, StoreError>;
    /// A version of a definition that can be started; the newest without one.
    fn definition(&self, name: &str, version: Option<u32>) -> Result<Option<Definition>, StoreError>;
    /// Administrative actions after a cursor.
    fn admin_events(&self, after: Cursor, limit: usize) -> Result<EventPage<StoredAdminEvent>, StoreError>;
    /// The end of the hash chain.
    fn chain_head(&self) -> Result<ChainHead, StoreError>;
}

/// A store to write to, and its readers.
pub struct Storage {
    /// What the engine writes to.
    pub writer: Box<dyn Store>,
    /// What answers questions.
    pub readers: std::sync::Arc<dyn Reads>,
    /// What the store contained when it was opened.
    pub opened: Opened,
}
