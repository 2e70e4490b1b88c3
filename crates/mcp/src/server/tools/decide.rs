//! `workflow_approve` and `workflow_deny`: redeem the single-use code of a person at a gate.
//!
//! A client is an agent and decides nothing. The code carries the decision of the person who issued it, and the agent
//! learns it only from them.

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use steprail_engine::{Error, RedeemRequest};

use super::super::error::{ToolError, ToolResult};
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use super::run_id;

/// Where a code comes from. It names no command: an agent with a shell would run it.
const ASK_FOR_CODE: &str = "tell the user what waits for a decision; they look at it in their terminal or browser, and either decide \
                            there or give you the single-use code that is shown there";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Path of the step that waits, from workflow_status.
    #[serde(alias = "step")]
    step_name: String,
    /// The single-use code that the user got for exactly this decision. Only the user can get one.
    #[serde(default)]
    #[schemars(with = "String", required)]
    code: Option<String>,
    /// Recorded in the log as stated by you, if the user stated no reason.
    reason: Option<String>,
    /// Not used: the code carries the digest of the request that the user saw.
    #[schemars(skip)]
    #[serde(rename = "digest")]
    _digest: Option<String>,
    /// Not used: the code carries the answer of the user.
    #[schemars(skip)]
    #[serde(rename = "answer")]
    _answer: Option<JsonObject>,
}

pub(super) async fn approve(request: &ToolRequest, args: Args) -> ToolResult {
    decide(request, args, true).await
}

pub(super) async fn deny(request: &ToolRequest, args: Args) -> ToolResult {
    decide(request, args, false).await
}

async fn decide(request: &ToolRequest, args: Args, approved: bool) -> ToolResult {
    let run = run_id(&args.run_id)?;
    let Some(code) = args.code.as_deref().filter(|code| !code.trim().is_empty()) else {
        let message = "a decision needs the single-use code of a person; you cannot decide";
        return Err(ToolError::new("code_required", message).hint(ASK_FOR_CODE));
    };
    let (path, note) = (&*args.step_name, args.reason.as_deref());
    let redeemed = request.user.redeem_code(RedeemRequest { run, path, approved, code, note }).await;
    redeemed.map_err(|error| match error {
        Error::Denied(_) | Error::PresenceRequired(_) => ToolError::from(error).hint(ASK_FOR_CODE),
        error => error.into(),
    })?;
    let decision = if approved { "approved" } else { "denied" };
    let fields = json!({ "run_id": run, "step": args.step_name, "decision": decision });
    let message = format!("`{}` was {decision} by {}.", args.step_name, request.user.principal().id);
    Ok(ToolOutput::new(fields, message)
        .link_run(run)
        .next("workflow_status with wait_s=30 waits for the next change")
        .into())
}
