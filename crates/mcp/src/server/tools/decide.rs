//! `workflow_approve` and `workflow_deny`: the decision of a human at a gate. The engine checks the right.

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_core::plan::Hash;

use super::super::error::{ToolError, ToolResult};
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use super::run_id;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Path of the step that waits, from workflow_status.
    #[serde(alias = "step")]
    step_name: String,
    /// Why; recorded in the log.
    reason: Option<String>,
    /// The answer to an input request of the step's tool, matching the form in workflow_status.
    answer: Option<JsonObject>,
    /// The digest from workflow_status: the decision is rejected if the request has changed since.
    digest: Option<String>,
}

pub(super) async fn approve(request: &ToolRequest, args: Args) -> ToolResult {
    decide(request, args, true).await
}

pub(super) async fn deny(request: &ToolRequest, args: Args) -> ToolResult {
    decide(request, args, false).await
}

async fn decide(request: &ToolRequest, args: Args, approved: bool) -> ToolResult {
    let run = run_id(&args.run_id)?;
    let digest = match &args.digest {
        None => None,
        Some(text) => {
            let invalid = || {
                ToolError::new("bad_input", "invalid digest")
                    .hint("workflow_status shows the digest of an open approval")
            };
            Some(Hash::from_hex(text).ok_or_else(invalid)?)
        }
    };
    match args.answer {
        Some(answer) if approved => {
            request.user.answer(run, &args.step_name, Value::Object(answer), digest).await?;
        }
        _ => request.user.decide(run, &args.step_name, approved, args.reason, digest).await?,
    }
    let decision = if approved { "approved" } else { "denied" };
    let fields = json!({ "run_id": run, "step": args.step_name, "decision": decision });
    let message = format!("`{}` was {decision} by {}.", args.step_name, request.user.principal().id);
    Ok(ToolOutput::new(fields, message)
        .link_run(run)
        .next("workflow_status with wait_s=30 waits for the next change")
        .into())
}
