//! `workflow_rerun`: starts a new run of the workflow of an ended run.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::error::ToolResult;
use super::super::request::ToolRequest;
use super::super::tasks::{self, ResultForm, WaitOptions};
use super::run_id;
use crate::limits::WAIT_SECS;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The run that ended.
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Whether results of its calls are reused where path and arguments are the same; false by default.
    #[serde(default)]
    reuse: bool,
    /// Paths of steps whose results are not reused.
    #[serde(default)]
    run_anew: Vec<String>,
    /// Up to 45; 10 by default.
    wait_s: Option<f64>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let run = run_id(&args.run_id)?;
    let reuse = args.reuse.then_some(args.run_anew);
    let rerun = request.user_via_client().rerun(run, reuse).await?;
    let options = WaitOptions::new(args.wait_s.unwrap_or(WAIT_SECS));
    tasks::respond(request, rerun.id(), ResultForm::State, options).await
}
