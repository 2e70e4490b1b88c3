//! `workflow_explain`: what happened in a run, in words, and what can be done.

use serde_json::json;
use steprail_engine::{Failure, FailureKind, RunStatus, RunView, StepRow};

use super::super::answer::{Answer, Asked, Facts};
use super::super::{Shared, view};
use super::{Entry, Hints, OfRun, run_id, schema};
use crate::check::{reason, servers};
use crate::limits::HISTORY;
use crate::names::{self, alias};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_explain",
    dotted: None,
    title: "Explain a run",
    description: "What happened in a run, step by step, why it failed or what it waits for, and what to do.",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<OfRun>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

async fn run(shared: &Shared, asked: &Asked) -> Answer {
    let args: OfRun = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    let view = asked.user.status(run).await?;
    let story = story(&view);
    let options = options(shared, &view).await;
    let message = format!("{}\nWhat can be done:\n- {}", story.join("\n"), options.join("\n- "));
    let facts = json!({ "run_id": run, "status": view.run.status, "story": story, "options": options });
    Ok(Facts::new(facts, message).worded(&["run_id", "status", "story", "options"]).into())
}

/// What happened, one line per step.
pub(in super::super) fn story(view: &RunView) -> Vec<String> {
    let run = &view.run;
    let mut lines = vec![format!(
        "{} (run_id {}, version {}), started by {}: {}.",
        run.name,
        run.run_id,
        run.version,
        run.created_by,
        run.status.word()
    )];
    let skipped = view.steps.len().saturating_sub(HISTORY);
    if skipped > 0 {
        lines.push(format!("({skipped} earlier steps are left out.)"));
    }
    lines.extend(view.steps[skipped..].iter().map(|step| line(step, run.error.as_ref())));
    let why = |error: &Failure| format!("The run failed ({}): {}", error.kind.word(), view::in_brief(error));
    lines.extend(run.error.iter().map(why));
    lines.extend(view::notes(view));
    lines
}

/// A step in one line. The message of the failure that ended the run stands in the last line only.
fn line(step: &StepRow, of_run: Option<&Failure>) -> String {
    let tool = step.tool.as_ref().map(|tool| format!(" calls {tool}")).unwrap_or_default();
    let attempt = if step.attempt > 1 { format!(" (attempt {})", step.attempt) } else { String::new() };
    let why = match &step.error {
        Some(error) if of_run.is_some_and(|told| told.message == error.message) => String::new(),
        Some(error) => format!(": {}", view::in_brief(error)),
        None => String::new(),
    };
    format!("`{}`{tool}{attempt}: {}{why}", step.path, step.status)
}

/// What can be done about it.
async fn options(shared: &Shared, view: &RunView) -> Vec<String> {
    let run = json!({ "run_id": view.run.run_id });
    match view.run.status {
        RunStatus::Completed if view::notes(view).is_empty() => vec!["nothing is left to do".to_owned()],
        RunStatus::Completed => vec![
            format!("workflow_status {} shows what the steps took and gave", all_steps(view)),
            format!("{}, if that is not what was meant", correct(view)),
        ],
        RunStatus::Failed => failed(shared, view).await,
        RunStatus::Cancelled => vec![format!("workflow_rerun {run} starts it anew")],
        RunStatus::Interrupted => vec![format!("workflow_resume {run} lets it go on")],
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused => waits(view),
    }
}

fn all_steps(view: &RunView) -> serde_json::Value {
    json!({ "run_id": view.run.run_id, "steps": ["*"] })
}

/// A rerun makes the same calls with the same arguments: it is named only where it can succeed.
async fn failed(shared: &Shared, view: &RunView) -> Vec<String> {
    let Some(error) = &view.run.error else { return vec![correct(view)] };
    let step = view.steps.iter().rev().find(|step| step.status == "failed");
    let tool = step.and_then(|step| step.tool.as_deref());
    let rerun = json!({ "run_id": view.run.run_id, "reuse": true });
    let rerun = format!("workflow_rerun {rerun} runs it again and keeps what succeeded");
    let values = format!("workflow_status {} shows what the steps took and gave", all_steps(view));
    match error.kind {
        FailureKind::Permission => vec![
            format!("ask an administrator for the right to call {}", tool.unwrap_or("the tool")),
            format!("once it is granted: {rerun}"),
        ],
        FailureKind::NotFound => {
            let search = json!({ "query": tool.map(names::tool) });
            vec![format!("workflow_tools {search} finds the tools that there are"), correct(view)]
        }
        FailureKind::Validation => vec![values, correct(view)],
        FailureKind::Transport => match down(shared, tool).await {
            Some(server) => vec![
                format!(
                    "ask the user to look at the server: steprail servers; steprail servers restart {server}"
                ),
                format!("once it is up: {rerun}"),
            ],
            None => vec![rerun],
        },
        FailureKind::Timeout | FailureKind::Lost => vec![
            "find out what the last call did: its outcome is unknown".to_owned(),
            format!("if it may be repeated: {rerun}"),
        ],
        FailureKind::ToolError => {
            vec![values, correct(view), format!("only if the cause lay outside and is gone: {rerun}")]
        }
        _ => vec![rerun],
    }
}

/// The server of a tool, if it cannot be reached now.
async fn down(shared: &Shared, tool: Option<&str>) -> Option<String> {
    let (server, _) = names::split(tool?)?;
    let all = servers(shared.gateway.as_ref()?).await;
    let found = all.into_iter().find(|known| alias(&known.name) == server)?;
    reason(&found).map(|_| found.name)
}

fn correct(view: &RunView) -> String {
    let name = json!({ "name": view.run.name });
    format!(
        "correct the definition (workflow_lookup {name} shows it if it is stored) or the inputs, then workflow_start; the \
         same version with the same inputs fails again"
    )
}

fn waits(view: &RunView) -> Vec<String> {
    let gates = view.approvals.iter().map(|gate| {
        format!(
            "a human decides `{0}` in the terminal: steprail approve {1} {0}; {2}",
            gate.path, gate.run_id, gate.prompt
        )
    });
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
