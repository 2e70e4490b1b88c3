//! The limits of the engine.

use std::time::Duration;

use steprail_core::limits::SLICE_EVENTS;

use crate::quotas::Quotas;

/// Configurable limits of an engine. [`steprail_core::limits`] has the limits of one run.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The maximum number of calls in flight.
    pub calls: u32,
    /// The maximum number of calls in flight of the runs of one definition.
    pub calls_per_definition: u32,
    /// The maximum number of calls in flight to one server: the part before `__` in the name of a tool.
    pub calls_per_server: u32,
    /// The maximum number of requests in the queue of the engine. Further callers wait (backpressure).
    pub requests: usize,
    /// How long a shutdown waits for calls in flight.
    pub shutdown: Duration,
    /// Limits per user.
    pub quotas: Quotas,
    /// The number of events after which a decision of a run makes no further transition. The run continues after other
    /// runs had their turn.
    pub slice_events: usize,
    /// The number of slices per commit: of runs that continue, and of events after which decisions make only the events
    /// that their inputs cause directly.
    pub slices_per_commit: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls: 1_024,
            calls_per_definition: 1_024,
            calls_per_server: 512,
            requests: 10_000,
            shutdown: Duration::from_secs(20),
            quotas: Quotas::default(),
            slice_events: SLICE_EVENTS,
            slices_per_commit: 4,
        }
    }
}

/// How long a single-use code for a decision is valid, in milliseconds.
pub(crate) const CODE_MS: i64 = 10 * 60 * 1_000;
/// The maximum number of single-use codes that were not redeemed.
pub(crate) const OPEN_CODES: usize = 1_000;
/// Wrong codes of a user after which all their codes are void and no code is accepted for a while.
pub(crate) const CODE_FAILURES: u32 = 5;
/// How long no code of the user is accepted then, in milliseconds.
pub(crate) const CODE_LOCKOUT_MS: i64 = 60 * 1_000;
/// The maximum number of requests per commit.
pub(crate) const BATCH: usize = 512;
/// The maximum number of waiting runs whose state stays in memory.
pub(crate) const PARKED_RUNS: usize = 256;
/// The maximum size of cached payloads, in bytes.
pub(crate) const CACHED_BYTES: usize = 64 * 1024 * 1024;
/// The maximum number of cached plans.
pub(crate) const CACHED_PLANS: usize = 1_000;
/// The maximum number of child runs that start in one transaction or wait to continue. It bounds definitions that call themselves.
pub(crate) const CHILD_RUNS: usize = 2_000;
/// The maximum number of events in a row of the log that several decisions share.
pub(crate) const LOG_ROW_EVENTS: usize = 1_000;
/// The number of child runs that are read at a time.
pub(crate) const CHILD_PAGE: usize = 1_000;
/// The maximum number of runs that recovery loads per commit.
pub(crate) const RECOVERY_BATCH: usize = 256;
/// The maximum number of runs that a purge deletes per commit.
pub(crate) const PURGE_BATCH: usize = 100;
/// The maximum number of commands of the owner in the queue of the engine, beside [`Limits::requests`].
pub(crate) const OWNER_REQUESTS: usize = 64;
/// The number of unfinished runs of a user up to which they are counted exactly, if the quota is not higher.
pub(crate) const COUNTED_RUNS: u64 = 10_000;
/// The number of users whose usage is cached.
pub(crate) const QUOTA_USERS: usize = 10_000;
/// The bytes that an event adds to the usage of stored bytes, apart from its value.
pub(crate) const EVENT_BYTES: usize = 256;
/// Backoff after a failure of the store: the first and the longest delay, in milliseconds.
pub(crate) const FAULT_DELAY_MS: (u64, u64) = (1_000, 30_000);
/// How long the engine must be without work before the store does its upkeep, in milliseconds.
pub(crate) const IDLE_UPKEEP_MS: u64 = 1_000;
/// The interval between two checks of the files of the store, in milliseconds.
pub(crate) const UPKEEP_INTERVAL_MS: u64 = 5_000;
/// The number of threads in the read pool.
pub(crate) const READ_THREADS: usize = 4;
/// The number of events that a subscription reads at a time.
pub(crate) const FEED_PAGE: usize = 256;
/// The number of progress reports of one call that are written without a delay between them.
pub(crate) const PROGRESS_BURST: u32 = 10;
/// The interval between further progress reports of a call, in milliseconds.
pub(crate) const PROGRESS_INTERVAL_MS: u64 = 1_000;
/// The maximum number of steps, of open approvals and of calls with unknown outcomes in the status of a run, and of steps
/// that wait.
pub const STATUS_ITEMS: usize = 100;
/// The maximum number of open approvals of a run that are read at a time.
pub(crate) const RUN_APPROVALS: usize = 1_000;
/// The maximum time for which an approval is remembered, in milliseconds: 30 days.
pub(crate) const REMEMBER_MS: u64 = 30 * 86_400_000;
/// The number of rates, and of calls that wait for one rate, above which those without effect are removed.
pub(crate) const RATE_ENTRIES: usize = 10_000;
/// The number of different calls that are counted to find repeated ones, above which those without effect are removed.
pub(crate) const IDENTICAL_CALLS: usize = 10_000;
/// Events at the end of a log that are searched for the start of steps that wait.
pub(crate) const WAIT_EVENTS: usize = 500;
/// The maximum number of events from the end of a log that the reason of a run is computed from.
pub(crate) const REASON_EVENTS: usize = 64;
/// The maximum number of approvals, and of calls with unknown outcomes, that the reason of a run counts.
pub(crate) const REASON_WAITS: usize = 100;
/// The maximum number of sub-workflows of a run whose reasons are read.
pub(crate) const REASON_CHILDREN: usize = 3;
/// The number of notifications that are planned or sent before their results are read again.
pub(crate) const OUTBOX_BATCH: usize = 256;
/// The number of notifications among which a dead letter or a test message is searched.
pub(crate) const OUTBOX_LISTED: usize = 1_000;
/// The number of messages that are sent at a time.
pub(crate) const OUTBOX_SENDS: usize = 16;
/// The maximum time for which a channel can take to accept a message.
pub(crate) const OUTBOX_SEND_TIME: Duration = Duration::from_mins(1);
/// The maximum time between two looks at the outbox.
pub(crate) const OUTBOX_IDLE: Duration = Duration::from_secs(30);
/// The maximum time for which a tool that delivers a notification can run, or wait for its server.
pub(crate) const NOTIFICATION_TIME: &str = "30s";
