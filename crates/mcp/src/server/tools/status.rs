//! `workflow_status`: the state of a run, at once or after a change; inputs and outputs of its steps.

use schemars::JsonSchema;
use serde::Deserialize;
use steprail_core::diagnostic::quoted;
use steprail_engine::{ListSteps, RunId, StepFilter};

use super::super::error::{ToolError, ToolResult};
use super::super::request::ToolRequest;
use super::super::snapshot::RunSnapshot;
use super::super::view::ValueSelection;
use super::super::{tasks, view};
use super::run_id;
use crate::limits::{LISTED_STEPS, SUGGESTIONS};

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
    let selection = ValueSelection { steps: args.steps, offset: args.offset };
    let snapshot = if selection.steps.is_empty() {
        RunSnapshot::read(&request.user, run).await?
    } else {
        need_steps(request, run, &selection.steps).await?;
        RunSnapshot::read_selected(&request.user, run, &selection.steps).await?
    };
    Ok(view::run_with(&snapshot, &selection).into())
}

/// Checks that the selected steps have started.
async fn need_steps(request: &ToolRequest, run: RunId, names: &[String]) -> Result<(), ToolError> {
    if names.len() > LISTED_STEPS {
        let message = format!("`steps` has {} names; at most {LISTED_STEPS} are allowed", names.len());
        return Err(ToolError::new("bad_input", message).hint("use * for the last steps"));
    }
    let first = |filter, limit| ListSteps { filter, limit, brief: true, ..ListSteps::default() };
    for name in names.iter().filter(|name| *name != "*") {
        let only = first(StepFilter::Named(vec![name.clone()]), 1);
        if request.user.steps(run, only).await?.steps.is_empty() {
            let started = request.user.steps(run, first(StepFilter::All, SUGGESTIONS)).await?.steps;
            let mut paths: Vec<&str> = started.iter().map(|step| step.path.as_str()).collect();
            paths.dedup();
            let message = format!("no step `{name}` of the run has started");
            return Err(
                ToolError::new("not_found", message).hint(format!("started steps: {}", quoted(&paths)))
            );
        }
    }
    Ok(())
}
