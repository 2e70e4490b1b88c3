//! Every bound of the engine, named in one place.

use std::time::Duration;

/// How much an engine does at the same time. [`steprail_core::limits`] has the bounds of one run.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Calls in flight in all.
    pub calls: u32,
    /// Calls in flight of the runs of one definition.
    pub calls_per_definition: u32,
    /// Calls in flight to one tool server: what stands before `__` in a tool's name.
    pub calls_per_server: u32,
    /// Requests that wait for the engine; more wait outside.
    pub requests: usize,
    /// How long shutting down waits for calls in flight.
    pub shutdown: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls: 1_024,
            calls_per_definition: 1_024,
            calls_per_server: 512,
            requests: 10_000,
            shutdown: Duration::from_secs(20),
        }
    }
}

/// Requests that are committed together at most.
pub(crate) const BATCH: usize = 512;
/// Runs that wait for something and whose state is kept in memory all the same.
pub(crate) const PARKED_RUNS: usize = 1_024;
/// Bytes of payloads that are kept in memory.
pub(crate) const CACHED_BYTES: usize = 64 * 1024 * 1024;
/// Compiled definitions that are kept in memory.
pub(crate) const CACHED_PLANS: usize = 1_000;
/// Runs that others wait for and that begin in one transaction. A definition may name itself.
pub(crate) const CHILD_RUNS: usize = 2_000;
/// Runs that are picked up in one commit after a restart.
pub(crate) const RECOVERY_BATCH: usize = 256;
/// Runs that are deleted in one commit.
pub(crate) const PURGE_BATCH: usize = 100;
/// Milliseconds until a store that failed is tried again: the first and the longest delay.
pub(crate) const FAULT_DELAY_MS: (u64, u64) = (1_000, 30_000);
/// Questions about what is stored that are answered at the same time, each by a thread.
pub(crate) const READS_AT_ONCE: usize = 4;
/// Events that a subscription reads at once.
pub(crate) const FEED_PAGE: usize = 256;
/// Reports of progress of one call that are all written; then one per [`PROGRESS_MS`].
pub(crate) const PROGRESS_AT_ONCE: u32 = 10;
/// Milliseconds between reports of progress that are written.
pub(crate) const PROGRESS_MS: u64 = 1_000;
/// Events at the end of a log that are searched for the start of steps that wait.
pub(crate) const WAIT_EVENTS: usize = 500;
