//! The runs in memory: a cache of the store. Runs are loaded when something happens and evicted while they wait.

use std::sync::Arc;

use steprail_core::run::{Run, RunStatus};
use steprail_store::{Head, NewRun, RunId, StoreError};

use super::cache::Hashes;
use super::definitions::Compiled;
use super::world::Reusable;
use super::{Done, Effect, Kernel, no_run};
use crate::error::Error;
use crate::limits::PARKED_RUNS;

/// A run in memory.
pub(super) struct Entry {
    pub head: Head,
    pub run: Run,
    pub compiled: Arc<Compiled>,
    pub reusable: Option<Reusable>,
    /// The run to create with its first decision.
    pub new: Option<Box<NewRun>>,
    /// Events that are written together with the next decision.
    pub unwritten: Vec<steprail_core::run::Record>,
    /// Hashes of stored values according to the log.
    pub hashes: Hashes,
    pub parked: bool,
}

impl Kernel {
    /// Loads a run, unless it is in memory. Returns false if it does not exist.
    pub(super) fn load(&mut self, id: RunId) -> Result<bool, StoreError> {
        self.deciding = Some(id);
        if let Some(entry) = self.runs.get_mut(&id) {
            entry.parked = false;
            return Ok(true);
        }
        let Some(head) = self.batch.head(id)? else { return Ok(false) };
        let compiled = self.compiled(head.definition)?;
        let (mut run, mut hashes) = (Run::default(), Hashes::default());
        for event in self.batch.log(id)? {
            run.apply(&compiled.plan, &event.event);
            hashes.note(&event.event.changes());
        }
        if run.status() != head.state.status {
            return Err(StoreError::Corrupt(format!("the log of run {id} does not match its row")));
        }
        self.find_ended_children(id, &run)?;
        self.deadlines.load(id, &run);
        self.continuations.loaded(id, &head, &run);
        let entry = Entry {
            head,
            run,
            compiled,
            reusable: None,
            new: None,
            unwritten: Vec::new(),
            hashes,
            parked: false,
        };
        self.runs.insert(id, entry);
        Ok(true)
    }

    /// After a commit: evicts runs that ended, and waiting runs beyond the limit.
    pub(super) fn committed(&mut self, done: &mut Done) {
        self.flights.commit();
        self.deadlines.commit();
        self.quotas.commit();
        self.continuations.commit();
        for id in std::mem::take(&mut self.touched) {
            let Some(entry) = self.runs.get_mut(&id) else { continue };
            let status = entry.run.status();
            if status.is_terminal() {
                self.runs.remove(&id);
                self.values.drop_run(id);
                for reply in self.waiters.remove(&id).unwrap_or_default() {
                    done.effects.push(Effect::Reply(reply.with(Ok(status))));
                }
            } else if !entry.run.is_active() && !entry.parked {
                entry.parked = true;
                self.parked.push_back(id);
            }
        }
        while self.parked.len() > PARKED_RUNS {
            let Some(id) = self.parked.pop_front() else { break };
            if self.runs.get(&id).is_some_and(|entry| entry.parked) {
                self.runs.remove(&id);
                self.values.drop_run(id);
            }
        }
    }

    /// Returns the status of a run, or an error if it does not exist or is damaged.
    pub(super) fn find_status(&mut self, run: RunId) -> Result<Result<RunStatus, Error>, StoreError> {
        if let Some(damage) = self.damaged.get(&run) {
            return Ok(Err(Error::Storage(damage.clone())));
        }
        if let Some(entry) = self.runs.get(&run) {
            return Ok(Ok(entry.run.status()));
        }
        let head = self.batch.head(run)?;
        Ok(head.map(|head| head.state.status).ok_or_else(|| no_run(run)))
    }

    /// The head of a run, even if it is not committed yet.
    pub(super) fn find_head(&mut self, run: RunId) -> Result<Option<Head>, StoreError> {
        match self.runs.get(&run) {
            Some(entry) => Ok(Some(entry.head.clone())),
            None => self.batch.head(run),
        }
    }
}
