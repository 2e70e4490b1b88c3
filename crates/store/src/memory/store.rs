//! [`Store`] in memory: commits, and the loads of decisions.

use std::sync::Arc;

use steprail_core::plan::Hash;
use steprail_core::run::{Event, Millis, Payload, RunStatus};

use super::MemoryStore;
use super::tables::{RunTables, Tables};
use crate::{
    Approval, ClaimKey, ClaimState, Commit, Committed, Definition, DefinitionQuery, Due, Head, Refused,
    RunId, Store, StoreError, StoredEvent, Timer, Unfinished, Wanted,
};

impl Store for MemoryStore {
    fn commit(&mut self, commit: &Commit) -> Result<Committed, Refused> {
        let mut tables = self.tables();
        let mut changed = tables.clone();
        let committed = changed.apply(commit)?;
        *tables = changed;
        Ok(committed)
    }

    fn secret(&mut self) -> Result<[u8; 32], StoreError> {
        // The same for every store: a test must be repeatable.
        Ok(Hash::of(b"the secret of an in-memory store").0)
    }

    fn head(&mut self, run: RunId) -> Result<Option<Head>, StoreError> {
        let tables = self.tables();
        let Ok(found) = tables.run(run) else { return Ok(None) };
        let parent = found.new.parent.as_ref().filter(|(parent, _)| tables.keys.contains_key(parent));
        Ok(Some(Head {
            id: run,
            definition: found.new.definition,
            principal: Arc::new(serde_json::from_str(&found.principal)?),
            parent: parent.map(|(id, parent)| (*id, parent.n, parent.attempt)),
            depth: found.new.parent.as_ref().map_or(0, |(_, parent)| parent.depth),
            rerun: found.new.rerun.clone(),
            state: found.state,
            stored_bytes: found.stored_bytes,
        }))
    }

    fn log(&mut self, run: RunId) -> Result<Vec<StoredEvent>, StoreError> {
        let tables = self.tables();
        tables.run(run)?;
        tables.events(run)
    }

    fn value(&mut self, run: RunId, wanted: Wanted) -> Result<Payload, StoreError> {
        let tables = self.tables();
        let found = match wanted {
            Wanted::EventValue(seq) => noted(&tables, run, seq)?,
            wanted => stored_value(tables.run(run)?, wanted)?,
        };
        found.ok_or_else(|| StoreError::Corrupt(format!("run {run} has no {wanted:?}")))
    }

    fn definition(&mut self, which: DefinitionQuery<'_>) -> Result<Option<Definition>, StoreError> {
        Ok(self.tables().find_definition(which).cloned())
    }

    fn request(&mut self, by: &str, request_key: &str) -> Result<Option<RunId>, StoreError> {
        Ok(self.tables().find_request(by, request_key))
    }

    fn unfinished(
        &mut self,
        which: Unfinished,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        let tables = self.tables();
        let after = after.and_then(|run| tables.keys.get(&run).copied()).unwrap_or(0);
        let is_child = |run: &RunTables, of: RunId| run.new.parent.as_ref().is_some_and(|(id, _)| *id == of);
        let is_wanted = |run: &RunTables| match which {
            Unfinished::Active => run.state.active,
            Unfinished::Interruptible => run.new.interruptible && run.state.status != RunStatus::Interrupted,
            Unfinished::All => run.state.status != RunStatus::Interrupted,
            Unfinished::WithInterrupted => true,
            Unfinished::ChildrenOf(parent) => is_child(run, parent),
        };
        let runs = tables.runs.range(after + 1..).map(|(_, run)| run);
        let unfinished = runs.filter(|run| run.completed_at.is_none() && is_wanted(run));
        Ok(unfinished.take(limit).map(|run| run.id).collect())
    }

    fn due(&mut self, now: Millis, limit: usize) -> Result<Due, StoreError> {
        let tables = self.tables();
        let mut timers: Vec<Timer> = tables.runs.values().flat_map(|run| due_timers(run, now)).collect();
        // Stable: timers of the same time stay in the order of their runs.
        timers.sort_by_key(|timer| timer.due);
        timers.truncate(limit);
        let due = tables.schedules.values().filter(|schedule| schedule.due.is_some_and(|due| due <= now));
        let mut schedules: Vec<_> = due.cloned().collect();
        schedules.sort_by_key(|schedule| schedule.due);
        schedules.truncate(limit);
        Ok(Due { timers, schedules, ..Due::default() })
    }

    fn waiting(&mut self, event: &str) -> Result<Vec<(RunId, u32)>, StoreError> {
        let tables = self.tables();
        let waits = |run: &Arc<RunTables>| -> Vec<(RunId, u32)> {
            run.waits.iter().filter(|(_, name)| *name == event).map(|(n, _)| (run.id, *n)).collect()
        };
        Ok(tables.runs.values().flat_map(waits).collect())
    }

    fn claim(&mut self, key: &ClaimKey, now: Millis) -> Result<ClaimState, StoreError> {
        let tables = self.tables();
        let Some(claim) = tables.claims.get(key).filter(|claim| !claim.is_expired(now)) else {
            return Ok(ClaimState::Free);
        };
        Ok(match &claim.result {
            None => ClaimState::Held { args: claim.args },
            Some(output) => ClaimState::Done { args: claim.args, output: output.clone() },
        })
    }

    fn counter(&mut self, subject: &str, rule: &str, start: Millis) -> Result<u64, StoreError> {
        Ok(self.tables().policy.counter(subject, rule, start))
    }

    fn approval(&mut self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError> {
        let tables = self.tables();
        let Ok(run) = tables.run(run) else { return Ok(None) };
        Ok(run.approvals.values().rev().find(|approval| approval.path == path).cloned())
    }
}

impl Tables {
    pub(super) fn find_request(&self, by: &str, request_key: &str) -> Option<RunId> {
        let is_it = |run: &&Arc<RunTables>| {
            run.new.principal.id == by && run.new.request_key.as_deref() == Some(request_key)
        };
        self.runs.values().find(is_it).map(|run| run.id)
    }
}

/// Timers that are due and not held, in the order of their steps and of the names of their kinds.
fn due_timers(run: &RunTables, now: Millis) -> Vec<Timer> {
    let due = run.timers.iter().filter(|(_, timer)| !timer.held && timer.due <= now);
    let mut timers: Vec<Timer> =
        due.map(|((n, kind), timer)| Timer { run: run.id, n: *n, kind: *kind, due: timer.due }).collect();
    timers.sort_by_key(|timer| (timer.n, timer.kind.name()));
    timers
}

fn stored_value(run: &RunTables, wanted: Wanted) -> Result<Option<Payload>, StoreError> {
    let attempts = |n: u32| run.steps.range((n, 0)..=(n, u32::MAX)).rev().map(|(_, step)| step);
    Ok(match wanted {
        Wanted::Inputs => Some(run.new.inputs.clone()),
        Wanted::Result => run.output.clone(),
        Wanted::Input(n) => attempts(n).find_map(|step| step.input.clone()),
        Wanted::Output(n) => attempts(n).find_map(|step| step.output.clone()),
        Wanted::Error(n) => {
            let error = attempts(n).next().and_then(|step| step.error.as_deref());
            error.map(Payload::parse).transpose()?
        }
        Wanted::EventValue(_) => None,
    })
}

/// The value that an event contains.
fn noted(tables: &Tables, run: RunId, seq: u64) -> Result<Option<Payload>, StoreError> {
    tables.run(run)?;
    let found = tables.events(run)?.into_iter().find(|stored| stored.seq == seq);
    Ok(match found.map(|stored| stored.event) {
        Some(
            Event::SignalReceived { payload: value, .. }
            | Event::ArgumentsEdited { args: value, .. }
            | Event::ValueSet { value, .. },
        ) => Some(Payload::new(value)),
        _ => None,
    })
}
