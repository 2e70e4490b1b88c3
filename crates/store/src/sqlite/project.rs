//! Projection of events into rows. Rows are derived from the log alone.

use rusqlite::{Connection, params};
use steprail_core::run::{
    Changes, Event, GateChange, GateRequest, Millis, Payload, Record, RunStatus, StepChange, StepInfo,
    StepRef, StepStatus, TimerKind, ValueChange,
};

use crate::StoreError;

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

/// The rows of one run, while events are projected onto them.
pub(super) struct Rows<'r> {
    pub connection: &'r Connection,
    /// The key of the run.
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
const INSERT_APPROVAL: &str =
    "INSERT INTO approvals (run_id, user, n, path, status, digest, prompt, tool, args_json,
    args_value, notify_json, requested_at, expires_at, form_json)
    SELECT ?1, created_by, ?2, ?3, 'open', ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12 FROM runs WHERE id = ?1";

impl Rows<'_> {
    pub(super) fn project(&mut self, record: &Record, before: RunStatus) -> Result<(), StoreError> {
        let Changes { run, step, value } = record.event.changes();
        if let Some(change) = step {
            self.reset(record, &change)?;
            self.project_step(record, &change, value)?;
        }
        match run.status {
            Some(RunStatus::Interrupted) => self.hold_timers(true),
            Some(RunStatus::Running) if before == RunStatus::Interrupted => self.hold_timers(false),
            _ => Ok(()),
        }
    }

    fn project_step(
        &self,
        record: &Record,
        change: &StepChange<'_>,
        value: Option<ValueChange>,
    ) -> Result<(), StoreError> {
        let step = change.step;
        let (mut input, mut output) = (StoredValue::default(), StoredValue::default());
        match value {
            Some(ValueChange::StepInput(_)) => input = self.value(record)?,
            Some(ValueChange::StepOutput(_)) => output = self.value(record)?,
            Some(ValueChange::RunInputs(_) | ValueChange::RunOutput(_)) | None => {}
        }
        let error = change.error.map(serde_json::to_string).transpose()?;
        match (change.info, change.status) {
            (Some(place), Some(status)) => {
                self.upsert(step, place, status, (change.tool, input, error.as_deref()))?;
            }
            (None, Some(status)) if status.is_end() => self.end(step, status, output, error.as_deref())?,
            (None, Some(status)) => self.status(step, status, input, error.as_deref())?,
            (_, None) => {}
        }
        if let Some(due) = change.retry_at {
            self.next_attempt(step, due)?;
        }
        match &change.gate {
            Some(GateChange::Requested(request)) => self.ask(step, request, input)?,
            Some(GateChange::Decided(decision)) => {
                self.answer(step, decision.outcome.into(), decision.by, decision.reason)?;
            }
            Some(GateChange::Escalated { .. }) | None => {}
        }
        change.timers().try_for_each(|(kind, due)| self.set_timer(step.n, kind, due))?;
        change.wait.map_or(Ok(()), |event| self.wait(step.n, event))
    }

    fn value<'p>(&self, record: &'p Record) -> Result<StoredValue<'p>, StoreError> {
        StoredValue::of(self.connection, self.run, record.payload.as_ref())
    }

    /// Removes the rows of a step that become void with an event.
    fn reset(&mut self, record: &Record, change: &StepChange<'_>) -> Result<(), StoreError> {
        let step = change.step;
        if !change.clears_waits {
            return Ok(());
        }
        if record.had_timer {
            self.by_step("DELETE FROM alarms WHERE run_id = ?1 AND n = ?2", step.n)?;
        }
        if record.had_wait {
            self.by_step("DELETE FROM workflow_waits WHERE run_id = ?1 AND n = ?2", step.n)?;
        }
        if record.had_gate && !matches!(change.gate, Some(GateChange::Decided(_))) {
            let status = if change.ends() { "cancelled" } else { "superseded" };
            self.answer(step, status, None, None)?;
        }
        if record.had_claim.is_some() && change.ends() {
            self.settle_key(step.n, record)?;
        }
        Ok(())
    }

    fn by_step(&self, sql: &str, n: u32) -> Result<usize, StoreError> {
        Ok(self.connection.prepare_cached(sql)?.execute(params![self.run, n])?)
    }

    fn upsert(
        &self,
        step: &StepRef,
        place: &StepInfo,
        status: StepStatus,
        (tool, input, error): (Option<&str>, StoredValue<'_>, Option<&str>),
    ) -> Result<(), StoreError> {
        let is_ready = status == StepStatus::Ready;
        let changed = self.connection.prepare_cached(UPSERT_STEP)?.execute(params![
            self.run,
            step.n,
            step.attempt,
            &*step.path,
            (*place.id != *step.path).then_some(&*place.id),
            &*place.kind,
            tool,
            status.word(),
            input.inline,
            input.id,
            is_ready.then_some(self.now),
            (!is_ready).then_some(self.now),
            error
        ])?;
        one_row(changed, "a step that ended began again")
    }

    fn status(
        &self,
        step: &StepRef,
        status: StepStatus,
        input: StoredValue<'_>,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        let changed = self.connection.prepare_cached(UPDATE_STEP)?.execute(params![
            self.run,
            step.n,
            step.attempt,
            status.word(),
            input.is_none(),
            input.inline,
            input.id,
            error
        ])?;
        one_row(changed, "a step that ended changed")
    }

    fn end(
        &self,
        step: &StepRef,
        status: StepStatus,
        output: StoredValue<'_>,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        let changed = self.connection.prepare_cached(END_STEP)?.execute(params![
            self.run,
            step.n,
            step.attempt,
            status.word(),
            output.inline,
            output.id,
            error,
            self.now
        ])?;
        one_row(changed, "a step ended twice")
    }

    fn next_attempt(&self, failed: &StepRef, due: Millis) -> Result<(), StoreError> {
        let params = params![self.run, failed.n, failed.attempt, due];
        let changed = self.connection.prepare_cached(INSERT_NEXT_ATTEMPT)?.execute(params)?;
        one_row(changed, "an attempt without the one before")
    }

    fn set_timer(&self, n: u32, kind: TimerKind, due: Millis) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO alarms (run_id, n, kind, due_at) VALUES (?1, ?2, ?3, ?4)";
        self.connection.prepare_cached(sql)?.execute(params![self.run, n, kind.word(), due])?;
        Ok(())
    }

    fn hold_timers(&self, held: bool) -> Result<(), StoreError> {
        let sql = "UPDATE alarms SET held = ?2 WHERE run_id = ?1";
        self.connection.prepare_cached(sql)?.execute(params![self.run, held])?;
        Ok(())
    }

    fn wait(&self, n: u32, event: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO workflow_waits (run_id, n, event) VALUES (?1, ?2, ?3)";
        self.connection.prepare_cached(sql)?.execute(params![self.run, n, event])?;
        Ok(())
    }

    fn ask(
        &self,
        step: &StepRef,
        request: &GateRequest<'_>,
        args: StoredValue<'_>,
    ) -> Result<(), StoreError> {
        let inserted = self.connection.prepare_cached(INSERT_APPROVAL)?.execute(params![
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
            request.form.map(serde_json::Value::to_string)
        ])?;
        one_row(inserted, "an approval without its run")
    }

    fn answer(
        &self,
        step: &StepRef,
        status: &str,
        by: Option<&str>,
        reason: Option<&str>,
    ) -> Result<(), StoreError> {
        let sql = "UPDATE approvals SET status = ?3, decided_at = ?4, decided_by = ?5, reason = ?6
                   WHERE run_id = ?1 AND n = ?2 AND status = 'open'";
        let changed = self
            .connection
            .prepare_cached(sql)?
            .execute(params![self.run, step.n, status, self.now, by, reason])?;
        one_row(changed, "a decision without an open question")
    }

    /// A step that held a key ended: its result is kept under the key, or the key is free again.
    fn settle_key(&self, n: u32, record: &Record) -> Result<(), StoreError> {
        if let (Event::StepCompleted { .. }, Some(output)) = (&record.event, &record.payload) {
            let sql = "UPDATE idempotency_keys SET status = 'done', result_json = ?3,
                       expires_at = ?4 + nullif(ttl_secs, 0) * 1000, log_row = ?5
                       WHERE run_id = ?1 AND n = ?2 AND status = 'claimed'";
            let changed = self.connection.prepare_cached(sql)?.execute(params![
                self.run,
                n,
                output.json(),
                self.now,
                self.log_row
            ])?;
            one_row(changed, "a key without its holder")
        } else {
            let sql = "DELETE FROM idempotency_keys WHERE run_id = ?1 AND n = ?2 AND status = 'claimed'";
            self.by_step(sql, n).map(drop)
        }
    }
}

/// A transition that finds no row to change must not be kept.
fn one_row(changed: usize, what: &str) -> Result<(), StoreError> {
    match changed {
        1 => Ok(()),
        _ => Err(StoreError::Corrupt(what.to_owned())),
    }
}
