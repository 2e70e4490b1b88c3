//! `workflow_signal`: sends a signal to a run, or to the runs that wait for it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::error::ToolResult;
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use super::run_id;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// Name of the signal.
    event: String,
    /// Payload of the signal: any JSON.
    #[serde(default)]
    payload: Value,
    /// The run that receives it.
    #[serde(alias = "workflow_id")]
    run_id: Option<String>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let run = args.run_id.as_deref().map(run_id).transpose()?;
    let reached = request.user.signal(&args.event, args.payload, run).await?;
    let message = match reached {
        0 => format!("No run waits for the signal `{}`, so it was not delivered.", args.event),
        1 => format!("`{}` was delivered to one run.", args.event),
        _ => format!("`{}` was delivered to {reached} runs.", args.event),
    };
    let output = ToolOutput::new(json!({ "event": args.event, "reached": reached }), message);
    Ok(match run {
        Some(run) => output.next(format!("workflow_status {}", json!({ "run_id": run, "wait_s": 30 }))),
        None if reached == 0 => {
            output.next("workflow_list_runs {\"status\": \"running\"} lists runs that may wait for a signal")
        }
        None => output,
    }
    .into())
}
