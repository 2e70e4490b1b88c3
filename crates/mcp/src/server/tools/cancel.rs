//! `workflow_cancel`: cancels a run and the runs of its sub-workflows.

use schemars::JsonSchema;
use serde::Deserialize;

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
    /// Why; recorded in the log.
    reason: Option<String>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let run = run_id(&args.run_id)?;
    let reason = args.reason.unwrap_or_else(|| "cancelled over MCP".to_owned());
    if !request.user.row(run).await?.status.is_terminal() {
        request.user.cancel(run, &reason).await?;
    }
    Ok(view::run(&RunSnapshot::read(&request.user, run).await?).into())
}
