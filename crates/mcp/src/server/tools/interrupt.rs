//! `workflow_interrupt`: pauses a run before its next step.

use super::super::error::ToolResult;
use super::super::request::ToolRequest;
use super::super::snapshot::RunSnapshot;
use super::super::view;
use super::{RunArgs, run_id};

pub(super) async fn run(request: &ToolRequest, args: RunArgs) -> ToolResult {
    let run = run_id(&args.run_id)?;
    request.user.pause(run).await?;
    Ok(view::run(&RunSnapshot::read(&request.user, run).await?).into())
}
