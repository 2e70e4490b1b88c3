//! Audit of the rows of one run: approvals, steps and idempotency keys, as its events say.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row};
use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_core::run::{Event, GateChange, Millis, Started, StepChange, StepStatus, ValueChange};

use super::verify_budgets::CountedCalls;
use super::{migrate, rows};
use crate::{RunId, StoreError};

/// Approvals of a format, with the columns that it has.
fn select_approvals(format: i64) -> String {
    let governance = if format >= migrate::GOVERNED { "subject_json, signed_json" } else { "NULL, '[]'" };
    format!("{SELECT_APPROVALS}, {governance} FROM approvals WHERE run_id = ?1 ORDER BY id")
}

const SELECT_APPROVALS: &str = "SELECT n, path, status, digest, prompt, tool,
    coalesce(args_json, (SELECT v.json FROM run_values v WHERE v.id = args_value)), notify_json, requested_at, expires_at,
    decided_at, decided_by, reason, form_json, user";
const SELECT_STEPS: &str =
    "SELECT n, attempt, path, step_id, kind, tool, status, error_json FROM step_runs WHERE run_id = ?1";
const SELECT_KEYS: &str =
    "SELECT scope, tool, key, args_hash, n, status, result_json FROM idempotency_keys WHERE run_id = ?1";

/// The rows of a run that its events lead to.
#[derive(Default)]
pub(super) struct ExpectedRows {
    by: String,
    created_at: Millis,
    completed_at: Option<Millis>,
    error: Option<String>,
    has_output: bool,
    /// In the order of the requests. An approval without a decision is open.
    approvals: Vec<Approval>,
    steps: BTreeMap<(u32, u32), Step>,
    /// Calls that claimed a key, by their execution: tool, key and arguments.
    claims: BTreeMap<u32, Vec<(String, String, Hash)>>,
    outputs: BTreeMap<u32, Hash>,
    /// The calls that count for budgets of the run.
    calls: CountedCalls,
}

struct Approval {
    n: u32,
    path: String,
    digest: Hash,
    prompt: String,
    tool: Option<String>,
    args: Option<Hash>,
    notify: String,
    at: Millis,
    until: Option<Millis>,
    form: Option<String>,
    subject: Option<String>,
    signed: Vec<String>,
    end: Option<(String, Millis, Option<String>, Option<String>)>,
}

#[derive(Clone, Default, PartialEq)]
struct Step {
    path: String,
    id: Option<String>,
    kind: String,
    tool: Option<String>,
    status: String,
    error: Option<String>,
}

impl ExpectedRows {
    pub(super) fn follow(&mut self, event: &Event, at: Millis) -> Result<(), StoreError> {
        match event {
            Event::RunStarted { by, .. } => (self.by, self.created_at) = (by.to_string(), at),
            Event::StepStarted {
                step, what: Started::Call { tool, args, key, claimed: true, .. }, ..
            } => {
                let claims = self.claims.entry(step.n).or_default();
                claims.push((tool.to_string(), key.to_string(), *args));
            }
            Event::StepCompleted { step, output, .. } => drop(self.outputs.insert(step.n, *output)),
            _ => {}
        }
        self.calls.follow_run(event);
        let changes = event.changes();
        if event.ends_run() {
            self.completed_at = Some(at);
            self.has_output = matches!(event, Event::RunCompleted { .. });
            self.error = changes.run.error.map(serde_json::to_string).transpose()?;
        }
        if let Some(change) = &changes.step {
            self.close_gate(change, at);
            self.follow_step(change)?;
            self.follow_gate(change, changes.value, at)?;
        }
        Ok(())
    }

    /// A step that moves on without a decision closes its approval.
    fn close_gate(&mut self, change: &StepChange<'_>, at: Millis) {
        if change.clears_waits && !matches!(change.gate, Some(GateChange::Decided(_))) {
            let status = if change.ends() { "cancelled" } else { "superseded" };
            self.end_gate(change.step.n, (status.to_owned(), at, None, None));
        }
    }

    fn end_gate(&mut self, n: u32, end: (String, Millis, Option<String>, Option<String>)) {
        if let Some(open) = self.open_gate(n) {
            open.end = Some(end);
        }
    }

    fn open_gate(&mut self, n: u32) -> Option<&mut Approval> {
        self.approvals.iter_mut().rev().find(|approval| approval.n == n && approval.end.is_none())
    }

    fn follow_gate(
        &mut self,
        change: &StepChange<'_>,
        value: Option<ValueChange>,
        at: Millis,
    ) -> Result<(), StoreError> {
        match &change.gate {
            Some(GateChange::Requested(request)) => self.approvals.push(Approval {
                n: change.step.n,
                path: change.step.path.to_string(),
                digest: request.digest,
                prompt: request.prompt.to_owned(),
                tool: request.tool.map(ToOwned::to_owned),
                args: if let Some(ValueChange::StepInput(hash)) = value { Some(hash) } else { None },
                notify: serde_json::to_string(request.notify)?,
                at,
                until: request.until,
                form: request.form.map(Value::to_string),
                subject: request.subject.map(serde_json::to_string).transpose()?,
                signed: Vec::new(),
                end: None,
            }),
            Some(GateChange::Decided(decision)) => {
                let status: &str = decision.outcome.into();
                let text = |text: Option<&str>| text.map(ToOwned::to_owned);
                let end = (status.to_owned(), at, text(decision.by), text(decision.reason));
                self.end_gate(change.step.n, end);
            }
            Some(GateChange::Signed { by, .. }) => {
                if let Some(open) = self.open_gate(change.step.n) {
                    open.signed.push((*by).to_owned());
                }
            }
            Some(GateChange::Escalated { .. } | GateChange::Reminded { .. }) | None => {}
        }
        Ok(())
    }

    fn follow_step(&mut self, change: &StepChange<'_>) -> Result<(), StoreError> {
        let Some(status) = change.status else { return Ok(()) };
        let step = change.step;
        let error = change.error.map(serde_json::to_string).transpose()?;
        let entry = self.steps.entry((step.n, step.attempt)).or_default();
        if let Some(place) = change.info.filter(|_| entry.path.is_empty()) {
            entry.path = step.path.to_string();
            entry.id = (*place.id != *step.path).then(|| place.id.to_string());
            entry.kind = place.kind.to_string();
        }
        entry.tool = change.tool.map(ToOwned::to_owned).or(entry.tool.take());
        (entry.status, entry.error) = (status.name().to_owned(), error);
        if change.retry_at.is_some() {
            let next = Step { status: StepStatus::Pending.name().to_owned(), error: None, ..entry.clone() };
            self.steps.insert((step.n, step.attempt + 1), next);
        }
        Ok(())
    }

    /// Every difference between the events and the rows of a run.
    pub(super) fn differences(
        mut self,
        connection: &Connection,
        key: i64,
        run: RunId,
        (times, error): ((Millis, Option<Millis>), Option<&str>),
    ) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        if times != (self.created_at, self.completed_at) {
            found.push("the times of the run are not what the log says".to_owned());
        }
        if error != self.error.as_deref() {
            found.push("the failure of the run is not what the log says".to_owned());
        }
        let sql = "SELECT (output_json IS NOT NULL) + (output_value IS NOT NULL) FROM runs WHERE id = ?1";
        let outputs: i64 = connection.query_row(sql, [key], |row| row.get(0))?;
        if outputs != i64::from(self.has_output) {
            found.push("the output of the run is not what the log says".to_owned());
        }
        let format = migrate::format(connection)?;
        let approvals = rows::all(connection, &select_approvals(format), [key], stored_approval)?;
        let expected: Vec<Value> = self.approvals.iter().map(|approval| approval.to_json(&self.by)).collect();
        if approvals != expected {
            let at = approvals.iter().zip(&expected).position(|(found, expected)| found != expected);
            let path = at.and_then(|at| self.approvals.get(at)).map_or("the run", |approval| &approval.path);
            found.push(format!("the approvals of {path} are not what the log says"));
        }
        rows::each(connection, SELECT_STEPS, [key], |row| {
            let (n, attempt) = (row.get(0)?, row.get(1)?);
            if self.steps.remove(&(n, attempt)) != Some(stored_step(row)?) {
                found.push(format!("attempt {attempt} of step {n} is not what the log says"));
            }
            Ok(true)
        })?;
        found.extend(
            self.steps.keys().map(|(n, attempt)| format!("attempt {attempt} of step {n} is missing")),
        );
        if format >= migrate::AUDITED {
            found.extend(std::mem::take(&mut self.calls).run_differences(connection, run)?);
        }
        rows::each(connection, SELECT_KEYS, [key], |row| {
            if !self.is_claim(row, run)? {
                found.push(format!(
                    "the idempotency key of step {} is not what the log says",
                    row.get::<_, u32>(4)?
                ));
            }
            Ok(true)
        })?;
        Ok(found)
    }

    /// Whether a row is a key that a step of the run claimed, with the result of that step.
    fn is_claim(&self, row: &Row<'_>, run: RunId) -> Result<bool, StoreError> {
        let text = |at: usize| row.get_ref(at)?.as_str().map_err(rows::damaged);
        let (scope, n) = (text(0)?, row.get::<_, u32>(4)?);
        let claim = (text(1)?.to_owned(), text(2)?.to_owned(), rows::hash_from_text(text(3)?)?);
        let is_claimed = self.claims.get(&n).is_some_and(|claims| claims.contains(&claim));
        let is_scope = scope == format!("run:{run}") || scope == format!("user:{}", self.by);
        let result: Option<String> = row.get(6)?;
        let is_status = text(5)? == if result.is_some() { "done" } else { "claimed" };
        let is_result = self.outputs.get(&n).copied() == result.map(|result| Hash::of(result.as_bytes()));
        Ok(is_claimed && is_scope && is_status && is_result)
    }
}

impl Approval {
    fn to_json(&self, user: &str) -> Value {
        let open = || ("open".to_owned(), None, None, None);
        let (status, at, by, reason) =
            self.end.clone().map_or_else(open, |(status, at, by, reason)| (status, Some(at), by, reason));
        json!([
            self.n,
            self.path,
            status,
            self.digest.to_string(),
            self.prompt,
            self.tool,
            self.args.map(|args| args.to_string()),
            self.notify,
            self.at,
            self.until,
            at,
            by,
            reason,
            self.form,
            user,
            self.subject,
            json!(self.signed).to_string()
        ])
    }
}

fn stored_approval(row: &Row<'_>) -> Result<Value, StoreError> {
    let text = |at: usize| row.get_ref(at)?.as_str_or_null().map_err(rows::damaged);
    let number = |at: usize| Ok::<_, StoreError>(row.get::<_, Option<i64>>(at)?);
    let args = text(6)?.map(|args| Hash::of(args.as_bytes()).to_string());
    Ok(json!([
        number(0)?,
        text(1)?,
        text(2)?,
        text(3)?,
        text(4)?,
        text(5)?,
        args,
        text(7)?,
        number(8)?,
        number(9)?,
        number(10)?,
        text(11)?,
        text(12)?,
        text(13)?,
        text(14)?,
        text(15)?,
        text(16)?
    ]))
}

fn stored_step(row: &Row<'_>) -> Result<Step, StoreError> {
    Ok(Step {
        path: row.get(2)?,
        id: row.get(3)?,
        kind: row.get(4)?,
        tool: row.get(5)?,
        status: row.get(6)?,
        error: row.get(7)?,
    })
}
