//! `workflow_start`: starts a run and waits for it for a short time.

use rmcp::model::{CallToolResponse, CallToolResult, JsonObject};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use steprail_core::source::Source;
use steprail_engine::{Error, ListRuns, RunHandle, RunRow, RunStatus, Workflow};

use super::super::error::{ToolError, ToolResult};
use super::super::findings;
use super::super::output::add_field;
use super::super::published::input_schema;
use super::super::request::ToolRequest;
use super::super::tasks::{self, ResultForm, WaitOptions};
use super::{define, find_definition};
use crate::check::{check_tools_as, require_valid};
use crate::limits::{DUPLICATE_MS, DUPLICATE_RUNS, WAIT_SECS};
use crate::signature::signature;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// Name of a stored workflow.
    name: Option<String>,
    /// The newest by default.
    version: Option<u32>,
    /// A definition as YAML or JSON text, instead of name.
    spec_yaml: Option<String>,
    /// A definition as an object, instead of name.
    spec: Option<JsonObject>,
    /// The inputs that the workflow declares.
    #[serde(alias = "inputs")]
    input: Option<JsonObject>,
    /// Up to 45; 10 by default.
    wait_s: Option<f64>,
    /// A second start with the same key returns the first run.
    idempotency_key: Option<String>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let text = define::text(args.spec_yaml, args.spec)?;
    let (workflow, source) = match (args.name, text) {
        (Some(name), None) => (Workflow::Named(name, args.version), None),
        (None, Some(text)) => {
            let source = Source::new("definition", &*text);
            (Workflow::Inline { text, source: "definition".to_owned() }, Some(source))
        }
        (Some(_), Some(_)) => {
            let error = ToolError::new("bad_input", "name and a definition cannot be used together");
            return Err(error.hint("leave one of them out"));
        }
        (None, None) => {
            let hint = "workflow_lookup {\"query\": …} finds workflows";
            return Err(ToolError::new("bad_input", "name or a definition is required").hint(hint));
        }
    };
    let warnings = match (&workflow, &source) {
        (_, Some(source)) => check_text(request, source).await?,
        (Workflow::Named(name, version), None) => check_stored(request, name, *version).await?,
        _ => Vec::new(),
    };
    let inputs = Value::Object(args.input.unwrap_or_default());
    let has_key = args.idempotency_key.is_some();
    let name = match &workflow {
        Workflow::Named(name, _) => Some(name.clone()),
        Workflow::Inline { .. } => None,
    };
    let run = match request.user_via_client().start(workflow, inputs, args.idempotency_key).await {
        Ok(run) => run,
        Err(error) => return Err(start_error(request, error, source.as_ref(), name.as_deref()).await),
    };
    let duplicate = if has_key { None } else { duplicate_of(request, &run).await? };
    let options = WaitOptions::new(args.wait_s.unwrap_or(WAIT_SECS));
    let mut response = tasks::respond(request, run.id(), ResultForm::State, options).await?;
    if let CallToolResponse::Complete(result) = &mut response {
        add_notes(result, warnings, duplicate.as_ref());
    }
    Ok(response)
}

/// Adds warnings, and a note about a possible duplicate.
fn add_notes(result: &mut CallToolResult, warnings: Vec<Value>, duplicate: Option<&RunRow>) {
    if !warnings.is_empty() {
        let lines = findings::lines(&warnings);
        add_field(result, "warnings", warnings.into(), &lines);
    }
    if let Some(duplicate) = duplicate {
        let note = format!(
            "Note: run {} of the same version was started with the same inputs a moment ago (possible_duplicate_of). If \
             you meant that one, cancel this one; with idempotency_key a repeated start returns the first run.",
            duplicate.run_id
        );
        add_field(result, "possible_duplicate_of", duplicate.run_id.to_string().into(), &note);
    }
}

/// Warnings about a definition in the arguments. A definition with errors is rejected.
async fn check_text(request: &ToolRequest, source: &Source) -> Result<Vec<Value>, ToolError> {
    let loaded = steprail_core::load(source);
    let mut diagnostics = loaded.diagnostics;
    if let (Some(plan), Some(gateway)) = (&loaded.plan, &request.shared.gateway) {
        diagnostics.extend(check_tools_as(&request.user, plan, source, gateway).await);
    }
    require_valid(&diagnostics).map_err(|_| define::has_errors(&diagnostics, source))?;
    Ok(findings::findings(&diagnostics, source))
}

/// Warnings about a stored definition, compared with the current tools.
async fn check_stored(
    request: &ToolRequest,
    name: &str,
    version: Option<u32>,
) -> Result<Vec<Value>, ToolError> {
    let definition = find_definition(request, name, version).await?;
    let source = Source::new(definition.name.as_str(), definition.spec_json.as_str());
    let plan = steprail_core::load(&source).plan;
    let (Some(plan), Some(gateway)) = (&plan, &request.shared.gateway) else { return Ok(Vec::new()) };
    Ok(findings::findings_of_stored(&check_tools_as(&request.user, plan, &source, gateway).await))
}

/// Why a run was not started, with the inputs that the workflow declares.
async fn start_error(
    request: &ToolRequest,
    error: Error,
    source: Option<&Source>,
    name: Option<&str>,
) -> ToolError {
    match (&error, source, name) {
        (Error::BadInput(_), _, Some(name)) => {
            let schema = request.user.definition(name, None).await.map(|known| input_schema(&known));
            let inputs = signature(&schema.unwrap_or_default());
            let call = define::start_call(request, name).await;
            ToolError::from(error).hint(format!("its inputs are ({inputs}); for example: {call}"))
        }
        (Error::BadInput(_), Some(_), _) => {
            ToolError::from(error).hint("pass `input` as declared in the `inputs` of the definition")
        }
        (_, Some(source), _) => define::engine_error(error, source),
        _ => error.into(),
    }
}

/// A recent run of the same user, version and inputs that has not failed. The client may have given up waiting for it.
async fn duplicate_of(request: &ToolRequest, run: &RunHandle) -> Result<Option<RunRow>, ToolError> {
    let this = request.user.row(run.id()).await?;
    let list = ListRuns {
        name: Some(this.name.clone()),
        created_by: Some(this.created_by.clone()),
        before: Some(this.cursor),
        limit: DUPLICATE_RUNS,
        ..ListRuns::default()
    };
    let has_failed = |row: &RunRow| row.status.is_terminal() && row.status != RunStatus::Completed;
    let is_duplicate = |row: &RunRow| {
        row.version == this.version
            && row.input.get() == this.input.get()
            && this.started_at.saturating_sub(row.started_at) <= DUPLICATE_MS
            && !has_failed(row)
    };
    Ok(request.user.list(list).await?.into_iter().find(is_duplicate))
}
