//! `workflow_status`: the state of a run, at once or after a change; inputs and outputs of its steps.

use schemars::JsonSchema;
use serde::Deserialize;
use steprail_core::diagnostic::quoted;

use super::super::error::{ToolError, ToolResult};
use super::super::request::ToolRequest;
use super::super::snapshot::RunSnapshot;
use super::super::view::ValueSelection;
use super::super::{tasks, view};
use super::run_id;
use crate::limits::SUGGESTIONS;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Seconds to wait, up to 45.
    #[serde(default)]
    wait_s: f64,
    /// seq of the previous status.
    since_seq: Option<u64>,
    /// Ids or paths of steps; * for all.
    #[serde(default)]
    steps: Vec<String>,
    /// Where to continue in a truncated output.
    #[serde(default)]
    offset: usize,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let run = run_id(&args.run_id)?;
    tasks::wait(request, run, args.since_seq, args.wait_s).await?;
    let snapshot = RunSnapshot::read(&request.user, run).await?;
    let selection = ValueSelection { steps: args.steps, offset: args.offset };
    need_steps(&snapshot, &selection)?;
    Ok(view::run_with(&snapshot, &selection).into())
}

/// Checks that the selected steps have started.
fn need_steps(snapshot: &RunSnapshot, selection: &ValueSelection) -> Result<(), ToolError> {
    let steps = &snapshot.view.steps;
    let exists =
        |name: &&String| *name == "*" || steps.iter().any(|step| step.id == **name || step.path == **name);
    let Some(missing) = selection.steps.iter().find(|name| !exists(name)) else { return Ok(()) };
    let mut paths: Vec<&str> = steps.iter().map(|step| step.path.as_str()).collect();
    paths.dedup();
    paths.truncate(SUGGESTIONS);
    let message = format!("no step `{missing}` of the run has started");
    Err(ToolError::new("not_found", message).hint(format!("started steps: {}", quoted(&paths))))
}
