//! Applies a commit to a copy of the tables.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use steprail_core::run::RunStatus;

use super::rows::Rows;
use super::tables::{LogEntry, RunTables, Tables};
use crate::limits::SESSIONS;
use crate::log_row::LogRow;
use crate::{
    Commit, Committed, Conflict, Cursor, NewRun, Refused, RegistryChange, RowContent, RunCommit,
    ScheduleChange, StoreError, Timer, link, projection,
};

impl Tables {
    pub(super) fn apply(&mut self, commit: &Commit) -> Result<Committed, Refused> {
        let mut committed = Committed::default();
        for change in &commit.definitions {
            committed.definitions.extend(self.change_definition(change, commit.now)?);
        }
        commit.fired.iter().for_each(|timer| self.delete_fired(timer));
        for run in &commit.runs {
            committed.last_event = self.apply_run(run, commit)?.or(committed.last_event);
        }
        for change in &commit.schedules {
            self.apply_schedule(change)?;
        }
        commit.registry.iter().for_each(|change| self.apply_registry(change, commit));
        commit.policy.iter().for_each(|change| self.policy.apply(change, commit.now));
        commit.outbox.iter().for_each(|change| self.outbox.apply(change, commit.now));
        if let Some(purge) = commit.purge {
            committed.purged = self.purge(purge, commit.now);
        }
        Ok(committed)
    }

    fn delete_fired(&mut self, timer: &Timer) {
        let Ok(run) = self.run_mut(timer.run) else { return };
        let key = (timer.n, timer.kind);
        if run.timers.get(&key).is_some_and(|known| known.due == timer.due) {
            run.timers.remove(&key);
        }
    }

    fn apply_run(&mut self, run: &RunCommit, commit: &Commit) -> Result<Option<Cursor>, Refused> {
        if let Some(new) = &run.new {
            self.insert_run(run, new, commit)?;
        }
        let last_event = self.append(run, commit)?;
        self.policy.count(run);
        self.project(run, commit).map_err(|refused| match refused {
            // The rows of the run do not fit its log; other runs are not affected.
            Refused::Unavailable(error @ StoreError::Corrupt(_)) => Refused::Damaged(run.run, error),
            refused => refused,
        })?;
        Ok(last_event)
    }

    fn insert_run(&mut self, run: &RunCommit, new: &NewRun, commit: &Commit) -> Result<(), Refused> {
        if let Some((parent, _)) = &new.parent {
            self.run(*parent)?;
        }
        if self.keys.contains_key(&run.run) {
            return Err(Refused::Stale(run.run));
        }
        if let Some(key) = &new.request_key
            && self.find_request(&new.principal.id, key).is_some()
        {
            return Err(Refused::Conflict(Conflict::RequestKey(key.clone())));
        }
        let definition = self.definitions.get(&new.definition);
        let missing = || StoreError::Corrupt("the definition of a run is missing".to_owned());
        let definition = &definition.ok_or_else(missing)?.definition;
        let (name, version) = (definition.name.clone(), definition.version);
        self.last_run += 1;
        let tables = RunTables {
            id: run.run,
            state: run.after,
            seq: 0,
            steps: BTreeMap::new(),
            timers: BTreeMap::new(),
            waits: BTreeMap::new(),
            approvals: BTreeMap::new(),
            key: self.last_run,
            name,
            version,
            new: new.clone(),
            principal: serde_json::to_string(&new.principal).map_err(StoreError::from)?,
            output: None,
            error: None,
            created_at: commit.now,
            updated_at: commit.now,
            completed_at: None,
            stored_bytes: run.stored_bytes,
        };
        self.keys.insert(run.run, self.last_run);
        self.runs.insert(self.last_run, Arc::new(tables));
        Ok(())
    }

    /// Appends a row to the log.
    fn append(&mut self, run: &RunCommit, commit: &Commit) -> Result<Option<Cursor>, Refused> {
        let tables = self.run_mut(run.run)?;
        if tables.seq != run.expected_seq {
            return Err(Refused::Stale(run.run));
        }
        if run.records.is_empty() {
            return Ok(None);
        }
        let (seq, at) = (run.expected_seq + 1, commit.now);
        tables.seq += run.records.len() as u64;
        tables.updated_at = at;
        let mut row = LogRow::default();
        row.encode(&run.records)?;
        let body = row.text()?.to_owned();
        let digest = RowContent { run: run.run, seq, at, body: &body, hashes: &row.hashes }.digest();
        self.chain = link(&self.chain, &digest);
        let count = u32::try_from(run.records.len()).map_err(|error| StoreError::Other(error.to_string()))?;
        let (hashes, hash) = (row.hashes, self.chain);
        let entry = LogEntry { run: run.run, seq, count, at, body, hashes, hash, events: OnceLock::new() };
        self.log.push(Arc::new(entry));
        Ok(self.log_rows().last().map(|(id, row)| row.end(id)))
    }

    fn project(&mut self, run: &RunCommit, commit: &Commit) -> Result<(), Refused> {
        let Self { runs, keys, claims, last_approval, .. } = self;
        let tables = keys.get(&run.run).and_then(|key| runs.get_mut(key)).map(Arc::make_mut);
        let missing = || StoreError::Corrupt(format!("run {} is missing", run.run));
        let tables = tables.ok_or_else(missing)?;
        projection::project(&mut Rows { run: &mut *tables, claims, last_approval, now: commit.now }, run)?;
        if projection::changes_state(run) {
            update_run(tables, run, commit)?;
        }
        Ok(())
    }

    fn apply_schedule(&mut self, change: &ScheduleChange) -> Result<(), Refused> {
        match change {
            ScheduleChange::Put(schedule, _) => {
                self.schedules.insert(schedule.name.clone(), (**schedule).clone());
                Ok(())
            }
            ScheduleChange::Delete(name, _) => match self.schedules.remove(name) {
                Some(_) => Ok(()),
                None => Err(Refused::Conflict(Conflict::NoSchedule(name.clone()))),
            },
            // No other program changes the rows of this store, so that no schedule is refused.
            ScheduleChange::Refuse(..) => Ok(()),
        }
    }

    fn apply_registry(&mut self, change: &RegistryChange, commit: &Commit) {
        match change {
            RegistryChange::PutAccount(account, _) => {
                self.accounts.insert((account.kind, account.id.clone()), account.body.clone());
            }
            RegistryChange::DropAccount(kind, id, _) => drop(self.accounts.remove(&(*kind, id.clone()))),
            RegistryChange::PutSession(session) => {
                let (known, _) =
                    self.sessions.entry(session.id.clone()).or_insert_with(|| (session.clone(), commit.now));
                if known.user == session.user {
                    known.state.clone_from(&session.state);
                }
                while self.sessions.len() > SESSIONS {
                    let oldest = self.sessions.iter().min_by_key(|(_, (_, created_at))| *created_at);
                    let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
                    self.sessions.remove(&oldest);
                }
            }
            RegistryChange::DropSession(id) => drop(self.sessions.remove(id)),
        }
    }
}

/// Writes the state of a run, within the constraints of a run's row.
fn update_run(tables: &mut RunTables, run: &RunCommit, commit: &Commit) -> Result<(), StoreError> {
    if tables.completed_at.is_some() {
        return Err(StoreError::Other("a run that ended stays as it is".to_owned()));
    }
    let (output, error) = projection::end_of(run)?;
    if output.is_some() != (run.after.status == RunStatus::Completed) {
        return Err(StoreError::Other("an output without a completed run, or the other way".to_owned()));
    }
    if run.after.active && !matches!(run.after.status, RunStatus::Running | RunStatus::Paused) {
        return Err(StoreError::Other(format!("a run is active and {}", run.after.status.name())));
    }
    tables.state = run.after;
    tables.completed_at = run.after.status.is_terminal().then_some(commit.now);
    tables.output = output.cloned();
    tables.error = error;
    tables.stored_bytes = run.stored_bytes;
    Ok(())
}
