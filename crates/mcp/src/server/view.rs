//! A run as an agent reads it: where it stands, what it waits for, what to do next.

use serde_json::{Value, json};
use steprail_engine::{Failure, FailureKind, RunRow, RunStatus, RunView, StepRow, UnknownCall};

use super::answer::Facts;
use super::values::{Part, Values};
use super::waits::Seen;
use crate::check::shortened;
use crate::limits::{ERROR_BYTES, HISTORY, OUTPUT_BYTES, STEP_PAGE_BYTES, STEP_VALUE_BYTES};

/// Which inputs and outputs an answer shows.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Steps by id or path; `*` stands for all.
    pub steps: Vec<String>,
    /// Where to go on in the output: of the step, or of the run.
    pub offset: usize,
}

/// A run with its steps.
pub(super) fn run(seen: &Seen) -> Facts {
    run_with(seen, &Wanted::default())
}

/// A run with its steps, and inputs and outputs of some.
pub(super) fn run_with(seen: &Seen, wanted: &Wanted) -> Facts {
    let view = &seen.view;
    let mut values = Values::new(view.run.run_id);
    let mut facts = row(&view.run);
    if wanted.steps.is_empty() {
        put_output(&mut facts, &view.run, wanted.offset, &mut values);
    }
    let steps = steps(view, wanted, &mut values);
    let skipped = view.steps.len().saturating_sub(steps.len());
    facts["steps"] = steps.into();
    if skipped > 0 && wanted.steps.is_empty() {
        facts["earlier_steps"] = skipped.into();
    }
    let waiting = waiting(seen);
    if !waiting.is_empty() {
        facts["waiting"] = waiting.clone().into();
    }
    let notes = notes(view);
    if !notes.is_empty() {
        facts["notes"] = notes.clone().into();
    }
    let message = [message(view, &waiting)].into_iter().chain(notes).collect::<Vec<_>>().join("\n");
    let answer = Facts::new(facts, message).about(view.run.run_id).with_blocks(values.into_blocks());
    let answer = answer.worded(&["error", "notes", "name", "run_id"]);
    let next = match view.run.status {
        // The inputs and outputs are shown already.
        RunStatus::Failed if !wanted.steps.is_empty() => {
            Some(format!("workflow_explain {}", json!({ "run_id": view.run.run_id })))
        }
        _ => next(view, &waiting),
    };
    match next {
        Some(next) => answer.next(next),
        None => answer,
    }
}

fn put_output(facts: &mut Value, run: &RunRow, offset: usize, values: &mut Values) {
    let Some(output) = &run.output else { return };
    let part = Part { from: offset, bytes: OUTPUT_BYTES };
    let id = run.run_id;
    facts["output"] = values.show(output, part, |offset| {
        format!("workflow_status {}", json!({ "run_id": id, "offset": offset }))
    });
}

/// The last steps, or those that are wanted with their inputs and outputs.
fn steps(view: &RunView, wanted: &Wanted, values: &mut Values) -> Vec<Value> {
    let of_run = view.run.error.as_ref();
    if wanted.steps.is_empty() {
        let skipped = view.steps.len().saturating_sub(HISTORY);
        return view.steps[skipped..].iter().map(|row| step(row, of_run)).collect();
    }
    let is_wanted =
        |row: &&StepRow| wanted.steps.iter().any(|name| *name == "*" || *name == row.id || *name == row.path);
    let shown: Vec<&StepRow> = view.steps.iter().filter(is_wanted).collect();
    let bytes = if shown.len() == 1 { STEP_PAGE_BYTES } else { STEP_VALUE_BYTES };
    let last = shown.len().saturating_sub(HISTORY);
    let with_values = |row: &&StepRow| {
        let mut told = step(row, of_run);
        let more = |offset: usize| {
            let call = json!({ "run_id": view.run.run_id, "steps": [row.path], "offset": offset });
            format!("workflow_status {call}")
        };
        if let Some(input) = row.input.as_ref().filter(|_| wanted.offset == 0) {
            let resource = |_| format!("the resource workflow://runs/{}", view.run.run_id);
            told["input"] = values.show(input, Part { from: 0, bytes }, resource);
        }
        if let Some(output) = &row.output {
            told["output"] = values.show(output, Part { from: wanted.offset, bytes }, more);
        }
        told
    };
    shown[last..].iter().map(with_values).collect()
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
    put("error", row.error.as_ref().map(failure));
    facts
}

/// Why something failed, without the middle of a long message.
fn failure(error: &Failure) -> Value {
    let mut told = json!(error);
    told["message"] = brief(&error.message).into();
    told
}

/// The beginning and the end of a long message: a stack trace names its cause last.
pub(super) fn brief(message: &str) -> String {
    if message.len() <= ERROR_BYTES {
        return message.to_owned();
    }
    let half = ERROR_BYTES / 2;
    let tail = message.ceil_char_boundary(message.len() - half);
    format!("{} … {}", shortened(message, half).trim_end_matches('…'), &message[tail..])
}

fn step(row: &StepRow, of_run: Option<&Failure>) -> Value {
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
        let is_told = of_run.is_some_and(|told| told.message == error.message);
        // The run failed for this: its error has the message.
        facts["error"] = if is_told { error.kind.word().into() } else { failure(error) };
    }
    facts
}

/// What a completed run did not do, or did not do well.
pub(super) fn notes(view: &RunView) -> Vec<String> {
    if view.run.status != RunStatus::Completed {
        return Vec::new();
    }
    let is_empty = |step: &&StepRow| {
        step.kind == "foreach" && step.output.as_ref().is_some_and(|output| output.get().trim() == "[]")
    };
    let empty = view.steps.iter().filter(is_empty).map(|step| {
        format!("Note: `{}` had no items, so its steps never ran; look at its `items`.", step.path)
    });
    let failed: Vec<&str> = view
        .steps
        .iter()
        .filter(|step| step.status == "failed" && !is_retried(view, step))
        .map(|step| step.path.as_str())
        .take(HISTORY)
        .collect();
    let failed = (!failed.is_empty()).then(|| {
        let paths = steprail_core::diagnostic::quoted(&failed);
        format!("Note: {paths} failed, and the definition lets the run go on.")
    });
    empty.take(HISTORY).chain(failed).collect()
}

/// Whether another attempt of a step followed.
fn is_retried(view: &RunView, step: &StepRow) -> bool {
    view.steps.iter().any(|other| other.n == step.n && other.attempt > step.attempt)
}

/// What a run waits for, one entry per step.
fn waiting(seen: &Seen) -> Vec<Value> {
    let view = &seen.view;
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
    gates.chain(unknown).chain(seen.waiting().into_iter().take(HISTORY)).collect()
}

fn message(view: &RunView, waiting: &[Value]) -> String {
    let RunRow { name, run_id, status, error, .. } = &view.run;
    let run = format!("{name} (run_id {run_id})");
    match status {
        RunStatus::Completed => format!("{run} completed."),
        RunStatus::Failed => {
            let why = error.as_ref().map(|error| format!(" ({}): {}", error.kind.word(), in_brief(error)));
            format!("{run} failed{}", why.unwrap_or_default())
        }
        RunStatus::Cancelled => {
            let why = error.as_ref().map(|error| format!(": {}", in_brief(error))).unwrap_or_default();
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
            format!(
                "the outcome of the call of `{}` is unknown; a human has to say what happened",
                text("step")
            )
        }
        "time" => match waiting["until"].as_str() {
            Some(until) => format!("`{}` sleeps until {until}", text("step")),
            None => format!("`{}` sleeps", text("step")),
        },
        _ => match waiting["event"].as_str() {
            Some(event) => format!("`{}` waits for the event `{event}`", text("step")),
            None => format!("`{}` waits for an event", text("step")),
        },
    }
}

/// A failure with its step, without the middle of a long message.
pub(super) fn in_brief(error: &Failure) -> String {
    brief(&error.to_string())
}

fn next(view: &RunView, waiting: &[Value]) -> Option<String> {
    let run = view.run.run_id;
    let event = waiting.iter().find(|waiting| waiting["for"] == "event");
    match view.run.status {
        RunStatus::Completed | RunStatus::Cancelled => None,
        RunStatus::Failed => Some(after_failure(view)),
        RunStatus::Interrupted => Some(format!("workflow_resume {}", json!({ "run_id": run }))),
        _ if !view.approvals.is_empty() => Some(decide(view)),
        _ if !view.unknown_calls.is_empty() => {
            let UnknownCall { run_id, path, .. } = &view.unknown_calls[0];
            Some(format!(
                "ask the user what happened; they say it in the terminal: steprail resume {run_id} with --happened \
                 {path}=JSON, --retry {path} or --skip {path}"
            ))
        }
        _ if event.is_some() => event.map(|event| {
            let name = event["event"].as_str().unwrap_or("…");
            let call = json!({ "run_id": run, "event": name, "payload": event["correlate"] });
            format!("workflow_signal {call} brings the event; payload is what the step gives")
        }),
        RunStatus::Paused if waiting.is_empty() => {
            Some(format!("workflow_resume {} lets it go on", json!({ "run_id": run })))
        }
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused => Some(format!(
            "workflow_status {} waits for news; the run goes on without you",
            json!({ "run_id": run, "wait_s": 30 })
        )),
    }
}

/// A failure that the same calls would meet again is looked at; any other is explained.
fn after_failure(view: &RunView) -> String {
    let run = view.run.run_id;
    match view.run.error.as_ref().map(|error| error.kind) {
        Some(FailureKind::Validation | FailureKind::ToolError) => format!(
            "workflow_status {} shows what the steps took and gave; then correct the definition or the inputs and start \
             again (the same would fail again)",
            json!({ "run_id": run, "steps": ["*"] })
        ),
        _ => format!("workflow_explain {}", json!({ "run_id": run })),
    }
}

fn decide(view: &RunView) -> String {
    let gate = &view.approvals[0];
    let status = json!({ "run_id": view.run.run_id, "wait_s": 30, "since_seq": view.run.seq });
    format!(
        "tell the user that a human has to decide, in the terminal: steprail approve {} {}; you cannot. Then \
         workflow_status {status}",
        gate.run_id, gate.path
    )
}

/// RFC 3339 in UTC.
pub(super) fn time(millis: i64) -> Value {
    match jiff::Timestamp::from_millisecond(millis) {
        Ok(time) => format!("{time:.3}").into(),
        Err(_) => millis.into(),
    }
}
