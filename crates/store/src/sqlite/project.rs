//! The rows of a run in SQLite, as `projection.rs` changes them. Rows are derived from the log alone.

use rusqlite::{Connection, params};
use steprail_core::run::{GateRequest, Millis, Payload, StepRef, StepStatus, TimerKind};

use super::commit::is_duplicate;
use super::statements::{Frequent, Statements};
use crate::projection::{RunRows, StepStart, one_row};
use crate::{NewClaim, Refused, StoreError};

/// Values up to this size, in bytes of JSON, are stored in the rows that refer to them.
const INLINE_BYTES: usize = 512;

/// A value as its row contains it: the text, or the id of its own row.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StoredValue<'p> {
    pub inline: Option<&'p str>,
    pub id: Option<i64>,
}

impl<'p> StoredValue<'p> {
    pub(super) fn is_inline(payload: &Payload) -> bool {
        payload.json().len() <= INLINE_BYTES
    }

    /// Stores a value of a run. A large one gets a row of its own.
    pub(super) fn of(
        connection: &Connection,
        run: i64,
        payload: Option<&'p Payload>,
    ) -> Result<Self, StoreError> {
        match payload {
            None => Ok(Self::default()),
            Some(payload) if Self::is_inline(payload) => Ok(Self { inline: Some(payload.json()), id: None }),
            Some(payload) => {
                let sql = "INSERT INTO run_values (run_id, json) VALUES (?1, ?2)";
                connection.prepare_cached(sql)?.execute(params![run, payload.json()])?;
                Ok(Self { inline: None, id: Some(connection.last_insert_rowid()) })
            }
        }
    }

    fn is_none(self) -> bool {
        self.inline.is_none() && self.id.is_none()
    }
}

/// The rows of one run, onto which events are projected.
pub(super) struct Rows<'t, 'c> {
    pub statements: &'t mut Statements<'c>,
    /// The integer key of the run.
    pub run: i64,
    pub now: Millis,
    /// The row of the log with the events.
    pub log_row: i64,
}

const UPSERT_STEP: &str = "INSERT INTO step_runs (run_id, n, attempt, path, step_id, kind, tool, status, input_json,
    input_value, ready_at, started_at, error_json)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
    ON CONFLICT (run_id, n, attempt) DO UPDATE SET status = excluded.status, tool = coalesce(excluded.tool, tool),
    input_json = iif(excluded.input_value IS NULL, coalesce(excluded.input_json, input_json), NULL),
    input_value = iif(excluded.input_json IS NULL, coalesce(excluded.input_value, input_value), NULL),
    ready_at = coalesce(ready_at, excluded.ready_at, started_at),
    started_at = excluded.started_at, error_json = excluded.error_json
    WHERE completed_at IS NULL";
const UPDATE_STEP: &str = "UPDATE step_runs SET status = ?4, input_json = iif(?5, input_json, ?6),
    input_value = iif(?5, input_value, ?7), error_json = ?8
    WHERE run_id = ?1 AND n = ?2 AND attempt = ?3 AND completed_at IS NULL";
const END_STEP: &str =
    "UPDATE step_runs SET status = ?4, output_json = ?5, output_value = ?6, error_json = ?7,
    completed_at = ?8 WHERE run_id = ?1 AND n = ?2 AND attempt = ?3 AND completed_at IS NULL";
const INSERT_NEXT_ATTEMPT: &str =
    "INSERT INTO step_runs (run_id, n, attempt, path, step_id, kind, tool, status, ready_at)
    SELECT run_id, n, attempt + 1, path, step_id, kind, tool, 'pending', ?4
    FROM step_runs WHERE run_id = ?1 AND n = ?2 AND attempt = ?3";
const INSERT_CLAIM: &str =
    "INSERT INTO idempotency_keys (scope, tool, key, args_hash, run_id, n, status, ttl_secs)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'claimed', ?7)
    ON CONFLICT (scope, tool, key) DO UPDATE SET args_hash = excluded.args_hash, run_id = excluded.run_id,
    n = excluded.n, status = 'claimed', result_json = NULL, ttl_secs = excluded.ttl_secs, expires_at = NULL
    WHERE status = 'done' AND expires_at <= ?8";
const INSERT_APPROVAL: &str =
    "INSERT INTO approvals (run_id, user, n, path, status, digest, prompt, tool, args_json,
    args_value, notify_json, requested_at, expires_at, form_json, subject_json)
    SELECT ?1, created_by, ?2, ?3, 'open', ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13 FROM runs WHERE id = ?1";

impl Rows<'_, '_> {
    fn by_step(&self, sql: &str, n: u32) -> Result<usize, StoreError> {
        Ok(self.statements.connection.prepare_cached(sql)?.execute(params![self.run, n])?)
    }
}

impl RunRows for Rows<'_, '_> {
    type Value<'p> = StoredValue<'p>;

    fn value<'p>(&mut self, payload: Option<&'p Payload>) -> Result<StoredValue<'p>, StoreError> {
        StoredValue::of(self.statements.connection, self.run, payload)
    }

    fn claim(&mut self, claim: &NewClaim) -> Result<(), Refused> {
        let inserted = self.statements.connection.prepare_cached(INSERT_CLAIM)?.execute(params![
            claim.key.scope,
            claim.key.tool,
            claim.key.key,
            claim.args.to_string(),
            self.run,
            claim.n,
            claim.ttl_secs.and_then(|secs| i64::try_from(secs).ok()),
            self.now
        ])?;
        if inserted == 1 { Ok(()) } else { Err(Refused::Held(claim.key.wait_name())) }
    }

    fn keep_result(&mut self, n: u32, output: &Payload) -> Result<(), StoreError> {
        let sql = "UPDATE idempotency_keys SET status = 'done', result_json = ?3,
                   expires_at = ?4 + nullif(ttl_secs, 0) * 1000, log_row = ?5
                   WHERE run_id = ?1 AND n = ?2 AND status = 'claimed'";
        let params = params![self.run, n, output.json(), self.now, self.log_row];
        one_row(self.statements.connection.prepare_cached(sql)?.execute(params)?, "a key without its holder")
    }

    fn release_key(&mut self, n: u32) -> Result<(), StoreError> {
        let sql = "DELETE FROM idempotency_keys WHERE run_id = ?1 AND n = ?2 AND status = 'claimed'";
        self.by_step(sql, n).map(drop)
    }

    fn clear_timers(&mut self, n: u32) -> Result<(), StoreError> {
        self.by_step("DELETE FROM alarms WHERE run_id = ?1 AND n = ?2", n).map(drop)
    }

    fn clear_wait(&mut self, n: u32) -> Result<(), StoreError> {
        self.by_step("DELETE FROM workflow_waits WHERE run_id = ?1 AND n = ?2", n).map(drop)
    }

    fn start_step(
        &mut self,
        step: &StepRef,
        start: StepStart<'_, StoredValue<'_>>,
    ) -> Result<(), StoreError> {
        let StepStart { info, status, tool, input, error } = start;
        // `step_id` is null where it equals `path`.
        let id = (*info.id != *step.path).then_some(&*info.id);
        if let (StepStatus::Running, "tool", Some(tool), Some(args), None) =
            (status, &*info.kind, tool, input.inline, error)
        {
            let params = params![self.run, step.n, step.attempt, &*step.path, id, tool, args, self.now];
            match self.statements.execute(Frequent::StartCall, params) {
                // The step has a row already, for example because it was ready.
                Err(error) if is_duplicate(&error) => {}
                inserted => return inserted.map(drop).map_err(StoreError::from),
            }
        }
        let is_ready = status == StepStatus::Ready;
        let changed = self.statements.connection.prepare_cached(UPSERT_STEP)?.execute(params![
            self.run,
            step.n,
            step.attempt,
            &*step.path,
            id,
            &*info.kind,
            tool,
            status.name(),
            input.inline,
            input.id,
            is_ready.then_some(self.now),
            (!is_ready).then_some(self.now),
            error
        ])?;
        one_row(changed, "a completed step started again")
    }

    fn change_step(
        &mut self,
        step: &StepRef,
        status: StepStatus,
        input: StoredValue<'_>,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        let changed = self.statements.connection.prepare_cached(UPDATE_STEP)?.execute(params![
            self.run,
            step.n,
            step.attempt,
            status.name(),
            input.is_none(),
            input.inline,
            input.id,
            error
        ])?;
        one_row(changed, "a completed step changed")
    }

    fn end_step(
        &mut self,
        step: &StepRef,
        status: StepStatus,
        output: StoredValue<'_>,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        if let (StepStatus::Done, Some(output), None) = (status, output.inline, error) {
            let params = params![self.run, step.n, step.attempt, output, self.now];
            let changed = self.statements.execute(Frequent::CompleteStep, params)?;
            return one_row(changed, "a step ended twice");
        }
        let changed = self.statements.connection.prepare_cached(END_STEP)?.execute(params![
            self.run,
            step.n,
            step.attempt,
            status.name(),
            output.inline,
            output.id,
            error,
            self.now
        ])?;
        one_row(changed, "a step ended twice")
    }

    fn next_attempt(&mut self, failed: &StepRef, due: Millis) -> Result<(), StoreError> {
        let params = params![self.run, failed.n, failed.attempt, due];
        let changed = self.statements.connection.prepare_cached(INSERT_NEXT_ATTEMPT)?.execute(params)?;
        one_row(changed, "an attempt without its previous attempt")
    }

    fn set_timer(&mut self, n: u32, kind: TimerKind, due: Millis) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO alarms (run_id, n, kind, due_at) VALUES (?1, ?2, ?3, ?4)";
        self.statements.connection.prepare_cached(sql)?.execute(params![self.run, n, kind.name(), due])?;
        Ok(())
    }

    fn hold_timers(&mut self, held: bool) -> Result<(), StoreError> {
        let sql = "UPDATE alarms SET held = ?2 WHERE run_id = ?1";
        self.statements.connection.prepare_cached(sql)?.execute(params![self.run, held])?;
        Ok(())
    }

    fn wait(&mut self, n: u32, event: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO workflow_waits (run_id, n, event) VALUES (?1, ?2, ?3)";
        self.statements.connection.prepare_cached(sql)?.execute(params![self.run, n, event])?;
        Ok(())
    }

    fn ask(
        &mut self,
        step: &StepRef,
        request: &GateRequest<'_>,
        args: StoredValue<'_>,
    ) -> Result<(), StoreError> {
        let inserted = self.statements.connection.prepare_cached(INSERT_APPROVAL)?.execute(params![
            self.run,
            step.n,
            &*step.path,
            request.digest.to_string(),
            request.prompt,
            request.tool,
            args.inline,
            args.id,
            serde_json::to_string(request.notify)?,
            self.now,
            request.until,
            request.form.map(serde_json::Value::to_string),
            request.subject.map(serde_json::to_string).transpose()?
        ])?;
        one_row(inserted, "an approval without its run")
    }

    fn answer(
        &mut self,
        step: &StepRef,
        status: &str,
        by: Option<&str>,
        reason: Option<&str>,
    ) -> Result<(), StoreError> {
        let sql = "UPDATE approvals SET status = ?3, decided_at = ?4, decided_by = ?5, reason = ?6
                   WHERE run_id = ?1 AND n = ?2 AND status = 'open'";
        let changed = self
            .statements
            .connection
            .prepare_cached(sql)?
            .execute(params![self.run, step.n, status, self.now, by, reason])?;
        one_row(changed, "a decision without an open approval")
    }

    fn sign(&mut self, step: &StepRef, by: &str) -> Result<(), StoreError> {
        let sql = "UPDATE approvals SET signed_json = json_insert(signed_json, '$[#]', ?3)
                   WHERE run_id = ?1 AND n = ?2 AND status = 'open'";
        let changed =
            self.statements.connection.prepare_cached(sql)?.execute(params![self.run, step.n, by])?;
        one_row(changed, "an approval without an open request")
    }
}
