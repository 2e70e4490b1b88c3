//! `workflow_explain`: what happened in a run, in words, and what can be done.

use serde_json::json;
use steprail_engine::{
    Failure, FailureKind, NextAction, RunStatus, RunView, StepRow, StepStatus, WaitingFor, next_action,
};

use super::super::error::ToolResult;
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use super::super::snapshot::RunSnapshot;
use super::super::{Shared, view, waiting};
use super::{RunArgs, run_id};
use crate::check::{reason, servers};
use crate::limits::LISTED_STEPS;
use crate::names::{self, alias};

pub(super) async fn run(request: &ToolRequest, args: RunArgs) -> ToolResult {
    let run = run_id(&args.run_id)?;
    let snapshot = RunSnapshot::read(&request.user, run).await?;
    let history = history(&snapshot);
    let options = options(&request.shared, &snapshot).await;
    let message = format!("{}\nOptions:\n- {}", history.join("\n"), options.join("\n- "));
    let status = snapshot.view.run.status;
    let fields = json!({ "run_id": run, "status": status, "history": history, "options": options });
    Ok(ToolOutput::new(fields, message).in_message(&["run_id", "status", "history", "options"]).into())
}

/// What happened, one line per step.
pub(in super::super) fn history(snapshot: &RunSnapshot) -> Vec<String> {
    let view = &snapshot.view;
    let run = &view.run;
    let mut lines = vec![format!(
        "{} (run_id {}, version {}), started by {}: {}.",
        run.name,
        run.run_id,
        run.version,
        run.created_by,
        run.status.name()
    )];
    let omitted = view::omitted_steps(view);
    if omitted > 0 {
        lines.push(format!("({omitted} earlier steps are left out.)"));
    }
    lines.extend(view.steps.iter().map(|step| line(step, run.error.as_ref())));
    let why = |error: &Failure| format!("The run failed ({}): {}", error.kind.name(), view::in_brief(error));
    lines.extend(run.error.iter().map(why));
    lines.extend(view::notes(snapshot));
    lines
}

/// A step in one line. The message of the failure that ended the run is only in the last line.
fn line(step: &StepRow, run_error: Option<&Failure>) -> String {
    let tool = step.tool.as_ref().map(|tool| format!(" calls {tool}")).unwrap_or_default();
    let attempt = if step.attempt > 1 { format!(" (attempt {})", step.attempt) } else { String::new() };
    let why = match &step.error {
        Some(error) if run_error.is_some_and(|run| run.message == error.message) => String::new(),
        Some(error) => format!(": {}", view::in_brief(error)),
        None => String::new(),
    };
    format!("`{}`{tool}{attempt}: {}{why}", step.path, step.status.name())
}

async fn options(shared: &Shared, snapshot: &RunSnapshot) -> Vec<String> {
    let view = &snapshot.view;
    match view.run.status {
        RunStatus::Completed if view::notes(snapshot).is_empty() => vec!["nothing is left to do".to_owned()],
        RunStatus::Completed => vec![show_values(view), correct(view)],
        RunStatus::Failed => options_after_failure(shared, snapshot).await,
        RunStatus::Cancelled => {
            vec![format!("workflow_rerun {} starts a new run", json!({ "run_id": view.run.run_id }))]
        }
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused | RunStatus::Interrupted => {
            options_while_open(snapshot)
        }
    }
}

/// The actions that end the waits of a run, then those that are always possible.
fn options_while_open(snapshot: &RunSnapshot) -> Vec<String> {
    let RunSnapshot { view, waiting, .. } = snapshot;
    let waits = waiting.iter().map(WaitingFor::action).filter(|action| *action != NextAction::Wait);
    let mut actions: Vec<NextAction<'_>> = waits.take(LISTED_STEPS).collect();
    if next_action(view.run.status, waiting) == Some(NextAction::Resume) {
        actions.insert(0, NextAction::Resume);
    }
    actions.push(NextAction::Wait);
    let options = actions.into_iter().map(|action| waiting::instruction(view, action));
    let cancel = format!("workflow_cancel {} cancels it", json!({ "run_id": view.run.run_id }));
    options.chain([cancel]).collect()
}

fn show_values(view: &RunView) -> String {
    let call = json!({ "run_id": view.run.run_id, "steps": ["*"] });
    format!("workflow_status {call} shows the inputs and outputs of the steps")
}

/// A rerun makes the same calls with the same arguments: it is suggested only where it can succeed.
async fn options_after_failure(shared: &Shared, snapshot: &RunSnapshot) -> Vec<String> {
    let RunSnapshot { view, notable, .. } = snapshot;
    let Some(error) = &view.run.error else { return vec![correct(view)] };
    let step = notable.iter().rev().find(|step| step.status == StepStatus::Failed);
    let tool = step.and_then(|step| step.tool.as_deref());
    let rerun = json!({ "run_id": view.run.run_id, "reuse": true });
    let rerun = format!("workflow_rerun {rerun} runs it again and reuses the results of successful calls");
    match error.kind {
        FailureKind::Permission => vec![
            format!("ask an administrator for the right to call {}", tool.unwrap_or("the tool")),
            format!("after the grant: {rerun}"),
        ],
        FailureKind::NotFound => {
            let search = json!({ "query": tool.map(names::tool) });
            vec![format!("workflow_tools {search} finds the available tools"), correct(view)]
        }
        FailureKind::Validation => vec![show_values(view), correct(view)],
        FailureKind::Transport => match unreachable_server(shared, tool).await {
            Some(server) => vec![
                format!(
                    "ask the user to check the server: steprail servers; steprail servers restart {server}"
                ),
                format!("when it is up: {rerun}"),
            ],
            None => vec![rerun],
        },
        FailureKind::Timeout | FailureKind::Lost => vec![
            "find out what the last call did: its outcome is unknown".to_owned(),
            format!("if it may be repeated: {rerun}"),
        ],
        FailureKind::ToolError => vec![
            show_values(view),
            correct(view),
            format!("only if the cause was outside of the run and is resolved: {rerun}"),
        ],
        _ => vec![rerun],
    }
}

/// The server of a tool, if it is down.
async fn unreachable_server(shared: &Shared, tool: Option<&str>) -> Option<String> {
    let (server, _) = names::split(tool?)?;
    let all = servers(shared.gateway.as_ref()?).await;
    let found = all.into_iter().find(|known| alias(&known.name) == server)?;
    reason(&found).map(|_| found.name)
}

fn correct(view: &RunView) -> String {
    let name = json!({ "name": view.run.name });
    format!(
        "correct the definition (workflow_lookup {name} returns it if it is stored) or the inputs, then workflow_start; \
         the same version with the same inputs fails again"
    )
}
