//! Quarantine: a panic in the decision of one run stops that run, not the engine.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use steprail_store::{RunId, StoreError};

use super::Kernel;
use crate::supervision::panic_message;

impl Kernel {
    /// Runs a part of a transaction. A panic while a run is handled becomes an error of that run: the caller rolls back,
    /// which also drops the state in memory that the panic left incomplete. Any other panic is passed on.
    pub(super) fn or_quarantine<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(result) => result,
            Err(panic) => {
                let Some(run) = self.deciding else { resume_unwind(panic) };
                Err(StoreError::Quarantined { run: run.to_string(), reason: panic_message(&*panic) })
            }
        }
    }

    /// Runs that do not continue, each with the reason: stored state that is damaged, or a decision that panicked.
    pub fn damaged(&self) -> &BTreeMap<RunId, StoreError> {
        &self.damaged
    }

    /// Whether the stored state of a run is damaged.
    pub fn has_damage(&self) -> bool {
        self.damaged.values().any(|error| !matches!(error, StoreError::Quarantined { .. }))
    }
}
