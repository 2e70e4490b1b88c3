//! The integer keys of runs, by their ids, with a cache.

use rusqlite::{Connection, OptionalExtension};

use crate::{IdMap, RunId, StoreError};

/// The maximum number of runs whose keys are cached.
const KNOWN_KEYS: usize = 20_000;

const SELECT_KEY: &str = "SELECT id FROM runs WHERE run_id = ?1";

/// A cache of the keys of runs. It is emptied when it is full.
#[derive(Debug, Default)]
pub(super) struct RunKeys(IdMap<RunId, i64>);

impl RunKeys {
    /// The key of a run, if the run exists.
    pub(super) fn find(&mut self, connection: &Connection, run: RunId) -> Result<Option<i64>, StoreError> {
        if let Some(key) = self.0.get(&run) {
            return Ok(Some(*key));
        }
        let mut statement = connection.prepare_cached(SELECT_KEY)?;
        let key = statement.query_row([run.to_string()], |row| row.get(0)).optional()?;
        if let Some(key) = key {
            self.insert(run, key);
        }
        Ok(key)
    }

    /// The key of a run that must exist.
    pub(super) fn get(&mut self, connection: &Connection, run: RunId) -> Result<i64, StoreError> {
        self.find(connection, run)?.ok_or_else(|| StoreError::Corrupt(format!("run {run} is missing")))
    }

    /// Keeps the key of a run.
    pub(super) fn insert(&mut self, run: RunId, key: i64) {
        if self.0.len() >= KNOWN_KEYS {
            self.0.clear();
        }
        self.0.insert(run, key);
    }

    /// Forgets all keys: those of runs that were rolled back are void.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
