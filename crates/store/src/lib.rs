//! The only access to the database: the log of every run, and the rows that are derived from it.
//!
//! One thread writes to a [`Store`]; everything between `begin` and `commit` is one transaction. [`sqlite::Readers`] run
//! queries beside the writer and never wait for it.

// No panic is reachable from what is stored.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chain;
mod error;
pub mod limits;
mod principal;
mod rows;
mod schedule;
pub mod sqlite;
mod upkeep;

pub use chain::{Link, link};
pub use error::StoreError;
pub use principal::{Principal, Relay, Right, TokenScope};
pub use rows::{
    Account, AccountKind, Appended, Approval, ClaimKey, Definition, EventPage, Head, KeyState, ListRuns,
    NewDefinition, NewRun, Pins, Purged, RawEvent, Rerun, RunId, RunKey, RunRow, Session, StepRow,
    StoredEvent, Timer, UnknownCall, Wanted, attempt_digest,
};

pub use schedule::{Fired, Overlap, Schedule};
pub use upkeep::{Health, Opened, RestoredBackup, Upkeep};

use steprail_core::plan::Hash;
use steprail_core::run::{Millis, Payload, Record, Run};

/// What an engine writes and needs to go on.
pub trait Store: Send {
    /// Opens a transaction.
    fn begin(&mut self) -> Result<(), StoreError>;
    /// Ends it; what was written is durable when this returns.
    fn commit(&mut self) -> Result<(), StoreError>;
    /// Ends it and forgets what was written.
    fn rollback(&mut self);

    /// A secret that this database was created with.
    fn secret(&mut self) -> Result<[u8; 32], StoreError>;

    /// Stores a version of a definition. One that the newest version equals is that version.
    fn define(&mut self, new: &NewDefinition<'_>) -> Result<Definition, StoreError>;
    /// A definition by its number.
    fn definition(&mut self, id: i64) -> Result<Option<Definition>, StoreError>;
    /// The number of a definition: of a version, or of the newest.
    fn find_definition(&mut self, name: &str, version: Option<u32>) -> Result<Option<i64>, StoreError>;
    /// Hides a definition from new runs.
    fn delete_definition(&mut self, name: &str, now: Millis) -> Result<bool, StoreError>;

    /// Creates a run that has no events yet.
    fn create_run(&mut self, new: &NewRun<'_>) -> Result<RunKey, StoreError>;
    /// A run by its id.
    fn find_run(&mut self, id: RunId) -> Result<Option<RunKey>, StoreError>;
    /// The run that was started with a request key.
    fn find_request(&mut self, by: &str, request_key: &str) -> Result<Option<RunId>, StoreError>;
    /// What never changes about a run, and the end of its log.
    fn head(&mut self, run: RunKey) -> Result<Head, StoreError>;
    /// The runs that a run waits for.
    fn children(&mut self, run: RunKey) -> Result<Vec<RunKey>, StoreError>;
    /// Whether there is such a run: it may have been deleted.
    fn has_run(&mut self, run: RunKey) -> Result<bool, StoreError>;
    /// Runs that an engine was at work with, after another one.
    fn active_runs(&mut self, after: RunKey, limit: usize) -> Result<Vec<RunKey>, StoreError>;

    /// Runs that have not ended, after another one: all, or those that a restart interrupts.
    fn unfinished_runs(&mut self, all: bool, after: RunKey, limit: usize) -> Result<Vec<RunKey>, StoreError>;

    /// Writes events and the rows that follow from them. `run` is where the run stands after them.
    fn append(
        &mut self,
        head: &mut Head,
        run: &Run,
        records: &[Record],
        now: Millis,
    ) -> Result<Appended, StoreError>;
    /// The log of a run after an event. A log whose hashes do not fit is damaged.
    fn events(&mut self, run: RunKey, after: u64) -> Result<Vec<StoredEvent>, StoreError>;
    /// A payload.
    fn payload(&mut self, run: RunKey, wanted: Wanted) -> Result<Payload, StoreError>;
    /// What calls of a run gave, by path: the hash of the arguments, and the execution.
    fn results(&mut self, run: RunKey) -> Result<Vec<(String, Hash, u32)>, StoreError>;

    /// Timers whose time has come, the oldest first.
    fn due_timers(&mut self, now: Millis, limit: usize) -> Result<Vec<Timer>, StoreError>;
    /// When the next timer is due.
    fn next_timer(&mut self) -> Result<Option<Millis>, StoreError>;
    /// Takes an timer away that is due. False if it is gone, or was set anew for another time.
    fn drop_timer(&mut self, timer: &Timer) -> Result<bool, StoreError>;
    /// The steps that wait for an event.
    fn waiting(&mut self, event: &str) -> Result<Vec<(RunKey, u32)>, StoreError>;

    /// Who has an idempotency key.
    fn key(&mut self, key: &ClaimKey<'_>, now: Millis) -> Result<KeyState, StoreError>;
    /// Takes an idempotency key.
    fn take_key(&mut self, key: &ClaimKey<'_>) -> Result<(), StoreError>;

    /// The last question of a step execution.
    fn approval(&mut self, run: RunKey, path: &str) -> Result<Option<Approval>, StoreError>;

    /// Stores a schedule under its name.
    fn put_schedule(&mut self, schedule: &Schedule) -> Result<(), StoreError>;
    /// Takes a schedule away. False if there is none.
    fn drop_schedule(&mut self, name: &str) -> Result<bool, StoreError>;
    /// Schedules whose time has come, the oldest first.
    fn due_schedules(&mut self, now: Millis, limit: usize) -> Result<Vec<Schedule>, StoreError>;

    /// Stores the session of a client; beyond a limit, the oldest ones make room.
    fn put_session(&mut self, session: &Session, now: Millis) -> Result<(), StoreError>;
    /// Takes a session away.
    fn drop_session(&mut self, id: &str) -> Result<(), StoreError>;

    /// Stores an account in place of the one before.
    fn put_account(&mut self, account: &Account) -> Result<(), StoreError>;
    /// Takes an account away.
    fn drop_account(&mut self, kind: AccountKind, id: &str) -> Result<(), StoreError>;

    /// Deletes some of what is no longer needed: runs that ended before a time, definitions that cannot be
    /// started and that no run has, and results under keys whose time is up.
    fn purge(&mut self, before: Millis, now: Millis, limit: usize) -> Result<Purged, StoreError>;

    /// Does work between commits that no request asks for. A store without files has none.
    fn maintain(&mut self, task: Upkeep) -> Result<Health, StoreError> {
        let _ = task;
        Ok(Health::default())
    }
}

/// Questions about what is stored, answered beside the writer.
pub trait Reads: Send + Sync {
    /// A run.
    fn run(&self, id: RunId) -> Result<Option<RunRow>, StoreError>;
    /// Every attempt of every step of a run, in the order in which they began.
    fn steps(&self, id: RunId) -> Result<Vec<StepRow>, StoreError>;
    /// Runs, newest first.
    fn runs(&self, list: &ListRuns) -> Result<Vec<RunRow>, StoreError>;
    /// Events of one run after a number.
    fn events(&self, id: RunId, after: u64, limit: usize) -> Result<EventPage<StoredEvent>, StoreError>;
    /// Events of all runs after a number, with the user whose run it is; of the runs of one user or of all.
    fn feed(
        &self,
        after: i64,
        limit: usize,
        user: Option<&str>,
    ) -> Result<EventPage<(RawEvent, String)>, StoreError>;
    /// The number of the last event of all runs.
    fn last_event(&self) -> Result<i64, StoreError>;
    /// Open questions, oldest first; of the runs of one user or of all.
    fn open_approvals(&self, user: Option<&str>, limit: usize) -> Result<Vec<Approval>, StoreError>;
    /// Open questions of a run and of those that it waits for, oldest first.
    fn run_approvals(&self, run: RunId) -> Result<Vec<Approval>, StoreError>;
    /// Calls of a run and of those that it waits for whose outcome is unknown, in the order in which they began.
    fn unknown_calls(&self, run: RunId) -> Result<Vec<UnknownCall>, StoreError>;
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
