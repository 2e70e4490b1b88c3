//! Retention in memory: deletes ended runs, unused definitions and expired results under idempotency keys.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use steprail_core::run::Millis;

use super::tables::{DefinitionRow, LogEntry, RunTables, Tables};
use crate::{Purge, Purged, RunId};

impl Tables {
    pub(super) fn purge(&mut self, purge: Purge, now: Millis) -> Purged {
        let ended = self.purgeable(purge);
        ended.iter().for_each(|run| self.delete_run(*run));
        for run in &ended {
            self.policy.forget_run(*run);
            self.outbox.forget_run(*run);
        }
        let used: BTreeSet<i64> = self.runs.values().map(|run| run.new.definition).collect();
        // The last version that was deleted is kept: the name belongs to its owner.
        let is_last = |row: &DefinitionRow| {
            self.find_deleted(&row.definition.name).is_some_and(|last| last.id == row.definition.id)
        };
        let unused = |id: &i64| !used.contains(id);
        let deleted = self.definitions.iter().filter(|(_, row)| row.definition.deleted && !is_last(row));
        let unused: Vec<i64> = deleted.map(|(id, _)| *id).filter(unused).take(purge.limit).collect();
        unused.iter().for_each(|id| drop(self.definitions.remove(id)));
        let expired = self.claims.iter().filter(|(_, claim)| claim.is_expired(now));
        let expired: Vec<_> = expired.map(|(key, _)| key.clone()).take(purge.limit).collect();
        expired.iter().for_each(|key| drop(self.claims.remove(key)));
        let messages = self.outbox.purge(purge.before, purge.limit);
        Purged { runs: ended.len(), others: unused.len() + expired.len() + messages }
    }

    /// Ended runs, oldest end first. A run that another one waits for or reuses is kept until that one has ended.
    fn purgeable(&self, purge: Purge) -> Vec<RunId> {
        let unfinished = || self.runs.values().filter(|run| run.completed_at.is_none());
        let reused: BTreeSet<RunId> =
            unfinished().filter_map(|run| run.new.rerun.as_ref()).map(|rerun| rerun.of).collect();
        let waits = |run: &RunTables| {
            let parent = run.new.parent.as_ref().and_then(|(parent, _)| self.run(*parent).ok());
            parent.is_some_and(|parent| parent.completed_at.is_none())
        };
        let ended = self.runs.values().filter_map(|run| Some((run.completed_at?, run)));
        let mut ended: Vec<(Millis, RunId)> = ended
            .filter(|(at, run)| *at < purge.before && !reused.contains(&run.id) && !waits(run))
            .map(|(at, run)| (at, run.id))
            .collect();
        ended.sort_by_key(|(at, _)| *at);
        ended.into_iter().take(purge.limit).map(|(_, run)| run).collect()
    }

    /// Deletes a run. The rows of its log keep their digests, so that the hash chain can still be verified.
    fn delete_run(&mut self, run: RunId) {
        if let Some(key) = self.keys.remove(&run) {
            self.runs.remove(&key);
        }
        let scope = format!("run:{run}");
        self.claims.retain(|key, _| key.scope != scope);
        for row in self.log.iter_mut().filter(|row| row.run == run && !row.body.is_empty()) {
            let hashes = row.content().digest().0.to_vec();
            let (body, events) = (String::new(), OnceLock::new());
            *row = Arc::new(LogEntry { body, hashes, events, ..(**row).clone() });
        }
    }
}
