//! `workflow_define`: stores a version of a definition.

use rmcp::model::{CallToolResponse, JsonObject};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_core::diagnostic::{Code, Diagnostic, Severity};
use steprail_core::source::Source;
use steprail_engine::kernel::DefinitionVersion;
use steprail_engine::{Error, Expected, Right};

use super::super::error::{ToolError, ToolResult};
use super::super::findings;
use super::super::output::ToolOutput;
use super::super::published::{self, input_schema};
use super::super::request::ToolRequest;
use super::check;
use crate::check::{cannot_run, examine_as, require_valid};
use crate::signature::example;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The definition as YAML or JSON text.
    spec_yaml: Option<String>,
    /// The definition as an object.
    spec: Option<JsonObject>,
    /// Whether it is offered as the tool wf_<name>; by default as in the definition.
    publish: Option<bool>,
    #[serde(default)]
    #[schemars(skip)]
    check_only: bool,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let text = need_text(args.spec_yaml, args.spec)?;
    if args.check_only {
        return check::report(request, &text).await;
    }
    need_right(request)?;
    let source = Source::new("definition", &*text);
    let mut diagnostics = examine_as(&request.user, &source, request.shared.gateway.as_ref()).await;
    require_valid(&diagnostics).map_err(|_| has_errors(&diagnostics, &source))?;
    let (defined, found) = match request.user.define(&text, args.publish, Expected::Any).await {
        Err(Error::Invalid(found)) => return Err(has_errors(&found, &source)),
        stored => stored?,
    };
    // The other warnings were found above.
    diagnostics.extend(found.into_iter().filter(|found| found.code == Code::UnlistedPrincipal));
    let warnings = findings::findings(&diagnostics, &source);
    if defined.proposed {
        return Ok(proposed(&defined, &warnings));
    }
    let runnable = !diagnostics.iter().any(cannot_run);
    let mut message = format!("`{}` is stored as version {}", defined.name, defined.version);
    message.push_str(if runnable { "." } else { ", but a run would fail or wait in the current state." });
    if !warnings.is_empty() {
        message.push_str(&format!("\n{}", findings::lines(&warnings)));
    }
    let mut fields = json!({
        "name": defined.name,
        "version": defined.version,
        "runnable": runnable,
        "warnings": warnings,
    });
    let next = match repair(&diagnostics) {
        Some(repair) => format!("{repair}; then workflow_define again"),
        None => start_call(request, &defined.name).await,
    };
    let published = published::tool_name(request, &defined.name).await;
    if let Some(tool) = published {
        message.push_str(&format!("\nIt is offered as the tool {tool}."));
        fields["published_as"] = tool.into();
    }
    Ok(ToolOutput::new(fields, message)
        .in_message(&["name", "version", "warnings", "runnable", "published_as"])
        .next(next)
        .into())
}

/// The reply to a definition that a person has to accept. It names no command that would accept it.
fn proposed(defined: &DefinitionVersion, warnings: &[Value]) -> CallToolResponse {
    let name = &defined.name;
    let mut message = format!(
        "`{name}` is stored as a proposal: the policy requires that a person accepts it. It cannot be started before."
    );
    if !warnings.is_empty() {
        message.push_str(&format!("\n{}", findings::lines(warnings)));
    }
    let fields = json!({
        "name": name,
        "proposed": true,
        "hash": defined.hash.to_string(),
        "runnable": false,
        "warnings": warnings,
    });
    ToolOutput::new(fields, message)
        .in_message(&["name", "warnings", "runnable", "proposed"])
        .next("tell the user that the proposal waits for a person; check later with workflow_lookup")
        .into()
}

/// Checks the right to define workflows.
pub(super) fn need_right(request: &ToolRequest) -> Result<(), ToolError> {
    if request.user.may(Right::Workflow) {
        return Ok(());
    }
    Err(Error::Denied(format!("{} may not define workflows", request.user.principal().id)).into())
}

/// What to do before a definition can run; `None` if it can.
pub(super) fn repair(diagnostics: &[Diagnostic]) -> Option<&'static str> {
    let has = |code: Code| diagnostics.iter().any(|diagnostic| diagnostic.code == code);
    if !diagnostics.iter().any(cannot_run) {
        None
    } else if require_valid(diagnostics).is_err() {
        Some("correct every error; workflow_guide describes the language, workflow_tools the arguments")
    } else if has(Code::UnknownTool) {
        Some("correct the name of the tool; workflow_tools {\"query\": …} finds tools and their arguments")
    } else if has(Code::UnknownOutput) {
        Some("correct the reference; the hint lists the available fields")
    } else if has(Code::UnknownWorkflow) {
        Some("define the workflow that the step names")
    } else if has(Code::ToolDenied) {
        Some("use a tool that workflow_tools lists, or ask for the right")
    } else {
        Some("ask the user to check the server that is down")
    }
}

/// The call that starts a workflow, with example inputs.
pub(super) async fn start_call(request: &ToolRequest, name: &str) -> String {
    let inputs = match request.user.definition(name, None).await {
        Ok(definition) => example(&input_schema(&definition)),
        Err(_) => json!({}),
    };
    format!("workflow_start {}", json!({ "name": name, "input": inputs }))
}

/// The text of a definition from `spec_yaml` or `spec`; `None` without either.
pub(super) fn text(yaml: Option<String>, spec: Option<JsonObject>) -> Result<Option<String>, ToolError> {
    match (yaml, spec) {
        (Some(_), Some(_)) => {
            let hint = "leave one of them out";
            Err(ToolError::new("bad_input", "spec_yaml and spec cannot be used together").hint(hint))
        }
        (Some(text), None) => Ok(Some(text)),
        (None, spec) => Ok(spec.map(|map| Value::Object(map).to_string())),
    }
}

/// The text of a definition; an error without one.
pub(super) fn need_text(yaml: Option<String>, spec: Option<JsonObject>) -> Result<String, ToolError> {
    let hint = "pass spec_yaml or spec; workflow_guide has three complete definitions";
    text(yaml, spec)?.ok_or_else(|| ToolError::new("bad_input", "the definition is missing").hint(hint))
}

/// An error of the engine about a definition.
pub(super) fn engine_error(error: Error, source: &Source) -> ToolError {
    match error {
        Error::Invalid(diagnostics) => has_errors(&diagnostics, source),
        error => error.into(),
    }
}

/// The error for a definition with errors: every problem with its position, warnings included.
pub(super) fn has_errors(diagnostics: &[Diagnostic], source: &Source) -> ToolError {
    let is_error = |diagnostic: &&Diagnostic| diagnostic.code.severity() == Severity::Error;
    let errors = diagnostics.iter().filter(is_error).count();
    let message = format!("the definition has {errors} error{}", if errors == 1 { "" } else { "s" });
    let hint = "correct every problem and call again; workflow_guide describes the language, workflow_tools the arguments \
                of tools";
    let findings = findings::findings(diagnostics, source);
    ToolError::new("invalid_definition", message).findings(findings).hint(hint)
}
