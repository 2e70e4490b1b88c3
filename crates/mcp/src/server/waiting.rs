//! What a run waits for and the next action on it, as agents read them.

use serde_json::{Value, json};
use steprail_core::display;
use steprail_engine::{FailureKind, NextAction, RunId, RunView, WaitCause, WaitingFor, next_action};

use super::snapshot::RunSnapshot;
use super::view::{brief, time};

/// A wait as JSON. `run_id` is left out if the step belongs to the run that was queried.
pub(super) fn fields(run: RunId, wait: &WaitingFor) -> Value {
    let mut fields = json!(wait);
    if let Some(map) = fields.as_object_mut().filter(|_| wait.run_id == run) {
        map.remove("run_id");
    }
    fields
}

/// A wait as a clause of a sentence.
pub(super) fn clause(wait: &WaitingFor) -> String {
    let step = &wait.step;
    let at = |millis: &i64| time(*millis).as_str().unwrap_or_default().to_owned();
    match &wait.cause {
        WaitCause::Approval { prompt, .. } => {
            format!("`{step}` waits for a human approval: {}", display::line(prompt))
        }
        WaitCause::UnknownCall { .. } => {
            format!("the outcome of the call of `{step}` is unknown; a human has to state what happened")
        }
        WaitCause::Time { until: Some(until) } => format!("`{step}` sleeps until {}", at(until)),
        WaitCause::Time { until: None } => format!("`{step}` sleeps"),
        WaitCause::Retry { until: Some(until) } => format!("`{step}` will be retried at {}", at(until)),
        WaitCause::Retry { until: None } => format!("`{step}` will be retried"),
        WaitCause::Signal { event: Some(event), .. } => format!("`{step}` waits for the signal `{event}`"),
        WaitCause::Signal { event: None, .. } => format!("`{step}` waits for a signal"),
        WaitCause::Server { error } => format!("`{step}` waits for its server: {}", brief(&error.message)),
        WaitCause::IdempotencyKey => {
            format!("`{step}` waits for another step with the same idempotency key")
        }
        WaitCause::Workflow { run: Some(run) } => format!("`{step}` waits for the run {run}"),
        WaitCause::Workflow { run: None } => format!("`{step}` waits for the run of its sub-workflow"),
        WaitCause::Slot => format!("`{step}` waits for a concurrency slot"),
        WaitCause::Freeze { by, reason } => {
            let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("`{step}` waits because {by} froze all calls{reason}")
        }
    }
}

/// The next call for a run, or what the user has to do; `None` if it completed or was cancelled.
pub(super) fn next(snapshot: &RunSnapshot) -> Option<String> {
    let RunSnapshot { view, waiting, .. } = snapshot;
    let action = next_action(view.run.status, waiting)?;
    let text = instruction(view, action);
    Some(match action {
        NextAction::Decide(_) => {
            let status = json!({ "run_id": view.run.run_id, "wait_s": 30, "since_seq": view.run.seq });
            format!("{text}. Then workflow_status {status}")
        }
        _ => text,
    })
}

/// An action as an instruction to an agent: a tool call, or what its user has to do. It contains no command that decides: an
/// agent with a shell would run it.
pub(super) fn instruction(view: &RunView, action: NextAction<'_>) -> String {
    let run = view.run.run_id;
    match action {
        NextAction::Decide(WaitingFor { run_id, step, .. }) => format!(
            "tell the user that a human has to decide `{step}` of run {run_id}, in their terminal or browser; an agent \
             cannot. If they give you a single-use code, pass it to workflow_approve or workflow_deny"
        ),
        NextAction::Resolve(WaitingFor { run_id, step, .. }) => format!(
            "ask the user what happened to the call of `{step}` of run {run_id}; they state it in their terminal or \
             browser, and decide whether it is repeated or skipped; an agent cannot"
        ),
        NextAction::Signal(WaitingFor { cause, .. }) => {
            let (event, correlate) = match cause {
                WaitCause::Signal { event, correlate } => (event.as_deref(), correlate.as_ref()),
                _ => (None, None),
            };
            let call = json!({ "run_id": run, "event": event.unwrap_or("…"), "payload": correlate });
            format!("workflow_signal {call} sends the signal; the payload becomes the output of the step")
        }
        NextAction::Resume => format!("workflow_resume {} resumes the run", json!({ "run_id": run })),
        NextAction::Wait => format!(
            "workflow_status {} waits for a change; the run continues without you",
            json!({ "run_id": run, "wait_s": 30 })
        ),
        NextAction::Explain => after_failure(view),
    }
}

/// After a validation or tool error, the call that shows the inputs and outputs of the steps; after any other failure,
/// `workflow_explain`.
fn after_failure(view: &RunView) -> String {
    let run = view.run.run_id;
    match view.run.error.as_ref().map(|error| error.kind) {
        Some(FailureKind::Validation | FailureKind::ToolError) => format!(
            "workflow_status {} shows the inputs and outputs of the steps; then correct the definition or the inputs and \
             start again (an unchanged run fails again)",
            json!({ "run_id": run, "steps": ["*"] })
        ),
        _ => format!("workflow_explain {}", json!({ "run_id": run })),
    }
}
