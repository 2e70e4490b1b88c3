//! The only access to the database: the log of every run, and the rows that are derived from it.
//!
//! One thread writes to a [`Store`]. A [`Commit`] is a value with all changes of a batch, and the only write.
//! [`sqlite::Readers`] run queries beside the writer and never wait for it. With the feature `memory`, which is for tests,
//! there is a second store without files. Every store passes `tests/conformance`.

// No panic is reachable from what is stored.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admin;
mod commit;
mod cursor;
mod error;
mod id_map;
pub mod limits;
mod log_row;
#[cfg(feature = "memory")]
pub mod memory;
mod outbox;
mod page;
mod policy;
mod preconditions;
mod principal;
mod projection;
mod rows;
mod schedule;
pub mod sqlite;
mod steps;
mod upkeep;
mod visibility;

pub use admin::{
    ADMIN_LOG, Actor, AdminAction, AdminEvent, Binding, BudgetCount, ChainHead, PurgedRun, RowKind,
    StoredAdminEvent, new_run_facts, run_facts,
};
pub use commit::{
    ClaimKey, ClaimState, Commit, Committed, Conflict, DefinitionChange, Expected, NewClaim, NewDefinition,
    NewRun, Purge, Refused, RegistryChange, RunCommit, RunState, ScheduleChange,
};
pub use cursor::{Cursor, InvalidCursor, NameCursor, RunCursor, StepCursor};
pub use error::StoreError;
pub use id_map::{IdHasher, IdMap};
pub use log_row::{RowContent, link};
pub use outbox::{
    AttemptOutcome, Delivery, DeliveryStatus, DueMessage, NewDelivery, NewNotification, Notification,
    NotificationKind, NotificationQuery, OutboxChange, OutboxWork,
};
pub use policy::{Freeze, PolicyChange, PolicyState, Remembered};
pub use principal::{Origin, Principal, Relay, Right, TokenScope};
pub use rows::{
    Account, AccountKind, After, Approval, Definition, EventPage, Head, ListRuns, Pins, Proposal, Purged,
    RawEvent, Rerun, RunId, RunRow, Session, StepRow, StoredEvent, Timer, UnknownCall, Usage, VersionPin,
    Wanted, WorkflowPins, attempt_digest,
};
pub use schedule::{Fired, Overlap, Schedule, ScheduledVersion};
pub use steps::{ListSteps, StepCounts, StepFilter, StepPage};
pub use upkeep::{Health, Opened, RestoredBackup, Upkeep};
pub use visibility::{Starter, Visibility};

use std::sync::Arc;

use steprail_core::run::{Millis, Payload};

/// The writer of an engine: the commit, and the loads that decisions need.
pub trait Store: Send {
    /// Applies a commit in one transaction, or nothing of it. It is durable when this returns.
    ///
    /// Changes are applied in the order definitions, fired timers, runs, schedules, registry, purge; each sees those before
    /// it. A decision that does not match the rows of its run is refused as [`Refused::Damaged`].
    fn commit(&mut self, commit: &Commit) -> Result<Committed, Refused>;
    /// A random secret that was created with the database.
    fn secret(&mut self) -> Result<[u8; 32], StoreError>;
    /// Returns the head of a run, if the run exists.
    fn head(&mut self, run: RunId) -> Result<Option<Head>, StoreError>;
    /// Returns the log of a run. An error if its hashes do not match.
    fn log(&mut self, run: RunId) -> Result<Vec<StoredEvent>, StoreError>;
    /// Returns a value of a run.
    fn value(&mut self, run: RunId, wanted: Wanted) -> Result<Payload, StoreError>;
    /// Finds a definition.
    fn definition(&mut self, which: DefinitionQuery<'_>) -> Result<Option<Definition>, StoreError>;
    /// Finds the run that a user started with a request key.
    fn request(&mut self, by: &str, request_key: &str) -> Result<Option<RunId>, StoreError>;
    /// Returns runs that have not ended, in the order of their creation after `after`. A run that is not stored is before
    /// all others.
    fn unfinished(
        &mut self,
        which: Unfinished,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError>;
    /// Returns timers and schedules that are due at a time, oldest first, up to `limit` of each. Timers of the same time
    /// are in the order in which their runs were created, and then of their step executions. The timers of an interrupted
    /// run are not due until it is resumed.
    fn due(&mut self, now: Millis, limit: usize) -> Result<Due, StoreError>;
    /// Returns the step executions that wait for an event or for an idempotency key, in the order in which their runs were
    /// created.
    fn waiting(&mut self, event: &str) -> Result<Vec<(RunId, u32)>, StoreError>;
    /// Returns the state of an idempotency key.
    fn claim(&mut self, key: &ClaimKey, now: Millis) -> Result<ClaimState, StoreError>;
    /// Returns the last approval of a step execution, by its path.
    fn approval(&mut self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError>;
    /// Returns the number of calls that count for a budget of the policy: by whose calls count together, rule and start of
    /// the window of time.
    fn counter(&mut self, subject: &str, rule: &str, start: Millis) -> Result<u64, StoreError>;
    /// Runs a maintenance task between commits. A store without files has none.
    fn maintain(&mut self, task: Upkeep) -> Result<Health, StoreError> {
        let _ = task;
        Ok(Health::default())
    }
}

/// Selects a definition.
#[derive(Debug, Clone, Copy)]
pub enum DefinitionQuery<'q> {
    /// By its id in the store.
    Id(i64),
    /// The newest version that can be started.
    Newest(&'q str),
    /// A given version, if it can be started.
    Version(&'q str, u32),
}

/// Selects unfinished runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// Runs on which the engine had work to do.
    Active,
    /// Runs that a restart interrupts.
    Interruptible,
    /// All runs that are not interrupted.
    All,
    /// All unfinished runs.
    WithInterrupted,
    /// The unfinished child runs of a run.
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

/// Queries, which run concurrently with the writer.
pub trait Reads: Send + Sync {
    /// A run.
    fn run(&self, id: RunId) -> Result<Option<RunRow>, StoreError>;
    /// A page of the attempts of the steps of a run.
    fn steps(&self, id: RunId, list: &ListSteps) -> Result<StepPage, StoreError>;
    /// The number of attempts of the steps of a run. It reads the status of every attempt.
    fn step_counts(&self, id: RunId) -> Result<StepCounts, StoreError>;
    /// Runs, newest first.
    fn runs(&self, list: &ListRuns) -> Result<Vec<RunRow>, StoreError>;
    /// Events of one run, after a position.
    fn events(&self, id: RunId, after: After, limit: usize) -> Result<EventPage<StoredEvent>, StoreError>;
    /// Events after a cursor of the runs that the reader may see, each with the starter of its run.
    fn feed(
        &self,
        after: Cursor,
        limit: usize,
        visible: &Visibility,
    ) -> Result<EventPage<(RawEvent, Arc<Starter>)>, StoreError>;
    /// The cursor of the last event of all runs, even if retention deleted it.
    fn last_event(&self) -> Result<Cursor, StoreError>;
    /// Open approvals of the runs that the reader may see, oldest first.
    fn open_approvals(&self, visible: &Visibility, limit: usize) -> Result<Vec<Approval>, StoreError>;
    /// Open approvals of a run and its descendants, oldest first, at most `limit`.
    fn run_approvals(&self, run: RunId, limit: usize) -> Result<Vec<Approval>, StoreError>;
    /// The last approval of a step of a run, by its path: open or decided.
    fn last_approval(&self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError>;
    /// Calls with unknown outcomes of a run and its descendants, in the order in which they started, at most `limit`.
    fn unknown_calls(&self, run: RunId, limit: usize) -> Result<Vec<UnknownCall>, StoreError>;
    /// The resources that a user occupies. At most `limit` unfinished runs are counted.
    fn usage(&self, user: &str, limit: u64) -> Result<Usage, StoreError>;
    /// The session of an MCP client.
    fn session(&self, id: &str) -> Result<Option<Session>, StoreError>;
    /// The freeze and the remembered approvals.
    fn policy_state(&self) -> Result<PolicyState, StoreError>;
    /// Notifications to plan and deliveries that are due, at most `limit` of each, without those of busy channels.
    fn outbox_work(&self, now: Millis, limit: usize, busy: &[String]) -> Result<OutboxWork, StoreError>;
    /// Notifications with their deliveries, at most `limit`.
    fn notifications(
        &self,
        query: NotificationQuery,
        limit: usize,
    ) -> Result<Vec<(Notification, Vec<Delivery>)>, StoreError>;
    /// Every account.
    fn accounts(&self) -> Result<Vec<Account>, StoreError>;
    /// Every schedule, by name.
    fn schedules(&self) -> Result<Vec<Schedule>, StoreError>;
    /// The newest version of every definition, by name.
    fn definitions(&self) -> Result<Vec<Definition>, StoreError>;
    /// The newest version of every definition that is published as a tool, by name.
    fn published(&self) -> Result<Vec<Definition>, StoreError>;
    /// The versions of a definition that can be started, newest first.
    fn versions(&self, name: &str) -> Result<Vec<Definition>, StoreError>;
    /// A version of a definition that can be started. Without `version`, the newest.
    fn definition(&self, name: &str, version: Option<u32>) -> Result<Option<Definition>, StoreError>;
    /// Definitions by agents that wait for a person, by name.
    fn proposals(&self) -> Result<Vec<Proposal>, StoreError>;
    /// The proposal for a name. An error if it is not what the log says.
    fn proposal(&self, name: &str) -> Result<Option<Proposal>, StoreError>;
    /// Administrative actions after a cursor.
    fn admin_events(&self, after: Cursor, limit: usize) -> Result<EventPage<StoredAdminEvent>, StoreError>;
    /// The end of the hash chain.
    fn chain_head(&self) -> Result<ChainHead, StoreError>;
}

/// A store that is open for writing, with its readers.
pub struct Storage {
    /// The writer.
    pub writer: Box<dyn Store>,
    /// The readers.
    pub readers: Arc<dyn Reads>,
    /// What the store contained when it was opened.
    pub opened: Opened,
}
