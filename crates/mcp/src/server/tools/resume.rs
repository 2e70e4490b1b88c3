//! `workflow_resume`: resumes a run that was paused or interrupted.

use schemars::JsonSchema;
use serde::Deserialize;
use steprail_engine::Resume;

use super::super::error::ToolResult;
use super::super::request::ToolRequest;
use super::super::snapshot::RunSnapshot;
use super::super::view;
use super::run_id;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Paths of steps whose calls are repeated although their outcome is unknown.
    #[serde(default)]
    force_steps: Vec<String>,
    /// Fail if the outcome of a call is unknown and its step is not in force_steps.
    #[serde(default)]
    strict: bool,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let run = run_id(&args.run_id)?;
    let resume = Resume { force_steps: args.force_steps, strict: args.strict, expected_hash: None };
    request.user.resume(run, resume).await?;
    Ok(view::run(&RunSnapshot::read(&request.user, run).await?).into())
}
