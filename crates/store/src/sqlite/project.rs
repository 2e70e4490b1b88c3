//! Projection of events into rows. Rows are derived from the log alone.

use rusqlite::params;
use steprail_core::run::{
    Changes, Event, GateChange, GateRequest, Millis, Payload, Record, Run, RunStatus, StepChange, StepInfo,
    StepRef, StepStatus, TimerKind, ValueChange,
};

use super::SqliteStore;
use crate::{Appended, Head, Link, RunKey, StoreError, link};

const INSERT_EVENT: &str =
    "INSERT INTO workflow_events (id, run_id, seq, at, body, hash) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

impl SqliteStore {
    pub(super) fn append_records(
        &mut self,
        head: &mut Head,
        run: &Run,
        records: &[Record],
        now: Millis,
    ) -> Result<Appended, StoreError> {
        let mut freed = Vec::new();
        self.insert_events(head, records, now)?;
        let mut rows = Rows { store: self, run: head.key, now, freed: &mut freed };
        records.iter().try_for_each(|record| rows.project(record, head.status))?;
        self.update_run(head, run, records, now)?;
        let last_event = (!records.is_empty()).then_some(self.next_event - 1);
        Ok(Appended { last_event, freed })
    }

    fn insert_events(&mut self, head: &mut Head, records: &[Record], now: Millis) -> Result<(), StoreError> {
        let mut insert = self.connection.prepare_cached(INSERT_EVENT)?;
        for record in records {
            self.body.clear();
            serde_json::to_writer(&mut self.body, &record.event)?;
            let body = str::from_utf8(&self.body).map_err(|error| StoreError::Other(error.to_string()))?;
            let seq = head.seq + 1;
            let hash = link(&head.hash, Link { run: head.id, seq, at: now, body });
            insert.execute(params![self.next_event, head.key.0, seq, now, body, &hash.0[..]])?;
            self.next_event += 1;
            head.seq = seq;
            head.hash = hash;
        }
        Ok(())
    }

    /// The row of the run after its events. What has an index is named only if it changed.
    fn update_run(
        &mut self,
        head: &mut Head,
        run: &Run,
        records: &[Record],
        now: Millis,
    ) -> Result<(), StoreError> {
        let current = records.iter().rev().find_map(|record| {
            let step = record.event.changes().step.filter(|step| step.begins)?;
            Some(&*step.step.path)
        });
        let (status, active) = (run.status(), run.is_active());
        let changed = if (status, active) == (head.status, head.active) {
            let sql = "UPDATE workflow_runs SET seq = ?2, head_hash = ?3, updated_at = ?4,
                       current_step = coalesce(?5, current_step), stored_bytes = ?6 WHERE id = ?1 AND seq < ?2";
            let params = params![head.key.0, head.seq, &head.hash.0[..], now, current, head.stored_bytes];
            self.connection.prepare_cached(sql)?.execute(params)?
        } else {
            let end = status.is_terminal().then_some(now);
            let last = records.last().map(|record| (record.event.changes(), &record.payload));
            let (output, error) = match &last {
                Some((Changes { value: Some(ValueChange::RunOutput(_)), .. }, payload)) => {
                    (payload.as_ref().map(Payload::json), None)
                }
                Some((changes, _)) => (None, changes.run.error),
                None => (None, None),
            };
            let error = error.map(serde_json::to_string).transpose()?;
            let sql = "UPDATE workflow_runs SET seq = ?2, head_hash = ?3, updated_at = ?4,
                       current_step = coalesce(?5, current_step), active = ?6, status = ?7, completed_at = ?8,
                       output_json = ?9, error_json = ?10, stored_bytes = ?11 WHERE id = ?1 AND seq < ?2";
            self.connection.prepare_cached(sql)?.execute(params![
                head.key.0,
                head.seq,
                &head.hash.0[..],
                now,
                current,
                active,
                status.word(),
                end,
                output,
                error,
                head.stored_bytes
            ])?
        };
        (head.status, head.active) = (status, active);
        one_row(changed, "the run has moved on without us")
    }
}

/// The rows of one run, while events are projected onto them.
struct Rows<'r> {
    store: &'r SqliteStore,
    run: RunKey,
    now: Millis,
    freed: &'r mut Vec<String>,
}

impl Rows<'_> {
    fn project(&mut self, record: &Record, before: RunStatus) -> Result<(), StoreError> {
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
        let payload = record.payload.as_ref().map(Payload::json);
        let input = payload.filter(|_| matches!(value, Some(ValueChange::StepInput(_))));
        let output = payload.filter(|_| matches!(value, Some(ValueChange::StepOutput(_))));
        let error = change.error.map(serde_json::to_string).transpose()?;
        match (change.place, change.status) {
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
            Some(GateChange::Requested(request)) => self.ask(step, request, payload)?,
            Some(GateChange::Decided(decision)) => {
                self.answer(step, decision.outcome.into(), decision.by, decision.reason)?;
            }
            Some(GateChange::Escalated { .. }) | None => {}
        }
        change.timers().try_for_each(|(kind, due)| self.set_timer(step.n, kind, due))?;
        change.wait.map_or(Ok(()), |event| self.wait(step.n, event))
    }

    /// Removes the rows of a step that become void with an event.
    fn reset(&mut self, record: &Record, change: &StepChange<'_>) -> Result<(), StoreError> {
        let step = change.step;
        if !change.resets {
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
        if record.had_claim && change.ends() {
            self.settle_key(step.n, record)?;
        }
        Ok(())
    }

    fn by_step(&self, sql: &str, n: u32) -> Result<usize, StoreError> {
        Ok(self.store.connection.prepare_cached(sql)?.execute(params![self.run.0, n])?)
    }

    fn upsert(
        &self,
        step: &StepRef,
        place: &StepInfo,
        status: StepStatus,
        (tool, input, error): (Option<&str>, Option<&str>, Option<&str>),
    ) -> Result<(), StoreError> {
        let started = (status != StepStatus::Ready).then_some(self.now);
        let sql = "INSERT INTO workflow_step_runs
                   (run_id, n, attempt, path, step_id, kind, tool, status, input_json, ready_at, started_at, error_json)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
                   ON CONFLICT (run_id, n, attempt) DO UPDATE SET status = excluded.status,
                   tool = coalesce(excluded.tool, tool), input_json = coalesce(excluded.input_json, input_json),
                   started_at = excluded.started_at, error_json = excluded.error_json
                   WHERE completed_at IS NULL";
        let changed = self.store.connection.prepare_cached(sql)?.execute(params![
            self.run.0,
            step.n,
            step.attempt,
            &*step.path,
            &*place.id,
            &*place.kind,
            tool,
            status.word(),
            input,
            self.now,
            started,
            error
        ])?;
        one_row(changed, "a step that ended began again")
    }

    fn status(
        &self,
        step: &StepRef,
        status: StepStatus,
        input: Option<&str>,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        let sql = "UPDATE workflow_step_runs SET status = ?4, input_json = coalesce(?5, input_json), error_json = ?6
                   WHERE run_id = ?1 AND n = ?2 AND attempt = ?3 AND completed_at IS NULL";
        let changed = self.store.connection.prepare_cached(sql)?.execute(params![
            self.run.0,
            step.n,
            step.attempt,
            status.word(),
            input,
            error
        ])?;
        one_row(changed, "a step that ended changed")
    }

    fn end(
        &self,
        step: &StepRef,
        status: StepStatus,
        output: Option<&str>,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        let sql =
            "UPDATE workflow_step_runs SET status = ?4, output_json = ?5, error_json = ?6, completed_at = ?7
                   WHERE run_id = ?1 AND n = ?2 AND attempt = ?3 AND completed_at IS NULL";
        let changed = self.store.connection.prepare_cached(sql)?.execute(params![
            self.run.0,
            step.n,
            step.attempt,
            status.word(),
            output,
            error,
            self.now
        ])?;
        one_row(changed, "a step ended twice")
    }

    fn next_attempt(&self, failed: &StepRef, due: Millis) -> Result<(), StoreError> {
        let sql =
            "INSERT INTO workflow_step_runs (run_id, n, attempt, path, step_id, kind, tool, status, ready_at)
                   SELECT run_id, n, attempt + 1, path, step_id, kind, tool, 'pending', ?4
                   FROM workflow_step_runs WHERE run_id = ?1 AND n = ?2 AND attempt = ?3";
        let changed = self.store.connection.prepare_cached(sql)?.execute(params![
            self.run.0,
            failed.n,
            failed.attempt,
            due
        ])?;
        one_row(changed, "an attempt without the one before")
    }

    fn set_timer(&self, n: u32, kind: TimerKind, due: Millis) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO alarms (run_id, n, kind, due_at) VALUES (?1, ?2, ?3, ?4)";
        self.store.connection.prepare_cached(sql)?.execute(params![self.run.0, n, kind.word(), due])?;
        Ok(())
    }

    fn hold_timers(&self, held: bool) -> Result<(), StoreError> {
        let sql = "UPDATE alarms SET held = ?2 WHERE run_id = ?1";
        self.store.connection.prepare_cached(sql)?.execute(params![self.run.0, held])?;
        Ok(())
    }

    fn wait(&self, n: u32, event: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO workflow_waits (run_id, n, event) VALUES (?1, ?2, ?3)";
        self.store.connection.prepare_cached(sql)?.execute(params![self.run.0, n, event])?;
        Ok(())
    }

    fn ask(&self, step: &StepRef, request: &GateRequest<'_>, args: Option<&str>) -> Result<(), StoreError> {
        let sql = "INSERT INTO approvals
                   (run_id, n, path, status, digest, prompt, tool, args_json, notify_json, requested_at, expires_at,
                    form_json)
                   VALUES (?1, ?2, ?3, 'open', ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
        self.store.connection.prepare_cached(sql)?.execute(params![
            self.run.0,
            step.n,
            &*step.path,
            request.digest.to_string(),
            request.prompt,
            request.tool,
            args,
            serde_json::to_string(request.notify)?,
            self.now,
            request.until,
            request.form.map(serde_json::Value::to_string)
        ])?;
        Ok(())
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
            .store
            .connection
            .prepare_cached(sql)?
            .execute(params![self.run.0, step.n, status, self.now, by, reason])?;
        one_row(changed, "a decision without an open question")
    }

    /// A step that held a key ended: its result is kept under the key, or the key is free again.
    fn settle_key(&mut self, n: u32, record: &Record) -> Result<(), StoreError> {
        let sql = "SELECT 'key:' || scope || ':' || tool || ':' || key FROM idempotency_keys
                   WHERE run_id = ?1 AND n = ?2 AND status = 'claimed'";
        let name: String =
            self.store.connection.prepare_cached(sql)?.query_row(params![self.run.0, n], |row| row.get(0))?;
        self.freed.push(name);
        if let (Event::StepCompleted { .. }, Some(output)) = (&record.event, &record.payload) {
            let sql = "UPDATE idempotency_keys SET status = 'done', result_json = ?3,
                       expires_at = ?4 + nullif(ttl_secs, 0) * 1000
                       WHERE run_id = ?1 AND n = ?2 AND status = 'claimed'";
            let changed = self.store.connection.prepare_cached(sql)?.execute(params![
                self.run.0,
                n,
                output.json(),
                self.now
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
