//! The writer: [`Store`] on SQLite. `commit.rs` applies commits; this file implements the loads.

use std::sync::Arc;

use rusqlite::{Row, params};
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Millis, Payload, TimerKind};

use super::{SqliteStore, definitions, key_results, policy, rows, run_rows, schedules};
use crate::{
    Approval, ClaimKey, ClaimState, Commit, Committed, Cursor, Definition, DefinitionQuery, Due, Head,
    Health, Refused, RowContent, RowKind, RunId, RunState, Store, StoreError, StoredEvent, Timer, Unfinished,
    Upkeep, Wanted, link, log_row,
};

impl SqliteStore {
    pub(super) fn one<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut found = statement.query(params)?;
        found.next()?.map(read).transpose()
    }

    pub(super) fn all<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        rows::all(&self.connection, sql, params, read)
    }

    /// The integer key of a run.
    fn find_key(&mut self, run: RunId) -> Result<Option<i64>, StoreError> {
        self.keys.find(&self.connection, run)
    }

    fn key(&mut self, run: RunId) -> Result<i64, StoreError> {
        self.keys.get(&self.connection, run)
    }

    /// The value that an event contains.
    fn event_value(&mut self, run: RunId, seq: u64) -> Result<Payload, StoreError> {
        let key = self.key(run)?;
        let row = self.one(SELECT_LOG_ROW, params![key, seq], |row| {
            let (body, hashes) = rows::log_body(row, 1)?;
            Ok((row.get::<_, u64>(0)?, log_row::events(body, hashes)?))
        })?;
        let found = row.and_then(|(first, mut events)| {
            let index = usize::try_from(seq.checked_sub(first)?).ok()?;
            (index < events.len()).then(|| events.swap_remove(index))
        });
        match found {
            Some(
                Event::SignalReceived { payload: value, .. }
                | Event::ArgumentsEdited { args: value, .. }
                | Event::ValueSet { value, .. },
            ) => Ok(Payload::new(value)),
            _ => Err(StoreError::Corrupt(format!("event {seq} of run {run} contains no value"))),
        }
    }
}

const SELECT_HEAD: &str =
    "SELECT r.definition_id, r.principal_json, p.run_id, r.parent_n, r.parent_attempt, r.depth,
    r.rerun_json, r.status, r.active, r.stored_bytes FROM runs r LEFT JOIN runs p ON p.id = r.parent_id WHERE r.run_id = ?1";
const SELECT_LOG: &str = "SELECT l.id, l.seq, l.at, l.body, l.hashes, l.hash,
    (SELECT b.hash FROM workflow_log b WHERE b.id = l.id - 1) FROM workflow_log l WHERE l.run_id = ?1 ORDER BY l.seq";
const SELECT_LOG_ROW: &str = "SELECT seq, body, hashes FROM workflow_log WHERE run_id = ?1 AND seq <= ?2
    ORDER BY seq DESC LIMIT 1";
const SELECT_INPUTS: &str =
    "SELECT coalesce(input_json, (SELECT v.json FROM run_values v WHERE v.id = input_value))
    FROM runs WHERE id = ?1";
const SELECT_RESULT: &str =
    "SELECT coalesce(output_json, (SELECT v.json FROM run_values v WHERE v.id = output_value))
    FROM runs WHERE id = ?1";
const SELECT_INPUT: &str =
    "SELECT coalesce(input_json, (SELECT v.json FROM run_values v WHERE v.id = input_value))
    FROM step_runs WHERE run_id = ?1 AND n = ?2 AND (input_json IS NOT NULL OR input_value IS NOT NULL)
    ORDER BY attempt DESC LIMIT 1";
const SELECT_OUTPUT: &str =
    "SELECT coalesce(output_json, (SELECT v.json FROM run_values v WHERE v.id = output_value))
    FROM step_runs WHERE run_id = ?1 AND n = ?2 AND status = 'done'";
const SELECT_ERROR: &str =
    "SELECT error_json FROM step_runs WHERE run_id = ?1 AND n = ?2 ORDER BY attempt DESC LIMIT 1";
const SELECT_REQUEST: &str = "SELECT run_id FROM runs WHERE created_by = ?1 AND request_key = ?2";
const SELECT_TIMERS: &str =
    "SELECT r.run_id, a.n, a.kind, a.due_at FROM alarms a JOIN runs r ON r.id = a.run_id
    WHERE a.held = 0 AND a.due_at <= ?1 ORDER BY a.due_at LIMIT ?2";
const SELECT_WAITING: &str = "SELECT r.run_id, w.n FROM workflow_waits w JOIN runs r ON r.id = w.run_id
    WHERE w.event = ?1 ORDER BY w.run_id, w.n";
const SELECT_CLAIM: &str = "SELECT args_hash, result_json, run_id, n, log_row FROM idempotency_keys
    WHERE scope = ?1 AND tool = ?2 AND key = ?3 AND (expires_at IS NULL OR expires_at > ?4)";
const SELECT_ACTIVE: &str = "SELECT run_id FROM runs WHERE active = 1 AND id > ?1 ORDER BY id LIMIT ?2";
const SELECT_INTERRUPTIBLE: &str = "SELECT run_id FROM runs WHERE interruptible = 1 AND completed_at IS NULL
    AND status <> 'interrupted' AND id > ?1 ORDER BY id LIMIT ?2";
const SELECT_UNFINISHED: &str =
    "SELECT run_id FROM runs WHERE completed_at IS NULL AND status <> 'interrupted'
    AND id > ?1 ORDER BY id LIMIT ?2";
const SELECT_ALL_UNFINISHED: &str =
    "SELECT run_id FROM runs WHERE completed_at IS NULL AND id > ?1 ORDER BY id LIMIT ?2";
const SELECT_CHILDREN: &str =
    "SELECT run_id FROM runs WHERE parent_id = ?3 AND completed_at IS NULL AND id > ?1
    ORDER BY id LIMIT ?2";

impl Store for SqliteStore {
    fn commit(&mut self, commit: &Commit) -> Result<Committed, Refused> {
        self.apply(commit)
    }

    fn secret(&mut self) -> Result<[u8; 32], StoreError> {
        let sql =
            "INSERT OR IGNORE INTO steprail_meta (key, value) VALUES ('secret', lower(hex(randomblob(32))))";
        self.connection.execute(sql, [])?;
        let sql = "SELECT value FROM steprail_meta WHERE key = 'secret'";
        let text: String = self.connection.query_row(sql, [], |row| row.get(0))?;
        rows::hash_from_text(&text).map(|hash| hash.0)
    }

    fn head(&mut self, run: RunId) -> Result<Option<Head>, StoreError> {
        self.one(SELECT_HEAD, [run.to_string()], |row| {
            let parent: Option<String> = row.get(2)?;
            let parent = parent.as_deref().map(rows::run_id).transpose()?;
            let step: (Option<u32>, Option<u32>) = (row.get(3)?, row.get(4)?);
            let rerun: Option<String> = row.get(6)?;
            Ok(Head {
                id: run,
                definition: row.get(0)?,
                principal: Arc::new(serde_json::from_str(row.get_ref(1)?.as_str().map_err(rows::damaged)?)?),
                parent: parent.zip(step.0.zip(step.1)).map(|(parent, (n, attempt))| (parent, n, attempt)),
                depth: row.get(5)?,
                rerun: rerun.map(|rerun| serde_json::from_str(&rerun)).transpose()?,
                state: RunState {
                    status: rows::status(row.get_ref(7)?.as_str().map_err(rows::damaged)?)?,
                    active: row.get(8)?,
                },
                stored_bytes: row.get(9)?,
            })
        })
    }

    fn log(&mut self, run: RunId) -> Result<Vec<StoredEvent>, StoreError> {
        let key = self.key(run)?;
        let mut events = Vec::new();
        let changed = |seq: u64| StoreError::Corrupt(format!("event {seq} of run {run} was changed"));
        self.all(SELECT_LOG, [key], |row| {
            let (id, seq, at) = (row.get(0)?, row.get::<_, u64>(1)?, row.get(2)?);
            let (body, hashes) = rows::log_body(row, 3)?;
            let hash = rows::hash_from_bytes(row.get_ref(5)?.as_blob().map_err(rows::damaged)?)?;
            let before = row.get_ref(6)?.as_blob_or_null().map_err(rows::damaged)?;
            let before = before.map_or(Ok(Hash([0; 32])), rows::hash_from_bytes)?;
            let digest = RowContent { run, seq, at, body, hashes }.digest();
            if link(&before, &digest) != hash || seq != events.len() as u64 + 1 {
                return Err(changed(seq));
            }
            for (index, event) in (0..).zip(log_row::events(body, hashes)?) {
                let (cursor, seq) = (Cursor::new(id, index), seq + u64::from(index));
                events.push(StoredEvent { cursor, run, seq, at, event, hash });
            }
            Ok(())
        })?;
        if let Some(first) = events.first() {
            run_rows::check(&self.connection, key, &first.event)?;
        }
        Ok(events)
    }

    fn value(&mut self, run: RunId, wanted: Wanted) -> Result<Payload, StoreError> {
        let key = self.key(run)?;
        let text = |row: &Row<'_>| Ok(row.get::<_, Option<String>>(0)?);
        let found = match wanted {
            Wanted::Inputs => self.one(SELECT_INPUTS, [key], text)?,
            Wanted::Result => self.one(SELECT_RESULT, [key], text)?,
            Wanted::Input(n) => self.one(SELECT_INPUT, params![key, n], text)?,
            Wanted::Output(n) => self.one(SELECT_OUTPUT, params![key, n], text)?,
            Wanted::Error(n) => self.one(SELECT_ERROR, params![key, n], text)?,
            Wanted::EventValue(seq) => return self.event_value(run, seq),
        };
        match found.flatten() {
            Some(text) => Ok(Payload::parse(&text)?),
            None => Err(StoreError::Corrupt(format!("run {run} has no {wanted:?}"))),
        }
    }

    fn definition(&mut self, which: DefinitionQuery<'_>) -> Result<Option<Definition>, StoreError> {
        let Some((definition, content)) = definitions::find_bound(&self.connection, which)? else {
            return Ok(None);
        };
        self.check_bound(RowKind::Definition, &definition.id.to_string(), content)?;
        Ok(Some(definition))
    }

    fn request(&mut self, by: &str, request_key: &str) -> Result<Option<RunId>, StoreError> {
        self.one(SELECT_REQUEST, [by, request_key], first_run)
    }

    fn unfinished(
        &mut self,
        which: Unfinished,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        let after = after.map(|run| self.find_key(run)).transpose()?.flatten().unwrap_or(0);
        let sql = match which {
            Unfinished::Active => SELECT_ACTIVE,
            Unfinished::Interruptible => SELECT_INTERRUPTIBLE,
            Unfinished::All => SELECT_UNFINISHED,
            Unfinished::WithInterrupted => SELECT_ALL_UNFINISHED,
            Unfinished::ChildrenOf(parent) => {
                let Some(parent) = self.find_key(parent)? else { return Ok(Vec::new()) };
                return self.all(SELECT_CHILDREN, params![after, limit, parent], first_run);
            }
        };
        self.all(sql, params![after, limit], first_run)
    }

    fn due(&mut self, now: Millis, limit: usize) -> Result<Due, StoreError> {
        let timers = self.all(SELECT_TIMERS, params![now, limit], |row| {
            let word: String = row.get(2)?;
            let kind = TimerKind::from_name(&word)
                .ok_or_else(|| StoreError::Corrupt(format!("`{word}` is not a kind of timer")))?;
            Ok(Timer { run: first_run(row)?, n: row.get(1)?, kind, due: row.get(3)? })
        })?;
        let mut due = Due { timers, ..Due::default() };
        for found in schedules::due(&self.connection, now, limit)? {
            let is_bound = self.check_bound(RowKind::Schedule, &found.name, found.content);
            match is_bound.and(found.schedule) {
                Ok(schedule) => due.schedules.push(schedule),
                Err(StoreError::Corrupt(_)) => due.refused_schedules.push((found.name, found.due)),
                Err(error) => return Err(error),
            }
        }
        Ok(due)
    }

    fn waiting(&mut self, event: &str) -> Result<Vec<(RunId, u32)>, StoreError> {
        self.all(SELECT_WAITING, [event], |row| Ok((first_run(row)?, row.get(1)?)))
    }

    fn claim(&mut self, key: &ClaimKey, now: Millis) -> Result<ClaimState, StoreError> {
        let found = self.one(SELECT_CLAIM, params![key.scope, key.tool, key.key, now], |row| {
            let args = rows::hash_from_text(row.get_ref(0)?.as_str().map_err(rows::damaged)?)?;
            let output: Option<String> = row.get(1)?;
            if let Some(output) = &output {
                key_results::check(&self.connection, key, output, row)?;
            }
            Ok(match output {
                None => ClaimState::Held { args },
                Some(output) => ClaimState::Done { args, output: Payload::parse(&output)? },
            })
        })?;
        Ok(found.unwrap_or(ClaimState::Free))
    }

    fn approval(&mut self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError> {
        let sql = format!(
            "SELECT {} FROM approvals a JOIN runs r ON r.id = a.run_id
             WHERE r.run_id = ?1 AND a.path = ?2 ORDER BY a.id DESC LIMIT 1",
            rows::APPROVAL
        );
        self.one(&sql, params![run.to_string(), path], rows::approval)
    }

    fn counter(&mut self, subject: &str, rule: &str, start: Millis) -> Result<u64, StoreError> {
        policy::counter(&self.connection, subject, rule, start)
    }

    fn maintain(&mut self, task: Upkeep) -> Result<Health, StoreError> {
        self.files.as_mut().map_or(Ok(Health::default()), |files| files.maintain(&self.connection, task))
    }
}

/// The run id in the first column.
fn first_run(row: &Row<'_>) -> Result<RunId, StoreError> {
    rows::run_id(row.get_ref(0)?.as_str().map_err(rows::damaged)?)
}
