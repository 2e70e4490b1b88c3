//! A run as an agent reads it: where it stands, what it waits for, what to do next.

use serde_json::{Value, json};
use steprail_engine::{RunRow, RunStatus, RunView, StepRow, UnknownCall};

use super::answer::Facts;
use crate::limits::{HISTORY, OUTPUT_BYTES};

/// A run with its steps.
pub(super) fn run(view: &RunView) -> Facts {
    let mut facts = row(&view.run);
    let skipped = view.steps.len().saturating_sub(HISTORY);
    let history: Vec<Value> = view.steps[skipped..].iter().map(step).collect();
    facts["steps"] = history.into();
    if skipped > 0 {
        facts["earlier_steps"] = skipped.into();
    }
    let waiting = waiting(view);
    if !waiting.is_empty() {
        facts["waiting"] = waiting.clone().into();
    }
    let answer = Facts::new(facts, message(view, &waiting)).about(view.run.run_id);
    match next(view, &waiting) {
        Some(next) => answer.next(next),
        None => answer,
    }
}

/// A run in a list.
pub(super) fn row(row: &RunRow) -> Value {
    let mut facts = json!({
        "run_id": row.run_id,
        "name": row.name,
        "version": row.version,
        "status": row.status,
        "created_by": row.created_by,
        "started_at": time(row.started_at),
        "seq": row.seq,
    });
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            facts[key] = value;
        }
    };
    put("current_step", row.current_step.clone().filter(|_| !row.status.is_terminal()).map(Value::from));
    put("completed_at", row.completed_at.map(time));
    put("parent", row.parent.map(|parent| json!(parent)));
    put("error", row.error.as_ref().map(|error| json!(error)));
    match &row.output {
        Some(output) if output.get().len() <= OUTPUT_BYTES => {
            put("output", serde_json::from_str(output.get()).ok());
        }
        Some(output) => put("output_bytes", Some(output.get().len().into())),
        None => {}
    }
    facts
}

fn step(row: &StepRow) -> Value {
    let mut facts = json!({ "step": row.path, "kind": row.kind, "status": row.status });
    if row.attempt > 1 {
        facts["attempt"] = row.attempt.into();
    }
    if let Some(tool) = &row.tool {
        facts["tool"] = tool.as_str().into();
    }
    if let Some((started, completed)) = row.started_at.zip(row.completed_at) {
        facts["ms"] = (completed - started).into();
    }
    if let Some(error) = &row.error {
        facts["error"] = json!(error);
    }
    facts
}

/// What a run waits for, one entry per step.
fn waiting(view: &RunView) -> Vec<Value> {
    let gates = view.approvals.iter().take(HISTORY).map(|approval| {
        let mut gate = json!({ "step": approval.path, "for": "approval", "prompt": approval.prompt });
        if approval.run_id != view.run.run_id {
            gate["run_id"] = json!(approval.run_id);
        }
        if let Some(form) = &approval.form {
            gate["form"] = json!(form);
        }
        if let Some(tool) = &approval.tool {
            gate["tool"] = tool.as_str().into();
            gate["args"] = approval.args.as_ref().map_or(Value::Null, |args| json!(args));
        }
        gate["digest"] = json!(approval.digest);
        gate
    });
    let unknown = view.unknown_calls.iter().take(HISTORY).map(|call| {
        let mut told = json!({ "step": call.path, "for": "resolution", "error": call.error });
        if call.run_id != view.run.run_id {
            told["run_id"] = json!(call.run_id);
        }
        told
    });
    let others = view.steps.iter().filter_map(|step| match (&*step.status, &*step.kind) {
        ("waiting", "sleep") => {
            Some(json!({ "step": step.path, "for": "time", "until": step.ready_at.map(time) }))
        }
        ("waiting", "wait") => Some(json!({ "step": step.path, "for": "event" })),
        _ => None,
    });
    gates.chain(unknown).chain(others.take(HISTORY)).collect()
}

fn message(view: &RunView, waiting: &[Value]) -> String {
    let RunRow { name, run_id, status, error, .. } = &view.run;
    let run = format!("{name} (run_id {run_id})");
    match status {
        RunStatus::Completed => format!("{run} completed."),
        RunStatus::Failed => {
            let why = error.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("{run} failed: {why}")
        }
        RunStatus::Cancelled => {
            let why = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            format!("{run} was cancelled{why}.")
        }
        RunStatus::Interrupted => format!("{run} was interrupted by a restart and waits to be resumed."),
        RunStatus::Paused if waiting.is_empty() => format!("{run} is paused."),
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused => {
            let step = view.run.current_step.as_deref().unwrap_or("its first step");
            let what: Vec<String> = waiting.iter().map(in_words).collect();
            match what.as_slice() {
                [] => format!("{run} is {}, at `{step}`.", status.word()),
                what => format!("{run} is {}: {}", status.word(), what.join("; ")),
            }
        }
    }
}

fn in_words(waiting: &Value) -> String {
    let text = |key: &str| waiting[key].as_str().unwrap_or_default();
    match text("for") {
        "approval" => format!("`{}` waits for a human's approval: {}", text("step"), text("prompt")),
        "resolution" => {
            format!("nobody knows whether the call of `{}` took place; a human has to say", text("step"))
        }
        "time" => format!("`{}` sleeps until {}", text("step"), text("until")),
        _ => format!("`{}` waits for an event", text("step")),
    }
}

fn next(view: &RunView, waiting: &[Value]) -> Option<String> {
    let run = view.run.run_id;
    let waits_for = |what: &str| waiting.iter().any(|waiting| waiting["for"] == what);
    match view.run.status {
        RunStatus::Completed
            if view.run.output.as_ref().is_some_and(|output| output.get().len() > OUTPUT_BYTES) =>
        {
            Some(format!("read the resource workflow://runs/{run} for the output, which is large"))
        }
        RunStatus::Completed | RunStatus::Cancelled => None,
        RunStatus::Failed => {
            Some(format!("workflow_explain {{\"run_id\": \"{run}\"}} says what can be done"))
        }
        RunStatus::Interrupted => Some(format!("workflow_resume {{\"run_id\": \"{run}\"}}")),
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused if !view.approvals.is_empty() => {
            let gate = &view.approvals[0];
            Some(format!(
                "tell the user that a human has to decide, in the terminal: steprail approve {} {}; you cannot. Then \
                 workflow_status with wait_s=30 and since_seq={}",
                gate.run_id, gate.path, view.run.seq
            ))
        }
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused if !view.unknown_calls.is_empty() => {
            let UnknownCall { run_id, path, .. } = &view.unknown_calls[0];
            Some(format!(
                "ask the user what happened; they say it in the terminal: steprail resume {run_id} with --happened \
                 {path}=JSON, --retry {path} or --skip {path}"
            ))
        }
        RunStatus::Paused if waits_for("event") => Some("workflow_signal brings the event".to_owned()),
        RunStatus::Paused if waiting.is_empty() => {
            Some(format!("workflow_resume {{\"run_id\": \"{run}\"}} lets it go on"))
        }
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused => Some(format!(
            "workflow_status {{\"run_id\": \"{run}\", \"wait_s\": 30}} waits for news; the run goes on without you"
        )),
    }
}

/// RFC 3339 in UTC.
pub(super) fn time(millis: i64) -> Value {
    match jiff::Timestamp::from_millisecond(millis) {
        Ok(time) => format!("{time:.3}").into(),
        Err(_) => millis.into(),
    }
}
