//! Reads logs and unfinished runs from the store.

use std::sync::{Arc, Mutex};

use steprail_core::run::{Event, Millis};
use steprail_engine::RunId;
use steprail_store::memory::MemoryStore;
use steprail_store::sqlite::SqliteStore;

use super::Sim;
use super::common::audit::{RunState, Tables};
use super::common::shared::ReadableStore;

/// One of so many seeds uses SQLite, unless `STEPRAIL_STORE` says which store they use.
const SQLITE_SHARE: u64 = 8;

/// The store that a simulation uses.
#[derive(Debug, Clone, Copy)]
pub(super) enum StoreKind {
    Memory,
    Sqlite,
}

impl StoreKind {
    pub(super) fn of(seed: u64) -> Self {
        match std::env::var("STEPRAIL_STORE").as_deref() {
            Ok("memory") => Self::Memory,
            Ok("sqlite") => Self::Sqlite,
            Ok(other) if !other.is_empty() => panic!("STEPRAIL_STORE is `memory` or `sqlite`, not `{other}`"),
            _ if seed.is_multiple_of(SQLITE_SHARE) => Self::Sqlite,
            _ => Self::Memory,
        }
    }

    pub(super) fn create(self) -> Arc<Mutex<dyn ReadableStore>> {
        match self {
            Self::Memory => Arc::new(Mutex::new(MemoryStore::new())),
            Self::Sqlite => Arc::new(Mutex::new(SqliteStore::in_memory().expect("a database"))),
        }
    }
}

impl Sim {
    pub(super) fn read<T>(&self, read: impl FnOnce(&dyn Tables) -> T) -> T {
        read(self.store.lock().expect("the store").tables())
    }

    pub(super) fn events(&self, run: RunId) -> Vec<(Millis, Event)> {
        let events = self.read(|tables| tables.events(run));
        events.into_iter().map(|(_, at, event)| (at, event)).collect()
    }

    pub(super) fn all_runs(&self) -> Vec<RunId> {
        self.read(|tables| tables.runs()).into_iter().map(|run| run.id).collect()
    }

    pub(super) fn unfinished(&self) -> Vec<RunId> {
        let has_ended = |run: &RunState| matches!(&*run.status, "completed" | "failed" | "cancelled");
        let runs = self.read(|tables| tables.runs()).into_iter().filter(|run| !has_ended(run));
        runs.map(|run| run.id).collect()
    }
}
