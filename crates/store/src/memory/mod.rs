//! An in-memory store for tests. It is the second implementation of [`crate::Store`] and [`crate::Reads`], and not for
//! users: each commit copies the tables. Its log has the events of runs, but no administrative actions.

mod commit;
mod definitions;
mod outbox;
mod policy;
mod purge;
mod reads;
mod rows;
mod steps;
mod store;
mod tables;

pub use tables::{ClaimRow, LogEntry, RunTables, StepEntry, TimerRow};

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Opened, RunId, Storage};
use tables::Tables;

/// A handle to an in-memory store. The store lives as long as one of its handles, so a test can drop an engine and
/// start another one on the same store.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The store as an engine takes it.
    pub fn into_storage(self) -> Storage {
        let last_time = self.tables().log.last().map(|row| row.at);
        Storage {
            writer: Box::new(self.clone()),
            readers: Arc::new(self),
            opened: Opened { last_time, restored: None },
        }
    }

    /// The runs in the order of their creation, for tests that compare rows with the log.
    pub fn runs(&self) -> Vec<Arc<RunTables>> {
        self.tables().runs.values().cloned().collect()
    }

    /// The rows of a run, for tests that compare them with its log.
    pub fn run_tables(&self, run: RunId) -> Option<Arc<RunTables>> {
        self.tables().run(run).ok().cloned()
    }

    /// The step executions of a run that hold an idempotency key, for tests that compare them with its log.
    pub fn key_holders(&self, run: RunId) -> BTreeSet<u32> {
        let tables = self.tables();
        let held = tables.claims.values().filter(|claim| claim.run == run && claim.result.is_none());
        held.map(|claim| claim.n).collect()
    }

    /// The log of all runs, for tests that verify its hash chain.
    pub fn log_entries(&self) -> Vec<Arc<LogEntry>> {
        self.tables().log.clone()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // A commit replaces the tables when it is complete, so that a panic leaves them as they were.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
