//! A run as an agent reads it: its state, what it waits for, the next action.

use serde_json::{Value, json};
use steprail_core::diagnostic::quoted;
use steprail_engine::{Failure, KindName, RunRow, RunStatus, RunView, StepRow, StepStatus, restore_notice};

use super::output::ToolOutput;
use super::snapshot::RunSnapshot;
use super::values::{ByteRange, ValueRenderer};
use super::waiting;
use crate::check::shortened;
use crate::limits::{
    ERROR_BYTES, LISTED_STEPS, OUTPUT_BYTES, STEP_PAGE_BYTES, STEP_VALUE_BYTES, SUGGESTIONS,
};

/// The inputs and outputs that a result includes.
#[derive(Debug, Default)]
pub(super) struct ValueSelection {
    /// Steps by id or path; `*` for all. If empty, the output of the run is included instead.
    pub steps: Vec<String>,
    /// Byte of the output, of the step or of the run, at which the included part starts.
    pub offset: usize,
}

/// A run with its steps and its output.
pub(super) fn run(snapshot: &RunSnapshot) -> ToolOutput {
    run_with(snapshot, &ValueSelection::default())
}

/// A run with its steps, and the inputs and outputs of some.
pub(super) fn run_with(snapshot: &RunSnapshot, selection: &ValueSelection) -> ToolOutput {
    let RunSnapshot { view, waiting, .. } = snapshot;
    let run = view.run.run_id;
    let mut values = ValueRenderer::new(run);
    let mut fields = row(&view.run);
    if selection.steps.is_empty() {
        put_output(&mut fields, &view.run, selection.offset, &mut values);
    }
    let steps = steps(view, selection, &mut values);
    let omitted = omitted_steps(view);
    fields["steps"] = steps.into();
    if omitted > 0 && selection.steps.is_empty() {
        fields["earlier_steps"] = omitted.into();
    }
    if !waiting.is_empty() {
        fields["waiting"] =
            waiting.iter().take(LISTED_STEPS).map(|wait| waiting::fields(run, wait)).collect();
    }
    if let Some(reason) = &snapshot.reason {
        fields["reason"] = reason.as_str().into();
    }
    let notes = notes(snapshot);
    if !notes.is_empty() {
        fields["notes"] = notes.clone().into();
    }
    let message = [message(snapshot)].into_iter().chain(notes).collect::<Vec<_>>().join("\n");
    let output = ToolOutput::new(fields, message).link_run(run).with_blocks(values.into_blocks());
    let output = output.in_message(&["error", "notes", "name", "run_id"]);
    let next = match view.run.status {
        // The result has the inputs and outputs already.
        RunStatus::Failed if !selection.steps.is_empty() => {
            Some(format!("workflow_explain {}", json!({ "run_id": run })))
        }
        _ => waiting::next(snapshot),
    };
    match next {
        Some(next) => output.next(next),
        None => output,
    }
}

fn put_output(fields: &mut Value, run: &RunRow, offset: usize, values: &mut ValueRenderer) {
    let Some(output) = &run.output else { return };
    let range = ByteRange { from: offset, bytes: OUTPUT_BYTES };
    let id = run.run_id;
    fields["output"] = values.render(output, range, |offset| {
        format!("workflow_status {}", json!({ "run_id": id, "offset": offset }))
    });
}

/// The number of steps that are not in a view.
pub(super) fn omitted_steps(view: &RunView) -> u64 {
    view.step_counts.total.saturating_sub(view.steps.len() as u64)
}

/// The last steps, or the selected ones with their inputs and outputs.
fn steps(view: &RunView, selection: &ValueSelection, values: &mut ValueRenderer) -> Vec<Value> {
    let run_error = view.run.error.as_ref();
    if selection.steps.is_empty() {
        return view.steps.iter().map(|row| step(row, run_error)).collect();
    }
    let bytes = if view.steps.len() == 1 { STEP_PAGE_BYTES } else { STEP_VALUE_BYTES };
    let with_values = |row: &StepRow| {
        let mut fields = step(row, run_error);
        let more = |offset: usize| {
            let call = json!({ "run_id": view.run.run_id, "steps": [row.path], "offset": offset });
            format!("workflow_status {call}")
        };
        if let Some(input) = row.input.as_ref().filter(|_| selection.offset == 0) {
            let resource = |_| format!("the resource workflow://runs/{}", view.run.run_id);
            fields["input"] = values.render(input, ByteRange { from: 0, bytes }, resource);
        }
        if let Some(output) = &row.output {
            fields["output"] = values.render(output, ByteRange { from: selection.offset, bytes }, more);
        }
        fields
    };
    view.steps.iter().map(with_values).collect()
}

/// A run without its steps, as lists show it.
pub(super) fn row(row: &RunRow) -> Value {
    let mut fields = json!({
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
            fields[key] = value;
        }
    };
    put("current_step", row.current_step.clone().filter(|_| !row.status.is_terminal()).map(Value::from));
    put("completed_at", row.completed_at.map(time));
    put("parent", row.parent.map(|parent| json!(parent)));
    put("error", row.error.as_ref().map(failure));
    fields
}

/// A failure without the middle of a long message.
fn failure(error: &Failure) -> Value {
    let mut fields = json!(error);
    fields["message"] = brief(&error.message).into();
    fields
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

fn step(row: &StepRow, run_error: Option<&Failure>) -> Value {
    let mut fields = json!({ "step": row.path, "kind": row.kind, "status": row.status });
    if row.attempt > 1 {
        fields["attempt"] = row.attempt.into();
    }
    if let Some(tool) = &row.tool {
        fields["tool"] = tool.as_str().into();
    }
    if let Some((started, completed)) = row.started_at.zip(row.completed_at) {
        fields["ms"] = (completed - started).into();
    }
    if let Some(error) = &row.error {
        // The message is not repeated if the run failed with it.
        let is_run_error = run_error.is_some_and(|run| run.message == error.message);
        fields["error"] = if is_run_error { error.kind.name().into() } else { failure(error) };
    }
    fields
}

/// Notes about a completed run: loops without items, and failures that the definition tolerates.
pub(super) fn notes(snapshot: &RunSnapshot) -> Vec<String> {
    let RunSnapshot { view, notable, .. } = snapshot;
    if let Some(restored) = &view.restored {
        return vec![format!(
            "Note: {}.",
            restore_notice(restored, time(restored.backup_at).as_str().unwrap_or_default())
        )];
    }
    if view.run.status != RunStatus::Completed {
        return Vec::new();
    }
    let is_empty = |step: &&StepRow| step.kind == KindName::Foreach && step.status == StepStatus::Done;
    let empty = notable.iter().filter(is_empty).map(|step| {
        format!("Note: `{}` had no items, so its steps did not run; check its `items`.", step.path)
    });
    let is_failed = |step: &&StepRow| step.status == StepStatus::Failed;
    let failed: Vec<&str> = notable.iter().filter(is_failed).map(|step| step.path.as_str()).collect();
    let failed = (!failed.is_empty())
        .then(|| format!("Note: {} failed, and the definition lets the run continue.", quoted(&failed)));
    empty.chain(failed).collect()
}

fn message(snapshot: &RunSnapshot) -> String {
    let RunSnapshot { view, waiting, .. } = snapshot;
    let RunRow { name, run_id, status, error, .. } = &view.run;
    let run = format!("{name} (run_id {run_id})");
    match status {
        RunStatus::Completed => format!("{run} completed."),
        RunStatus::Failed => {
            let why = error.as_ref().map(|error| format!(" ({}): {}", error.kind.name(), in_brief(error)));
            format!("{run} failed{}", why.unwrap_or_default())
        }
        RunStatus::Cancelled => {
            let why = error.as_ref().map(|error| format!(": {}", in_brief(error))).unwrap_or_default();
            format!("{run} was cancelled{why}.")
        }
        RunStatus::Interrupted => format!("{run} was interrupted by a restart and has to be resumed."),
        RunStatus::Paused if waiting.is_empty() => format!("{run} is paused."),
        RunStatus::Pending | RunStatus::Running if waiting.is_empty() => {
            let step = view.run.current_step.as_deref().unwrap_or("its first step");
            format!("{run} is {}, at `{step}`.", status.name())
        }
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused => {
            let mut clauses: Vec<String> = waiting.iter().take(SUGGESTIONS).map(waiting::clause).collect();
            if waiting.len() > SUGGESTIONS {
                let least = if view.more_waiting { "at least " } else { "" };
                clauses.push(format!("{least}{} more steps wait", waiting.len() - SUGGESTIONS));
            }
            format!("{run} is {}: {}", status.name(), clauses.join("; "))
        }
    }
}

/// A failure with its step, without the middle of a long message.
pub(super) fn in_brief(error: &Failure) -> String {
    brief(&error.to_string())
}

/// A time in RFC 3339, in UTC.
pub(super) fn time(millis: i64) -> Value {
    match jiff::Timestamp::from_millisecond(millis) {
        Ok(time) => format!("{time:.3}").into(),
        Err(_) => millis.into(),
    }
}
