//! The writer: [`Store`] on SQLite, with the retention of ended runs.

use rusqlite::{OptionalExtension, Row, params};
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Millis, Payload, Record, Run, TimerKind};

use super::files::OpenFiles;
use super::{SESSIONS, SqliteStore, rows, schedules};
use crate::{
    Account, AccountKind, Appended, Approval, ClaimKey, Definition, Head, Health, KeyState, Link,
    NewDefinition, NewRun, Pins, Purged, RunId, RunKey, Schedule, Session, Store, StoreError, StoredEvent,
    Timer, Upkeep, Wanted, link,
};

impl SqliteStore {
    fn one<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut found = statement.query(params)?;
        found.next()?.map(read).transpose()
    }

    fn all<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        rows::all(&self.connection, sql, params, read)
    }
}

impl Store for SqliteStore {
    fn begin(&mut self) -> Result<(), StoreError> {
        self.files.as_mut().map_or(Ok(()), OpenFiles::before_write)?;
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        Ok(())
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        self.committed_event = self.next_event;
        let last_event = self.next_event - 1;
        self.files.as_mut().map_or(Ok(()), |files| files.committed(&self.connection, last_event))
    }

    fn rollback(&mut self) {
        self.next_event = self.committed_event;
        // A failed statement may have ended the transaction already.
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }

    fn secret(&mut self) -> Result<[u8; 32], StoreError> {
        let sql =
            "INSERT OR IGNORE INTO steprail_meta (key, value) VALUES ('secret', lower(hex(randomblob(32))))";
        self.connection.execute(sql, [])?;
        let text: String =
            self.connection
                .query_row("SELECT value FROM steprail_meta WHERE key = 'secret'", [], |row| row.get(0))?;
        rows::hash_from_text(&text).map(|hash| hash.0)
    }

    fn define(&mut self, new: &NewDefinition<'_>) -> Result<Definition, StoreError> {
        if let Some(known) = self.known(new)? {
            return self.pin(known, new.pins);
        }
        let newest = "SELECT max(version) FROM workflow_definitions WHERE name = ?1";
        let newest = self.one(newest, [new.name], |row| Ok(row.get::<_, Option<u32>>(0)?))?;
        let version = newest.flatten().map_or(1, |newest| newest + 1);
        let sql = "INSERT INTO workflow_definitions (name, version, hash, spec_json, created_at, created_by, deleted_at,
                                                     published, pins_json)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        self.connection.prepare_cached(sql)?.execute(params![
            new.name,
            version,
            new.hash.to_string(),
            new.spec_json,
            new.now,
            new.by,
            new.hidden.then_some(new.now),
            new.published,
            serde_json::to_string(new.pins)?
        ])?;
        let id = self.connection.last_insert_rowid();
        self.definition(id)?.ok_or_else(|| StoreError::Other("a definition was not stored".to_owned()))
    }

    fn definition(&mut self, id: i64) -> Result<Option<Definition>, StoreError> {
        let sql = format!("SELECT {} FROM workflow_definitions WHERE id = ?1", rows::DEFINITION);
        self.one(&sql, [id], rows::definition)
    }

    fn find_definition(&mut self, name: &str, version: Option<u32>) -> Result<Option<i64>, StoreError> {
        const FOUND: &str = "SELECT id FROM workflow_definitions WHERE name = ?1 AND deleted_at IS NULL";
        let id = |row: &Row<'_>| Ok(row.get(0)?);
        match version {
            Some(version) => self.one(&format!("{FOUND} AND version = ?2"), params![name, version], id),
            None => self.one(&format!("{FOUND} ORDER BY version DESC LIMIT 1"), [name], id),
        }
    }

    fn delete_definition(&mut self, name: &str, now: Millis) -> Result<bool, StoreError> {
        let sql = "UPDATE workflow_definitions SET deleted_at = ?2 WHERE name = ?1 AND deleted_at IS NULL";
        Ok(self.connection.prepare_cached(sql)?.execute(params![name, now])? > 0)
    }

    fn create_run(&mut self, new: &NewRun<'_>) -> Result<RunKey, StoreError> {
        let parent = new.parent.as_ref();
        let sql = "INSERT INTO workflow_runs
                   (run_id, definition_id, status, active, created_by, principal_json, parent_id, parent_n,
                    parent_attempt, depth, rerun_json, interruptible, request_key, created_at, updated_at, seq,
                    head_hash)
                   VALUES (?1, ?2, 'pending', 0, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?12, 0, zeroblob(32))";
        self.connection.prepare_cached(sql)?.execute(params![
            new.id.to_string(),
            new.definition,
            new.principal.id,
            serde_json::to_string(new.principal)?,
            parent.map(|(key, _)| key.0),
            parent.map(|(_, parent)| parent.n),
            parent.map(|(_, parent)| parent.attempt),
            parent.map_or(0, |(_, parent)| parent.depth),
            new.rerun.map(serde_json::to_string).transpose()?,
            new.interruptible,
            new.request_key,
            new.now
        ])?;
        let key = self.connection.last_insert_rowid();
        let sql = "INSERT INTO workflow_inputs (run_id, input_json) VALUES (?1, ?2)";
        self.connection.prepare_cached(sql)?.execute(params![key, new.inputs.json()])?;
        Ok(RunKey(key))
    }

    fn find_run(&mut self, id: RunId) -> Result<Option<RunKey>, StoreError> {
        let sql = "SELECT id FROM workflow_runs WHERE run_id = ?1";
        self.one(sql, [id.to_string()], |row| Ok(RunKey(row.get(0)?)))
    }

    fn find_request(&mut self, by: &str, request_key: &str) -> Result<Option<RunId>, StoreError> {
        let sql = "SELECT run_id FROM workflow_runs WHERE created_by = ?1 AND request_key = ?2";
        self.one(sql, [by, request_key], |row| rows::run_id(row.get_ref(0)?.as_str().map_err(rows::damaged)?))
    }

    fn head(&mut self, run: RunKey) -> Result<Head, StoreError> {
        let sql = "SELECT run_id, definition_id, principal_json, parent_id, parent_n, parent_attempt, depth,
                   rerun_json, seq, head_hash, status, active FROM workflow_runs WHERE id = ?1";
        let found = self.one(sql, [run.0], |row| {
            let parent: Option<i64> = row.get(3)?;
            let step: (Option<u32>, Option<u32>) = (row.get(4)?, row.get(5)?);
            Ok(Head {
                key: run,
                id: rows::run_id(row.get_ref(0)?.as_str().map_err(rows::damaged)?)?,
                definition: row.get(1)?,
                principal: serde_json::from_str(row.get_ref(2)?.as_str().map_err(rows::damaged)?)?,
                parent: parent
                    .zip(step.0.zip(step.1))
                    .map(|(parent, (n, attempt))| (RunKey(parent), n, attempt)),
                depth: row.get(6)?,
                rerun: row
                    .get::<_, Option<String>>(7)?
                    .map(|text| serde_json::from_str(&text))
                    .transpose()?,
                seq: row.get(8)?,
                hash: rows::hash_from_bytes(row.get_ref(9)?.as_blob().map_err(rows::damaged)?)?,
                status: rows::status(row.get_ref(10)?.as_str().map_err(rows::damaged)?)?,
                active: row.get(11)?,
            })
        })?;
        found.ok_or_else(|| StoreError::Corrupt(format!("run {} is gone", run.0)))
    }

    fn children(&mut self, run: RunKey) -> Result<Vec<RunKey>, StoreError> {
        let sql = "SELECT id FROM workflow_runs WHERE parent_id = ?1 AND completed_at IS NULL";
        self.all(sql, [run.0], |row| Ok(RunKey(row.get(0)?)))
    }

    fn has_run(&mut self, run: RunKey) -> Result<bool, StoreError> {
        let found = self.one("SELECT 1 FROM workflow_runs WHERE id = ?1", [run.0], |_| Ok(()))?;
        Ok(found.is_some())
    }

    fn active_runs(&mut self, after: RunKey, limit: usize) -> Result<Vec<RunKey>, StoreError> {
        let sql = "SELECT id FROM workflow_runs WHERE active = 1 AND id > ?1 ORDER BY id LIMIT ?2";
        self.all(sql, params![after.0, limit], |row| Ok(RunKey(row.get(0)?)))
    }

    fn unfinished_runs(&mut self, all: bool, after: RunKey, limit: usize) -> Result<Vec<RunKey>, StoreError> {
        let sql = if all {
            "SELECT id FROM workflow_runs WHERE status IN ('pending', 'running', 'paused', 'interrupted') AND id > ?1
             ORDER BY id LIMIT ?2"
        } else {
            "SELECT id FROM workflow_runs WHERE interruptible = 1 AND completed_at IS NULL
             AND status <> 'interrupted' AND id > ?1 ORDER BY id LIMIT ?2"
        };
        self.all(sql, params![after.0, limit], |row| Ok(RunKey(row.get(0)?)))
    }

    fn append(
        &mut self,
        head: &mut Head,
        run: &Run,
        records: &[Record],
        now: Millis,
    ) -> Result<Appended, StoreError> {
        self.append_records(head, run, records, now)
    }

    fn events(&mut self, run: RunKey, after: u64) -> Result<Vec<StoredEvent>, StoreError> {
        let id = self.head(run)?.id;
        let sql = format!(
            "SELECT {} FROM workflow_events e WHERE e.run_id = ?1 AND e.seq > ?2 ORDER BY e.seq",
            rows::EVENT
        );
        let mut before = self.hash_of(run, after)?;
        self.all(&sql, params![run.0, after], |row| {
            let event = rows::event(id, row)?;
            let body = row.get_ref(3)?.as_str().map_err(rows::damaged)?;
            before = link(&before, Link { run: id, seq: event.seq, at: event.at, body });
            if before != event.hash {
                return Err(StoreError::Corrupt(format!("event {} of run {id} was changed", event.seq)));
            }
            Ok(event)
        })
    }

    fn payload(&mut self, run: RunKey, wanted: Wanted) -> Result<Payload, StoreError> {
        const STEP: &str = "FROM workflow_step_runs WHERE run_id = ?1 AND n = ?2";
        let text = |row: &Row<'_>| Ok(row.get::<_, Option<String>>(0)?);
        let key = run.0;
        let found = match wanted {
            Wanted::Inputs => {
                self.one("SELECT input_json FROM workflow_inputs WHERE run_id = ?1", [key], text)?
            }
            Wanted::Result => self.one("SELECT output_json FROM workflow_runs WHERE id = ?1", [key], text)?,
            Wanted::Input(n) => {
                let sql = format!(
                    "SELECT input_json {STEP} AND input_json IS NOT NULL ORDER BY attempt DESC LIMIT 1"
                );
                self.one(&sql, params![key, n], text)?
            }
            Wanted::Output(n) => {
                let sql = format!("SELECT output_json {STEP} AND status = 'done'");
                self.one(&sql, params![key, n], text)?
            }
            Wanted::Error(n) => {
                let sql = format!("SELECT error_json {STEP} ORDER BY attempt DESC LIMIT 1");
                self.one(&sql, params![key, n], text)?
            }
            Wanted::Noted(seq) => return self.noted(run, seq),
        };
        match found.flatten() {
            Some(text) => Ok(Payload::parse(&text)?),
            None => Err(StoreError::Corrupt(format!("run {key} has no {wanted:?}"))),
        }
    }

    fn results(&mut self, run: RunKey) -> Result<Vec<(String, Hash, u32)>, StoreError> {
        let sql = "SELECT path, input_json, n FROM workflow_step_runs
                   WHERE run_id = ?1 AND status = 'done' AND kind = 'tool'";
        self.all(sql, [run.0], |row| {
            let input: Option<String> = row.get(1)?;
            Ok((row.get(0)?, Hash::of(input.unwrap_or_default().as_bytes()), row.get(2)?))
        })
    }

    fn due_timers(&mut self, now: Millis, limit: usize) -> Result<Vec<Timer>, StoreError> {
        let sql = "SELECT run_id, n, kind, due_at FROM alarms WHERE held = 0 AND due_at <= ?1
                   ORDER BY due_at LIMIT ?2";
        self.all(sql, params![now, limit], |row| {
            let word: String = row.get(2)?;
            let kind = TimerKind::from_word(&word)
                .ok_or_else(|| StoreError::Corrupt(format!("`{word}` is no kind of timer")))?;
            Ok(Timer { run: RunKey(row.get(0)?), n: row.get(1)?, kind, due: row.get(3)? })
        })
    }

    fn next_timer(&mut self) -> Result<Option<Millis>, StoreError> {
        let sql = "SELECT due_at FROM alarms WHERE held = 0 ORDER BY due_at LIMIT 1";
        let timer = self.one(sql, [], |row| Ok(row.get(0)?))?;
        Ok([timer, schedules::next(&self.connection)?].into_iter().flatten().min())
    }

    fn drop_timer(&mut self, timer: &Timer) -> Result<bool, StoreError> {
        let sql = "DELETE FROM alarms WHERE run_id = ?1 AND n = ?2 AND kind = ?3 AND due_at = ?4";
        let key = params![timer.run.0, timer.n, timer.kind.word(), timer.due];
        Ok(self.connection.prepare_cached(sql)?.execute(key)? > 0)
    }

    fn waiting(&mut self, event: &str) -> Result<Vec<(RunKey, u32)>, StoreError> {
        let sql = "SELECT run_id, n FROM workflow_waits WHERE event = ?1 ORDER BY run_id, n";
        self.all(sql, [event], |row| Ok((RunKey(row.get(0)?), row.get(1)?)))
    }

    fn key(&mut self, key: &ClaimKey<'_>, now: Millis) -> Result<KeyState, StoreError> {
        let sql =
            "SELECT args_hash, result_json FROM idempotency_keys WHERE scope = ?1 AND tool = ?2 AND key = ?3
                   AND (expires_at IS NULL OR expires_at > ?4)";
        let found = self.one(sql, params![key.scope, key.tool, key.key, now], |row| {
            let args = rows::hash_from_text(row.get_ref(0)?.as_str().map_err(rows::damaged)?)?;
            let output: Option<String> = row.get(1)?;
            Ok(match output {
                None => KeyState::Held { args },
                Some(output) => KeyState::Done { args, output: Payload::parse(&output)? },
            })
        })?;
        Ok(found.unwrap_or(KeyState::Free))
    }

    fn take_key(&mut self, key: &ClaimKey<'_>) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO idempotency_keys (scope, tool, key, args_hash, run_id, n, status, ttl_secs)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'claimed', ?7)";
        self.connection.prepare_cached(sql)?.execute(params![
            key.scope,
            key.tool,
            key.key,
            key.args.to_string(),
            key.run.0,
            key.n,
            key.ttl_secs.and_then(|secs| i64::try_from(secs).ok())
        ])?;
        Ok(())
    }

    fn approval(&mut self, run: RunKey, path: &str) -> Result<Option<Approval>, StoreError> {
        let sql = format!(
            "SELECT {} FROM approvals a JOIN workflow_runs r ON r.id = a.run_id
             WHERE a.run_id = ?1 AND a.path = ?2 ORDER BY a.id DESC LIMIT 1",
            rows::APPROVAL
        );
        self.one(&sql, params![run.0, path], rows::approval)
    }

    fn put_schedule(&mut self, schedule: &Schedule) -> Result<(), StoreError> {
        schedules::put(&self.connection, schedule)
    }

    fn drop_schedule(&mut self, name: &str) -> Result<bool, StoreError> {
        schedules::remove(&self.connection, name)
    }

    fn put_session(&mut self, session: &Session, now: Millis) -> Result<(), StoreError> {
        let sql = "INSERT INTO sessions (id, user, state_json, created_at) VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT (id) DO UPDATE SET state_json = ?3 WHERE user = ?2";
        let values = params![session.id, session.user, session.state, now];
        self.connection.prepare_cached(sql)?.execute(values)?;
        let sql = "DELETE FROM sessions WHERE id IN
                   (SELECT id FROM sessions ORDER BY created_at DESC LIMIT 100 OFFSET ?1)";
        self.connection.prepare_cached(sql)?.execute([SESSIONS])?;
        Ok(())
    }

    fn drop_session(&mut self, id: &str) -> Result<(), StoreError> {
        self.connection.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id])?;
        Ok(())
    }

    fn put_account(&mut self, account: &Account) -> Result<(), StoreError> {
        let sql = "INSERT INTO accounts (kind, id, body_json) VALUES (?1, ?2, ?3)
                   ON CONFLICT (kind, id) DO UPDATE SET body_json = ?3";
        self.connection.prepare_cached(sql)?.execute([account.kind.word(), &account.id, &account.body])?;
        Ok(())
    }

    fn drop_account(&mut self, kind: AccountKind, id: &str) -> Result<(), StoreError> {
        let sql = "DELETE FROM accounts WHERE kind = ?1 AND id = ?2";
        self.connection.prepare_cached(sql)?.execute([kind.word(), id])?;
        Ok(())
    }

    fn due_schedules(&mut self, now: Millis, limit: usize) -> Result<Vec<Schedule>, StoreError> {
        schedules::due(&self.connection, now, limit)
    }

    fn purge(&mut self, before: Millis, now: Millis, limit: usize) -> Result<Purged, StoreError> {
        let runs = self.purge_runs(before, limit)?;
        let others = self.purge_definitions(limit)? + self.purge_expired(now, limit)?;
        Ok(Purged { runs, others })
    }

    fn maintain(&mut self, task: Upkeep) -> Result<Health, StoreError> {
        self.files.as_mut().map_or(Ok(Health::default()), |files| files.maintain(&self.connection, task))
    }
}

/// Every table with rows of a run, beside that of runs.
const TABLES: [&str; 6] =
    ["workflow_inputs", "workflow_events", "workflow_step_runs", "alarms", "workflow_waits", "approvals"];

impl SqliteStore {
    fn purge_runs(&mut self, before: Millis, limit: usize) -> Result<usize, StoreError> {
        // A run that another one waits for or repeats is kept until that one ended.
        let sql = "SELECT r.id FROM workflow_runs r WHERE r.completed_at < ?1
                   AND NOT EXISTS (SELECT 1 FROM workflow_runs p WHERE p.id = r.parent_id AND p.completed_at IS NULL)
                   AND r.id NOT IN (SELECT json_extract(w.rerun_json, '$.of') FROM workflow_runs w
                                    WHERE w.rerun_json IS NOT NULL AND w.completed_at IS NULL)
                   ORDER BY r.completed_at LIMIT ?2";
        let old = self.all(sql, params![before, limit], |row| Ok(row.get::<_, i64>(0)?))?;
        let sql = "INSERT OR REPLACE INTO steprail_meta (key, value) VALUES ('last_event', CAST(?1 AS TEXT))";
        self.connection.execute(sql, [self.next_event - 1])?;
        for run in &old {
            self.connection.prepare_cached("DELETE FROM workflow_runs WHERE id = ?1")?.execute([run])?;
            for table in TABLES {
                let sql = format!("DELETE FROM {table} WHERE run_id = ?1");
                self.connection.prepare_cached(&sql)?.execute([run])?;
            }
        }
        Ok(old.len())
    }

    fn purge_definitions(&self, limit: usize) -> Result<usize, StoreError> {
        let sql = "DELETE FROM workflow_definitions WHERE id IN (
                   SELECT d.id FROM workflow_definitions d WHERE d.deleted_at IS NOT NULL
                   AND NOT EXISTS (SELECT 1 FROM workflow_runs r WHERE r.definition_id = d.id) LIMIT ?1)";
        Ok(self.connection.prepare_cached(sql)?.execute([limit])?)
    }

    fn purge_expired(&self, now: Millis, limit: usize) -> Result<usize, StoreError> {
        let sql = "DELETE FROM idempotency_keys WHERE (scope, tool, key) IN (
                   SELECT scope, tool, key FROM idempotency_keys WHERE expires_at <= ?1 AND status = 'done'
                   LIMIT ?2)";
        Ok(self.connection.prepare_cached(sql)?.execute(params![now, limit])?)
    }
}

impl SqliteStore {
    /// A version that is what is to be stored: the newest that can be started, or one that a run brought along.
    fn known(&self, new: &NewDefinition<'_>) -> Result<Option<Definition>, StoreError> {
        let hidden = if new.hidden { "IS NOT NULL AND hash = ?2" } else { "IS NULL" };
        let sql = format!(
            "SELECT {} FROM workflow_definitions WHERE name = ?1 AND deleted_at {hidden}
             ORDER BY version DESC LIMIT 1",
            rows::DEFINITION
        );
        let known = if new.hidden {
            self.one(&sql, params![new.name, new.hash.to_string()], rows::definition)?
        } else {
            self.one(&sql, [new.name], rows::definition)?
        };
        let is_other = |(tool, hash): (&String, &Hash)| new.pins.get(tool).is_some_and(|now| now != hash);
        let same = |known: &Definition| known.hash == new.hash && !known.pins.iter().any(is_other);
        Ok(known.filter(same))
    }

    /// Adds what is known about tools now and was not when a version was stored.
    fn pin(&self, mut known: Definition, pins: &Pins) -> Result<Definition, StoreError> {
        if pins.keys().all(|tool| known.pins.contains_key(tool)) {
            return Ok(known);
        }
        known.pins.extend(pins.iter().map(|(tool, hash)| (tool.clone(), *hash)));
        let sql = "UPDATE workflow_definitions SET pins_json = ?2 WHERE id = ?1";
        self.connection
            .prepare_cached(sql)?
            .execute(params![known.id, serde_json::to_string(&known.pins)?])?;
        Ok(known)
    }

    /// The hash that the event after this one builds on.
    fn hash_of(&self, run: RunKey, seq: u64) -> Result<Hash, StoreError> {
        let sql = "SELECT hash FROM workflow_events WHERE run_id = ?1 AND seq = ?2";
        let found = self.one(sql, params![run.0, seq], |row| {
            rows::hash_from_bytes(row.get_ref(0)?.as_blob().map_err(rows::damaged)?)
        })?;
        Ok(found.unwrap_or(Hash([0; 32])))
    }

    /// The value that an event carries.
    fn noted(&self, run: RunKey, seq: u64) -> Result<Payload, StoreError> {
        let sql = "SELECT body FROM workflow_events WHERE run_id = ?1 AND seq = ?2";
        let body: Option<String> = self
            .connection
            .prepare_cached(sql)?
            .query_row(params![run.0, seq], |row| row.get(0))
            .optional()?;
        let event = body.map(|body| serde_json::from_str(&body)).transpose()?;
        match event {
            Some(
                Event::SignalReceived { payload: value, .. }
                | Event::ArgumentsEdited { args: value, .. }
                | Event::ValueSet { value, .. },
            ) => Ok(Payload::new(value)),
            _ => Err(StoreError::Corrupt(format!("event {seq} of run {} carries no value", run.0))),
        }
    }
}
