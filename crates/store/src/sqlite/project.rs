//! Events to rows: what the tables say follows from the log and from nothing else.

use rusqlite::params;
use steprail_core::run::{Event, Millis, Record, Run, RunStatus, Started, StepRef, TimerKind};

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
        let current = records.iter().rev().find_map(|record| match &record.event {
            Event::StepStarted { step, .. } => Some(&*step.path),
            _ => None,
        });
        let (status, active) = (run.status(), run.is_active());
        let changed = if (status, active) == (head.status, head.active) {
            let sql = "UPDATE workflow_runs SET seq = ?2, head_hash = ?3, updated_at = ?4,
                       current_step = coalesce(?5, current_step) WHERE id = ?1 AND seq < ?2";
            let params = params![head.key.0, head.seq, &head.hash.0[..], now, current];
            self.connection.prepare_cached(sql)?.execute(params)?
        } else {
            let end = status.is_terminal().then_some(now);
            let output = records.iter().find_map(|record| match &record.event {
                Event::RunCompleted { .. } => record.payload.as_ref().map(steprail_core::run::Payload::json),
                _ => None,
            });
            let error = records.iter().find_map(|record| match &record.event {
                Event::RunFailed { error } => serde_json::to_string(error).ok(),
                _ => None,
            });
            let sql = "UPDATE workflow_runs SET seq = ?2, head_hash = ?3, updated_at = ?4,
                       current_step = coalesce(?5, current_step), active = ?6, status = ?7, completed_at = ?8,
                       output_json = ?9, error_json = ?10 WHERE id = ?1 AND seq < ?2";
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
                error
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
        self.clear(record)?;
        let payload = record.payload.as_ref().map(steprail_core::run::Payload::json);
        match &record.event {
            Event::StepReady { step, place } => self.upsert(step, place, "ready", None, None),
            Event::KeyAwaited { step, place, key } => {
                self.upsert(step, place, "waiting", None, None)?;
                self.wait(step.n, key)
            }
            Event::ServerAwaited { step, place, error, due, until } => {
                self.upsert(step, place, "waiting", None, None)?;
                self.status(step, "waiting", None, Some(&serde_json::to_string(error)?))?;
                for (kind, due) in [(TimerKind::Retry, due), (TimerKind::Timeout, until)] {
                    if let Some(due) = due {
                        self.set_timer(step.n, kind, *due)?;
                    }
                }
                Ok(())
            }
            Event::StepStarted { step, place, what, until } => {
                let (status, tool) = started(what);
                self.upsert(step, place, status, tool, payload)?;
                if let Some(until) = until {
                    self.set_timer(step.n, TimerKind::Timeout, *until)?;
                }
                match what {
                    Started::Sleep { due } => self.set_timer(step.n, TimerKind::Sleep, *due),
                    Started::Wait { event, signal: None, .. } => self.wait(step.n, event),
                    _ => Ok(()),
                }
            }
            Event::StepCompleted { step, .. } => self.end(step, "done", payload, None),
            Event::StepFailed { step, error } => {
                self.end(step, "failed", None, Some(&serde_json::to_string(error)?))
            }
            Event::StepSkipped { step, .. } => self.end(step, "skipped", None, None),
            Event::StepCancelled { step, .. } => self.end(step, "cancelled", None, None),
            Event::RetryScheduled { step, error, due } => {
                self.end(step, "failed", None, Some(&serde_json::to_string(error)?))?;
                self.next_attempt(step, *due)?;
                self.set_timer(step.n, TimerKind::Retry, *due)
            }
            Event::StepUncertain { step, error } => {
                self.status(step, "uncertain", None, Some(&serde_json::to_string(error)?))
            }
            Event::VerifyStarted { step, until: Some(until), .. }
            | Event::ToolRequested { step, until: Some(until), .. } => {
                self.set_timer(step.n, TimerKind::Timeout, *until)
            }
            Event::CallTimedOut { step, until } => self.set_timer(step.n, TimerKind::Grace, *until),
            Event::ApprovalRequested { step, until, escalate, .. } => {
                self.status(step, "waiting", payload, None)?;
                self.ask(record, payload)?;
                for (kind, due) in [(TimerKind::Timeout, until), (TimerKind::Escalate, escalate)] {
                    if let Some(due) = due {
                        self.set_timer(step.n, kind, *due)?;
                    }
                }
                Ok(())
            }
            Event::ApprovalGranted { step, by, reason, .. } => {
                self.status(step, "ready", None, None)?;
                self.answer(step, "approved", Some(by), reason.as_deref())
            }
            Event::ApprovalDenied { step, by, reason } => {
                let status = if by.is_some() { "denied" } else { "expired" };
                self.answer(step, status, by.as_deref(), Some(reason))
            }
            Event::ApprovalEscalated { step, escalate: Some(due), .. } => {
                self.set_timer(step.n, TimerKind::Escalate, *due)
            }
            Event::RunInterrupted {} => self.hold_timers(true),
            Event::RunResumed { .. } if before == RunStatus::Interrupted => self.hold_timers(false),
            _ => Ok(()),
        }
    }

    /// Takes back what a step had in the store before this event.
    fn clear(&mut self, record: &Record) -> Result<(), StoreError> {
        let Some(step) = record.event.step() else { return Ok(()) };
        let moves_on = record.event.ends_step()
            || matches!(
                record.event,
                Event::StepStarted { .. }
                    | Event::StepReady { .. }
                    | Event::KeyAwaited { .. }
                    | Event::ServerAwaited { .. }
                    | Event::RetryScheduled { .. }
                    | Event::StepUncertain { .. }
                    | Event::CallTimedOut { .. }
                    | Event::VerifyStarted { .. }
                    | Event::ToolRequested { .. }
                    | Event::ToolCreated { .. }
                    | Event::ApprovalRequested { .. }
                    | Event::ApprovalGranted { .. }
                    | Event::ApprovalDenied { .. }
            );
        if !moves_on {
            return Ok(());
        }
        if record.had_timer {
            self.by_step("DELETE FROM alarms WHERE run_id = ?1 AND n = ?2", step.n)?;
        }
        if record.had_wait {
            self.by_step("DELETE FROM workflow_waits WHERE run_id = ?1 AND n = ?2", step.n)?;
        }
        if record.had_gate
            && !matches!(record.event, Event::ApprovalGranted { .. } | Event::ApprovalDenied { .. })
        {
            let status = if record.event.ends_step() { "cancelled" } else { "superseded" };
            self.answer(step, status, None, None)?;
        }
        if record.had_claim && record.event.ends_step() {
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
        place: &steprail_core::run::Place,
        status: &str,
        tool: Option<&str>,
        input: Option<&str>,
    ) -> Result<(), StoreError> {
        let started = (status != "ready").then_some(self.now);
        let sql = "INSERT INTO workflow_step_runs
                   (run_id, n, attempt, path, step_id, kind, tool, status, input_json, ready_at, started_at)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
                   ON CONFLICT (run_id, n, attempt) DO UPDATE SET status = excluded.status,
                   tool = coalesce(excluded.tool, tool), input_json = coalesce(excluded.input_json, input_json),
                   started_at = excluded.started_at, error_json = NULL WHERE completed_at IS NULL";
        let changed = self.store.connection.prepare_cached(sql)?.execute(params![
            self.run.0,
            step.n,
            step.attempt,
            &*step.path,
            &*place.id,
            &*place.kind,
            tool,
            status,
            input,
            self.now,
            started
        ])?;
        one_row(changed, "a step that ended began again")
    }

    fn status(
        &self,
        step: &StepRef,
        status: &str,
        input: Option<&str>,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        let sql = "UPDATE workflow_step_runs SET status = ?4, input_json = coalesce(?5, input_json), error_json = ?6
                   WHERE run_id = ?1 AND n = ?2 AND attempt = ?3 AND completed_at IS NULL";
        let changed = self.store.connection.prepare_cached(sql)?.execute(params![
            self.run.0,
            step.n,
            step.attempt,
            status,
            input,
            error
        ])?;
        one_row(changed, "a step that ended changed")
    }

    fn end(
        &self,
        step: &StepRef,
        status: &str,
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
            status,
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

    fn ask(&self, record: &Record, args: Option<&str>) -> Result<(), StoreError> {
        let Event::ApprovalRequested { step, digest, prompt, tool, until, notify, form, .. } = &record.event
        else {
            return Ok(());
        };
        let sql = "INSERT INTO approvals
                   (run_id, n, path, status, digest, prompt, tool, args_json, notify_json, requested_at, expires_at,
                    form_json)
                   VALUES (?1, ?2, ?3, 'open', ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
        self.store.connection.prepare_cached(sql)?.execute(params![
            self.run.0,
            step.n,
            &*step.path,
            digest.to_string(),
            prompt,
            tool,
            args,
            serde_json::to_string(notify)?,
            self.now,
            until,
            form.as_ref().map(serde_json::Value::to_string)
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

fn started(what: &Started) -> (&'static str, Option<&str>) {
    match what {
        Started::Call { tool, .. } => ("running", Some(tool)),
        Started::Foreach { .. } | Started::Parallel { .. } | Started::Branch {} | Started::Pass {} => {
            ("running", None)
        }
        Started::Approve {} | Started::Sleep { .. } | Started::Wait { .. } | Started::Workflow { .. } => {
            ("waiting", None)
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
