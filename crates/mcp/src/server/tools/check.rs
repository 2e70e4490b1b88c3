//! `workflow_check`: reports every problem of a definition without storing it.

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use steprail_core::source::Source;

use super::super::error::ToolResult;
use super::super::findings;
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use super::define;
use crate::check::{cannot_run, examine_as, require_valid};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The definition as YAML or JSON text.
    spec_yaml: Option<String>,
    /// The definition as an object.
    spec: Option<JsonObject>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let text = define::need_text(args.spec_yaml, args.spec)?;
    report(request, &text).await
}

/// Every problem of a definition, and what to do next.
pub(super) async fn report(request: &ToolRequest, text: &str) -> ToolResult {
    define::need_right(request)?;
    let source = Source::new("definition", text);
    let diagnostics = examine_as(&request.user, &source, request.shared.gateway.as_ref()).await;
    let (valid, runnable) = (require_valid(&diagnostics).is_ok(), !diagnostics.iter().any(cannot_run));
    let problems = findings::findings(&diagnostics, &source);
    let mut message = match (valid, runnable, problems.len()) {
        (true, true, 0) => "The definition has no problems.".to_owned(),
        (true, true, _) => "The definition can run, with warnings:".to_owned(),
        (true, false, _) => {
            "The definition can be stored, but a run would fail or wait in the current state:".to_owned()
        }
        (false, ..) => "The definition has errors:".to_owned(),
    };
    if !problems.is_empty() {
        message.push_str(&format!("\n{}", findings::lines(&problems)));
    }
    let next = match define::repair(&diagnostics) {
        Some(repair) => format!("{repair}; then workflow_check again"),
        None if problems.is_empty() => "workflow_define with the same definition stores it".to_owned(),
        None => "read the warnings; workflow_define with the same definition stores it".to_owned(),
    };
    let fields = json!({ "valid": valid, "runnable": runnable, "problems": problems });
    Ok(ToolOutput::new(fields, message).in_message(&["valid", "runnable", "problems"]).next(next).into())
}
