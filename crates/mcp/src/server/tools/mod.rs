//! The tools with which agents control workflows: one file per tool.

#![expect(
    clippy::doc_markdown,
    reason = "doc comments of arguments are their descriptions in the schema, which models read"
)]

mod cancel;
mod catalogue;
mod check;
mod decide;
mod define;
mod events;
mod explain;
mod find_tools;
mod guide;
mod interrupt;
mod intervene;
mod list_definitions;
mod list_runs;
mod lookup;
mod rerun;
mod resume;
mod schema;
mod signal;
mod start;
mod status;

use std::str::FromStr;

use rmcp::model::{CallToolResponse, ErrorData, Tool};
use schemars::JsonSchema;
use steprail_core::diagnostic::{nearest, quoted};
use steprail_core::spec::publish::TaskMode;
use steprail_engine::{Definition, Error, InvalidCursor, Right, RunId, User};

use super::error::{ToolError, ToolResult};
use super::published::{self, PublishedTool};
use super::request::ToolRequest;
use super::tasks::{self, ResultForm, WaitOptions};
use super::{Shared, gates, relayed};

use crate::headers;
use crate::limits::{SUGGESTIONS, WAIT_SECS};
use crate::names;
use catalogue::ALL;
pub(super) use catalogue::ToolDef;
pub(super) use events::fields as event_fields;
pub(super) use explain::history;
pub(super) use guide::guide;

/// Which names of tools are listed. Calls may use any of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolNames {
    /// `workflow_start`: names that every client accepts.
    #[default]
    Underscore,
    /// `workflows.run`, for tools that have such an alias.
    Dotted,
    /// Both.
    Both,
}

/// The names of the tools that are offered to a user with the rights for which `may` returns true.
pub fn offered(may: impl Fn(Right) -> bool) -> Vec<&'static str> {
    ALL.iter().filter(|tool| tool.is_offered(&may)).map(|tool| tool.name).collect()
}

/// Whether a name is an alias of a tool.
pub(super) fn is_alias(name: &str) -> bool {
    find(name).is_some_and(|tool| tool.name != name)
}

/// A tool by its name or alias.
pub(super) fn find(name: &str) -> Option<&'static ToolDef> {
    ALL.iter().find(|tool| tool.has_name(name))
}

/// The tools that are offered to a user: Steprail's own, published workflows, exposed tools of other servers.
pub(super) async fn list(shared: &Shared, user: &User) -> Result<Vec<Tool>, ErrorData> {
    let redeems = user.may_redeem_codes();
    let is_offered = |tool: &&ToolDef| {
        if tool.takes_code() { redeems } else { tool.is_offered(|right| user.may(right)) }
    };
    let own = ALL.iter().filter(is_offered);
    let mut tools: Vec<Tool> = own.flat_map(|tool| tool.tools(shared.settings.tool_names)).collect();
    tools.extend(published::tools(shared, user).await?);
    tools.extend(exposed(shared, user).await);
    Ok(tools)
}

/// The exposed tools of other servers that a user may call.
async fn exposed(shared: &Shared, user: &User) -> Vec<Tool> {
    let (Some(gateway), false) = (&shared.gateway, shared.settings.expose.is_empty()) else {
        return Vec::new();
    };
    gateway.refresh_stale().await;
    let mut tools: Vec<Tool> = Vec::new();
    for tool in gateway.tools_up() {
        let name = shared.settings.expose.iter().find_map(|exposed| exposed.name_of(&tool.name));
        let is_free = |name: &String| find(name).is_none() && !tools.iter().any(|other| other.name == *name);
        let Some(name) = name.filter(is_free) else { continue };
        let definition = tool.as_mcp(&name);
        // Clients reject tools with invalid header annotations.
        if headers::problem(&definition.input_schema).is_none() && user.may_call(&tool.name).await {
            tools.push(definition);
        }
    }
    tools
}

/// The tool of another server that is exposed under a name.
pub(super) fn exposed_tool(shared: &Shared, name: &str) -> Option<String> {
    let tool = shared.settings.expose.iter().find_map(|exposed| exposed.tool_of(name))?;
    // The tools of a server that is down are not known; it may have this one.
    let is_absent = shared.gateway.as_ref().is_none_or(|gateway| gateway.has_tool(&tool) == Some(false));
    (!is_absent).then_some(tool)
}

/// The definition of a tool by its name, without access to the database. The headers of calls are checked against its
/// schema.
pub(super) fn definition(shared: &Shared, name: &str) -> Option<Tool> {
    let exposed = || {
        let tool = exposed_tool(shared, name)?;
        Some(shared.gateway.as_ref()?.tool(&tool)?.as_mcp(name))
    };
    find(name).map(ToolDef::tool).or_else(exposed).or_else(|| published::cached(shared, name))
}

/// Calls a tool.
pub(super) async fn call(request: ToolRequest) -> Result<CallToolResponse, ErrorData> {
    let (shared, name) = (&request.shared, &*request.params.name);
    let exposed = exposed_tool(shared, name);
    let result = if let Some(tool) = exposed.filter(|_| find(name).is_none()) {
        relayed::call(&request, &tool).await
    } else if let Some(state) = &request.params.request_state {
        let published = published::find(shared, &request.user, name).await?;
        continue_call(&request, state, published.as_deref()).await
    } else if let Some(tool) = find(name) {
        (tool.run)(&request).await
    } else if let Some(published) = published::find(shared, &request.user, name).await? {
        published::call(&request, &published).await
    } else {
        return Err(unknown_tool(name));
    };
    result.or_else(ToolError::into_response)
}

/// Continues a call that returned `input_required`: applies the answers and waits for the run again.
pub(super) async fn continue_call(
    request: &ToolRequest,
    state: &str,
    published: Option<&PublishedTool>,
) -> ToolResult {
    let continued = gates::continue_run(request, state).await?;
    let row = request.user.row(continued.run).await?;
    let options = WaitOptions {
        task_mode: published.map_or(TaskMode::Auto, |published| published.task_mode),
        after: row.seq,
        // A request that was not answered is not repeated.
        requests_input: continued.decided,
        ..WaitOptions::new(WAIT_SECS)
    };
    tasks::respond(request, continued.run, ResultForm::of(&row), options).await
}

fn unknown_tool(name: &str) -> ErrorData {
    let near = nearest(name, ALL.iter().map(|tool| tool.name));
    let hint = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None if names::split(name).is_some() => {
            "tools of other servers are called by the steps of a workflow: workflow_tools finds them"
                .to_owned()
        }
        None => "tools/list lists the names".to_owned(),
    };
    // The beginning is the wording of the specification.
    ErrorData::invalid_params(format!("Unknown tool: `{name}`; {hint}"), None)
}

/// Reads a stored definition; the error for an unknown name suggests others.
async fn find_definition(
    request: &ToolRequest,
    name: &str,
    version: Option<u32>,
) -> Result<Definition, ToolError> {
    match request.user.definition(name, version).await {
        Ok(definition) => Ok(definition),
        Err(Error::NotFound(_)) => Err(unknown_workflow(request, name, version).await),
        Err(error) => Err(error.into()),
    }
}

async fn unknown_workflow(request: &ToolRequest, name: &str, version: Option<u32>) -> ToolError {
    let all = request.user.definitions().await.unwrap_or_default();
    let names: Vec<&str> = all.iter().map(|definition| definition.name.as_str()).collect();
    let hint = match (nearest(name, names.iter().copied()), names.as_slice()) {
        (Some(near), _) if near != name => format!("did you mean `{near}`?"),
        (_, []) => "no workflow is stored yet: workflow_define stores one".to_owned(),
        (_, names) => format!("stored workflows: {}", quoted(&names[..names.len().min(SUGGESTIONS)])),
    };
    let version = version.map(|version| format!(" with version {version}")).unwrap_or_default();
    ToolError::new("not_found", format!("unknown workflow `{name}`{version}")).hint(hint)
}

/// Arguments of a tool that only needs a run.
#[derive(serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunArgs {
    #[serde(alias = "workflow_id")]
    run_id: String,
}

/// Parses the id of a run.
fn run_id(text: &str) -> Result<RunId, ToolError> {
    let unknown = |_| {
        ToolError::new("not_found", format!("unknown run `{text}`")).hint("workflow_list_runs lists runs")
    };
    text.parse().map_err(unknown)
}

/// Parses the cursor of a list, if there is one.
fn cursor<C: FromStr<Err = InvalidCursor>>(text: Option<&str>) -> Result<Option<C>, ToolError> {
    let invalid = |error: InvalidCursor| {
        ToolError::new("invalid_cursor", error.to_string()).hint("list again without a cursor")
    };
    text.map(str::parse).transpose().map_err(invalid)
}
