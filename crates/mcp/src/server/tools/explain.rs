//! `workflow_explain`: what happened in a run, in words, and what can be done.

use serde_json::json;
use steprail_engine::{FailureKind, RunStatus, RunView, StepRow};

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts};
use super::{Entry, Hints, OfRun, run_id, schema};
use crate::limits::HISTORY;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_explain",
    dotted: None,
    title: "Explain a run",
    description: "Tells what happened in a run, step by step, why it failed or what it waits for, and what can be done.",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<OfRun>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: OfRun = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    let view = asked.user.status(run).await?;
    let story = story(&view);
    let options = options(&view);
    let facts = json!({ "run_id": run, "status": view.run.status, "story": story, "options": options });
    let message = format!("{}\nWhat can be done:\n- {}", story.join("\n"), options.join("\n- "));
    Ok(Facts::new(facts, message).about(run).into())
}

/// What happened, one line per step.
pub(in super::super) fn story(view: &RunView) -> Vec<String> {
    let run = &view.run;
    let mut lines = vec![format!(
        "{} (version {}), started by {}: {}.",
        run.name,
        run.version,
        run.created_by,
        run.status.word()
    )];
    let skipped = view.steps.len().saturating_sub(HISTORY);
    if skipped > 0 {
        lines.push(format!("({skipped} earlier steps are left out.)"));
    }
    lines.extend(view.steps[skipped..].iter().map(line));
    lines.extend(run.error.iter().map(|error| format!("The run failed ({}): {error}", error.kind.word())));
    lines
}

fn line(step: &StepRow) -> String {
    let tool = step.tool.as_ref().map(|tool| format!(" calls {tool}")).unwrap_or_default();
    let attempt = if step.attempt > 1 { format!(" (attempt {})", step.attempt) } else { String::new() };
    let why = step.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("`{}`{tool}{attempt}: {}{why}", step.path, step.status)
}

/// What can be done about it.
fn options(view: &RunView) -> Vec<String> {
    let run = view.run.run_id;
    let failed = view.steps.iter().rev().find(|step| step.status == "failed");
    let kind = view.run.error.as_ref().map(|error| error.kind);
    match view.run.status {
        RunStatus::Completed => vec!["nothing: it is done".to_owned()],
        RunStatus::Failed => {
            let cause = match kind {
                Some(FailureKind::Permission) => "a right is missing: ask whoever administers the grants",
                Some(FailureKind::NotFound) => {
                    "the tool is not there: correct its name, or see to its server"
                }
                Some(FailureKind::Validation) => {
                    "the arguments do not fit: correct the definition or the inputs"
                }
                Some(FailureKind::Transport) => "the server could not be reached: see to it, then run again",
                Some(FailureKind::Timeout | FailureKind::Lost) => {
                    "what the last call did is unknown: find out before you run again"
                }
                _ => "see what the tool says, and correct the inputs or the definition",
            };
            let at = failed.map(|step| format!(" (`{}`)", step.path)).unwrap_or_default();
            vec![
                format!("{cause}{at}"),
                format!(
                    "workflow_rerun {{\"run_id\": \"{run}\", \"reuse\": true}} runs it again and keeps what succeeded"
                ),
            ]
        }
        RunStatus::Cancelled => vec![format!("workflow_rerun {{\"run_id\": \"{run}\"}} starts it anew")],
        RunStatus::Interrupted => vec![format!("workflow_resume {{\"run_id\": \"{run}\"}} lets it go on")],
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused => waits(view),
    }
}

fn waits(view: &RunView) -> Vec<String> {
    let gates = view
        .approvals
        .iter()
        .map(|gate| format!("a human approves or denies `{}`: {}", gate.path, gate.prompt));
    let unknown = view.unknown_calls.iter().map(|call| {
        format!(
            "a human says what became of `{0}`: steprail resume {1} with --happened {0}=JSON, --retry {0} or --skip {0}",
            call.path, call.run_id
        )
    });
    let mut options: Vec<String> = gates.chain(unknown).collect();
    options.push(format!(
        "workflow_status {} waits for news",
        json!({ "run_id": view.run.run_id, "wait_s": 30 })
    ));
    options.push(format!("workflow_cancel {} stops it", json!({ "run_id": view.run.run_id })));
    options
}
