//! `workflow_intervene`: a human changes a run that has not ended.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{InterventionAction, InterventionRequest};

use super::super::error::ToolResult;
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use super::super::snapshot::RunSnapshot;
use super::super::view;
use super::run_id;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// What to do.
    action: InterventionAction,
    /// Path of the step; its id for set_output. Not for set_inputs.
    step: Option<String>,
    /// The arguments, the output, the inputs or the result.
    value: Option<Value>,
    /// For a call with an unknown outcome: the digest of the attempt, from workflow_status.
    digest: Option<String>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let run = run_id(&args.run_id)?;
    let Args { action, step, value, digest, .. } = args;
    request.user.intervene(run, InterventionRequest { action, step: step.clone(), value, digest }).await?;
    Ok(match RunSnapshot::read(&request.user, run).await {
        Ok(snapshot) => view::run(&snapshot),
        // The right `approve` does not include the right to see the run.
        Err(_) => ToolOutput::new(json!({ "run_id": run, "step": step }), "The run was changed."),
    }
    .into())
}
