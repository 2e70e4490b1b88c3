//! Applies a commit in one transaction.

use std::collections::HashMap;

use rusqlite::{Connection, ErrorCode, params};
use steprail_core::plan::Hash;
use steprail_core::run::{Millis, Payload, RunStatus};

use super::files::OpenFiles;
use super::project::{Rows, StoredValue};
use super::run_keys::RunKeys;
use super::statements::{Frequent, Statements};
use super::{SqliteStore, definitions, policy, proposals, schedules};
use crate::limits::SESSIONS;
use crate::log_row::LogRow;
use crate::{
    Account, AdminAction, AdminEvent, Commit, Committed, Conflict, Cursor, Definition, DefinitionChange,
    DefinitionQuery, Fired, NewDefinition, NewRun, Refused, RegistryChange, RowContent, RowKind, RunCommit,
    RunId, RunState, ScheduleChange, StoreError, link, projection,
};

const DELETE_FIRED: &str = "DELETE FROM alarms WHERE run_id = ?1 AND n = ?2 AND kind = ?3 AND due_at = ?4";

impl SqliteStore {
    pub(super) fn apply(&mut self, commit: &Commit) -> Result<Committed, Refused> {
        self.files.as_mut().map_or(Ok(()), OpenFiles::before_write)?;
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let before = (self.chain, self.last_row, self.admin_seq);
        let applied = self.transaction().apply_changes(commit);
        let applied = applied.and_then(|committed| {
            self.connection.prepare_cached("COMMIT")?.execute([])?;
            Ok(committed)
        });
        if applied.is_err() {
            self.roll_back(before);
            return applied;
        }
        let last_row = self.last_row;
        self.files.as_mut().map_or(Ok(()), |files| files.committed(&self.connection, last_row))?;
        applied
    }

    fn transaction(&mut self) -> Transaction<'_> {
        Transaction {
            statements: Statements::new(&self.connection),
            chain: &mut self.chain,
            keys: &mut self.keys,
            row: &mut self.row,
            last_row: &mut self.last_row,
            admin_seq: &mut self.admin_seq,
            checked: &mut self.checked,
            actions: Vec::new(),
        }
    }

    fn roll_back(&mut self, before: (Hash, i64, u64)) {
        (self.chain, self.last_row, self.admin_seq) = before;
        // The keys of runs that the transaction created are invalid.
        self.keys.clear();
        // A failed statement may have ended the transaction.
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }
}

/// An open transaction. Its statements are returned to the cache of the connection when it is dropped.
pub(super) struct Transaction<'s> {
    statements: Statements<'s>,
    /// The hash of the last row of the log.
    pub(super) chain: &'s mut Hash,
    keys: &'s mut RunKeys,
    pub(super) row: &'s mut LogRow,
    pub(super) last_row: &'s mut i64,
    /// The last administrative action.
    pub(super) admin_seq: &'s mut u64,
    /// Rows that were compared with the log, by their content.
    pub(super) checked: &'s mut HashMap<(RowKind, String), Hash>,
    /// Administrative actions that follow from the changes so far.
    pub(super) actions: Vec<AdminEvent>,
}

impl<'s> Transaction<'s> {
    pub(super) fn connection(&self) -> &'s Connection {
        self.statements.connection
    }

    pub(super) fn run_key(&mut self, run: RunId) -> Result<i64, StoreError> {
        self.keys.get(self.statements.connection, run)
    }

    fn apply_changes(&mut self, commit: &Commit) -> Result<Committed, Refused> {
        let mut committed = Committed::default();
        for change in &commit.definitions {
            committed.definitions.extend(self.change_definition(change, commit.now)?);
        }
        for timer in &commit.fired {
            let Some(key) = self.keys.find(self.statements.connection, timer.run)? else { continue };
            let params = params![key, timer.n, timer.kind.name(), timer.due];
            self.statements.connection.prepare_cached(DELETE_FIRED)?.execute(params)?;
        }
        for run in &commit.runs {
            committed.last_event = self.apply_run(run, commit)?.or(committed.last_event);
        }
        for change in &commit.schedules {
            self.apply_schedule(change)?;
        }
        for change in &commit.registry {
            self.apply_registry(change, commit)?;
        }
        for change in &commit.policy {
            self.change_policy(change, commit.now)?;
        }
        for change in &commit.outbox {
            self.change_outbox(change, commit.now)?;
        }
        if let Some(purge) = commit.purge {
            committed.purged = self.purge(purge, commit.now)?;
        }
        self.append_actions(commit)?;
        Ok(committed)
    }

    fn change_definition(
        &mut self,
        change: &DefinitionChange,
        now: Millis,
    ) -> Result<Option<Definition>, Refused> {
        match change {
            DefinitionChange::Put(new) => return self.put_definition(new, now).map(Some),
            DefinitionChange::Delete { name, expected, owner, by } => {
                let (owner, by) = (owner.as_deref(), by.as_ref());
                let ids = definitions::delete(self.connection(), name, *expected, owner, by, now)?;
                let action = AdminAction::DefinitionDeleted { name: name.clone() };
                self.record(by, RowKind::Definition, ids, |_| action)?;
            }
            DefinitionChange::PinWorkflows { id, workflows } => {
                let known = definitions::find(self.connection(), DefinitionQuery::Id(*id))?;
                let missing = || StoreError::Corrupt(format!("definition {id} is missing"));
                let stored =
                    definitions::pin_workflows(self.connection(), known.ok_or_else(missing)?, workflows)?;
                let (name, version) = (stored.name.clone(), stored.version);
                let action = |_| AdminAction::DefinitionPinned { name, version };
                self.record(None, RowKind::Definition, [id.to_string()], action)?;
                return Ok(Some(stored));
            }
            DefinitionChange::Adopt { name, expected, by } => {
                let (ids, from) = definitions::adopt(self.connection(), name, *expected, by)?;
                let action = AdminAction::DefinitionAdopted { name: name.clone(), from };
                self.record(Some(by), RowKind::Definition, ids, |_| action)?;
            }
            DefinitionChange::Propose(new) => {
                proposals::put(self.connection(), new, now)?;
                let (name, hash) = (new.name.clone(), new.hash);
                let action = |_| AdminAction::DefinitionProposed { name, hash };
                self.record(Some(&new.by), RowKind::Proposal, [new.name.clone()], action)?;
            }
            DefinitionChange::CloseProposal { name, hash, accepted, by } => {
                proposals::close(self.connection(), name, *hash)?;
                let (id, name, hash) = (name.clone(), name.clone(), *hash);
                let action = if *accepted {
                    AdminAction::ProposalAccepted { name, hash }
                } else {
                    AdminAction::ProposalRejected { name, hash }
                };
                self.record(Some(by), RowKind::Proposal, [id], |_| action)?;
            }
        }
        Ok(None)
    }

    fn put_definition(&mut self, new: &NewDefinition, now: Millis) -> Result<Definition, Refused> {
        let stored = definitions::put(self.connection(), new, now)?;
        let Definition { name, version, hash, .. } = &stored;
        let (name, version, hash, published) = (name.clone(), *version, *hash, new.published);
        self.record(Some(&new.by), RowKind::Definition, [stored.id.to_string()], |is_new| {
            if is_new {
                AdminAction::DefinitionStored { name, version, hash, published }
            } else {
                AdminAction::DefinitionPinned { name, version }
            }
        })?;
        Ok(stored)
    }

    fn apply_run(&mut self, run: &RunCommit, commit: &Commit) -> Result<Option<Cursor>, Refused> {
        let key = match &run.new {
            Some(new) => self.insert_run(run, new, commit)?,
            None => self.keys.get(self.statements.connection, run.run)?,
        };
        let last_event = self.insert_log(key, run, commit)?;
        self.project(key, run, commit).map_err(|refused| match refused {
            // The rows of the run do not match its log; other runs are not affected.
            Refused::Unavailable(error @ StoreError::Corrupt(_)) => Refused::Damaged(run.run, error),
            refused => refused,
        })?;
        Ok(last_event)
    }

    /// Writes the rows that follow from the events.
    fn project(&mut self, key: i64, run: &RunCommit, commit: &Commit) -> Result<(), Refused> {
        for record in &run.records {
            policy::count(self.statements.connection, &record.event)?;
        }
        let mut rows =
            Rows { statements: &mut self.statements, run: key, now: commit.now, log_row: *self.last_row };
        projection::project(&mut rows, run)?;
        if projection::changes_state(run) {
            self.update_run(key, run, commit)?;
        }
        Ok(())
    }

    fn insert_log(&mut self, key: i64, run: &RunCommit, commit: &Commit) -> Result<Option<Cursor>, Refused> {
        let Some(last) = run.records.len().checked_sub(1) else { return Ok(None) };
        self.row.encode(&run.records)?;
        let (seq, at, count) = (run.expected_seq + 1, commit.now, run.records.len());
        let (body, hashes) = (self.row.text()?, &self.row.hashes[..]);
        let digest = RowContent { run: run.run, seq, at, body, hashes }.digest();
        let hash = link(self.chain, &digest);
        let params = params![key, seq, count, at, body, hashes, &hash.0[..]];
        match self.statements.execute(Frequent::InsertLog, params) {
            Err(error) if is_missing(&error) => return Err(Refused::Stale(run.run)),
            inserted => inserted?,
        };
        *self.chain = hash;
        *self.last_row = self.statements.connection.last_insert_rowid();
        let index = u32::try_from(last).map_err(|error| StoreError::Other(error.to_string()))?;
        Ok(Some(Cursor::new(*self.last_row, index)))
    }

    fn insert_run(&mut self, run: &RunCommit, new: &NewRun, commit: &Commit) -> Result<i64, Refused> {
        let connection = self.statements.connection;
        let parent = match &new.parent {
            Some((id, parent)) => Some((self.keys.get(connection, *id)?, parent)),
            None => None,
        };
        let inputs = self.store_inputs(&new.inputs)?;
        // The run is inserted as pending. If it ended with its first decision, the update below sets its end.
        let pending = RunState { status: RunStatus::Pending, active: false };
        let state = if run.after.status.is_terminal() { pending } else { run.after };
        let params = params![
            run.run.to_string(),
            new.definition,
            state.status.name(),
            state.active,
            new.principal.id,
            serde_json::to_string(&new.principal).map_err(StoreError::from)?,
            parent.map(|(key, _)| key),
            parent.map(|(_, parent)| parent.n),
            parent.map(|(_, parent)| parent.attempt),
            parent.map_or(0, |(_, parent)| parent.depth),
            new.rerun.as_ref().map(serde_json::to_string).transpose().map_err(StoreError::from)?,
            new.interruptible,
            new.request_key,
            inputs.inline,
            inputs.id,
            commit.now,
            run.stored_bytes
        ];
        match self.statements.execute(Frequent::InsertRun, params) {
            Err(error) if is_duplicate(&error) => return Err(self.duplicate_run(run.run, new)?),
            Err(error) if is_missing(&error) => {
                return Err(StoreError::Corrupt("the definition of a run is missing".to_owned()).into());
            }
            inserted => inserted?,
        };
        let key = connection.last_insert_rowid();
        self.keys.insert(run.run, key);
        Ok(key)
    }

    /// Stores the inputs of a run before the run. The row of a large value contains the key that the run will get.
    fn store_inputs<'p>(&self, inputs: &'p Payload) -> Result<StoredValue<'p>, StoreError> {
        if StoredValue::is_inline(inputs) {
            return Ok(StoredValue { inline: Some(inputs.json()), id: None });
        }
        let sql = "SELECT 1 + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'runs'), 0)";
        let next: i64 = self.statements.connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        StoredValue::of(self.statements.connection, next, Some(inputs))
    }

    /// Why a run cannot be inserted: its id or its request key exists.
    fn duplicate_run(&mut self, run: RunId, new: &NewRun) -> Result<Refused, StoreError> {
        Ok(match &new.request_key {
            Some(key) if self.keys.find(self.statements.connection, run)?.is_none() => {
                Refused::Conflict(Conflict::RequestKey(key.clone()))
            }
            _ => Refused::Stale(run),
        })
    }

    fn update_run(&mut self, key: i64, run: &RunCommit, commit: &Commit) -> Result<(), StoreError> {
        let ended_at = run.after.status.is_terminal().then_some(commit.now);
        let (output, error) = projection::end_of(run)?;
        let output = StoredValue::of(self.statements.connection, key, output)?;
        let params = params![
            key,
            run.after.status.name(),
            run.after.active,
            ended_at,
            output.inline,
            output.id,
            error,
            run.stored_bytes
        ];
        match self.statements.execute(Frequent::UpdateRun, params)? {
            1 => Ok(()),
            _ => Err(StoreError::Corrupt(format!("run {} is missing", run.run))),
        }
    }

    fn apply_schedule(&mut self, change: &ScheduleChange) -> Result<(), Refused> {
        match change {
            ScheduleChange::Put(schedule, by) => {
                schedules::put(self.connection(), schedule)?;
                let (name, definition) = (schedule.name.clone(), schedule.definition.clone());
                let action = |_| AdminAction::ScheduleStored { name, definition };
                self.record(by.as_ref(), RowKind::Schedule, [schedule.name.clone()], action)?;
                if let (None, Some(Fired { run: None, error: Some(reason), .. })) = (by, &schedule.last) {
                    let (name, reason) = (schedule.name.clone(), reason.clone());
                    self.actions.push(AdminEvent::new(AdminAction::ScheduleMissed { name, reason }, None));
                }
            }
            ScheduleChange::Delete(name, by) => {
                if !schedules::remove(self.connection(), name)? {
                    return Err(Refused::Conflict(Conflict::NoSchedule(name.clone())));
                }
                let action = AdminAction::ScheduleDeleted { name: name.clone() };
                self.record(by.as_ref(), RowKind::Schedule, [name.clone()], |_| action)?;
            }
            ScheduleChange::Refuse(name, message) => {
                schedules::refuse(self.connection(), name, message)?;
                let action = AdminAction::ScheduleMissed { name: name.clone(), reason: message.clone() };
                self.actions.push(AdminEvent::new(action, None));
            }
        }
        Ok(())
    }

    fn apply_registry(&mut self, change: &RegistryChange, commit: &Commit) -> Result<(), StoreError> {
        let connection = self.connection();
        let run = |sql: &str, params: &[&dyn rusqlite::ToSql]| {
            connection.prepare_cached(sql).and_then(|mut statement| statement.execute(params))
        };
        match change {
            RegistryChange::PutAccount(account, by) => {
                let sql = "INSERT INTO accounts (kind, id, body_json) VALUES (?1, ?2, ?3)
                           ON CONFLICT (kind, id) DO UPDATE SET body_json = ?3";
                run(sql, params![account.kind.name(), account.id, account.body])?;
                let Account { kind, id, body } = account;
                let action = |is_new| AdminAction::account_stored(*kind, id, body, is_new);
                self.record(by.as_ref(), (*kind).into(), [id.clone()], action)?;
            }
            RegistryChange::DropAccount(kind, id, by) => {
                run("DELETE FROM accounts WHERE kind = ?1 AND id = ?2", params![kind.name(), id])?;
                let action = |_| AdminAction::account_deleted(*kind, id);
                self.record(by.as_ref(), (*kind).into(), [id.clone()], action)?;
            }
            RegistryChange::PutSession(session) => {
                let sql = "INSERT INTO sessions (id, user, state_json, created_at) VALUES (?1, ?2, ?3, ?4)
                           ON CONFLICT (id) DO UPDATE SET state_json = ?3 WHERE user = ?2";
                run(sql, params![session.id, session.user, session.state, commit.now])?;
                let sql = "DELETE FROM sessions WHERE id IN
                           (SELECT id FROM sessions ORDER BY created_at DESC LIMIT 100 OFFSET ?1)";
                run(sql, params![SESSIONS])?;
            }
            RegistryChange::DropSession(id) => {
                run("DELETE FROM sessions WHERE id = ?1", params![id])?;
            }
        }
        Ok(())
    }
}

pub(super) fn is_duplicate(error: &rusqlite::Error) -> bool {
    use rusqlite::ffi::{SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE};
    matches!(violated_constraint(error), Some(SQLITE_CONSTRAINT_UNIQUE | SQLITE_CONSTRAINT_PRIMARYKEY))
}

/// Whether a column that must not be null got no value: the row that it is taken from is missing.
fn is_missing(error: &rusqlite::Error) -> bool {
    violated_constraint(error) == Some(rusqlite::ffi::SQLITE_CONSTRAINT_NOTNULL)
}

/// The kind of a violated constraint, as the extended code of SQLite.
fn violated_constraint(error: &rusqlite::Error) -> Option<i32> {
    let is_violation = error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation);
    error.sqlite_error().filter(|_| is_violation).map(|error| error.extended_code)
}
