//! The tools that agents drive workflows with: one file each.

#![expect(
    clippy::doc_markdown,
    reason = "what documents an argument is its description in the schema, read by models"
)]

mod cancel;
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

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use rmcp::model::{
    CacheScope, CallToolResponse, ErrorData, JsonObject, ListToolsResult, Tool, ToolAnnotations,
};
use schemars::JsonSchema;
use steprail_core::diagnostic::{nearest, quoted};
use steprail_core::spec::publish::TaskMode;
use steprail_engine::{Right, RunId, User};

use super::answer::{Answer, Asked, Refusal};
use super::tasks::{self, Given, Waiting};
use super::{Shared, gates, published, relayed};

use crate::headers;
use crate::limits::{LIST_TTL_MS, SUGGESTIONS, TOOLS_PAGE, WAIT_SECS};
use crate::names;
use crate::signature::signature;
pub(super) use events::event as event_facts;
pub(super) use explain::story;
pub(super) use guide::guide;

/// Which names of tools are listed. Whatever is listed, all are understood.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolNames {
    /// `workflow_start`: what every client takes.
    #[default]
    Underscore,
    /// `workflows.run`, where there is such a name.
    Dotted,
    /// Both.
    Both,
}

/// A tool of ours.
pub(super) struct Entry {
    name: &'static str,
    /// A name with a dot that older systems call it by. With `_` for the dot it is one, too.
    dotted: Option<&'static str>,
    title: &'static str,
    description: &'static str,
    hints: Hints,
    /// Who is offered it: whoever has one of these rights.
    for_those_who: &'static [Right],
    schema: fn() -> Arc<JsonObject>,
    run: for<'a> fn(&'a Shared, &'a Asked) -> Running<'a>,
}

type Running<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// What a tool may do to the world.
#[expect(clippy::struct_excessive_bools, reason = "the four hints of the protocol")]
struct Hints {
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    open_world: bool,
}

impl Hints {
    const LOOKS: Self = Self { read_only: true, destructive: false, idempotent: true, open_world: false };
    const CHANGES: Self = Self { read_only: false, destructive: false, idempotent: true, open_world: false };
    const STOPS: Self = Self { read_only: false, destructive: true, idempotent: true, open_world: false };
    const ACTS: Self = Self { read_only: false, destructive: true, idempotent: false, open_world: true };
}

/// Every tool, in the order in which they are listed.
const ALL: &[&Entry] = &[
    &guide::TOOL,
    &find_tools::TOOL,
    &check::TOOL,
    &define::TOOL,
    &list_definitions::TOOL,
    &lookup::TOOL,
    &start::TOOL,
    &status::TOOL,
    &list_runs::TOOL,
    &events::TOOL,
    &explain::TOOL,
    &decide::APPROVE,
    &decide::DENY,
    &cancel::TOOL,
    &interrupt::TOOL,
    &resume::TOOL,
    &rerun::TOOL,
    &signal::TOOL,
    &intervene::TOOL,
];

/// Those who may see runs.
const LOOK: &[Right] = &[Right::Workflow, Right::View];
/// Those who may run workflows.
const RUN: &[Right] = &[Right::Workflow];
/// Those who may stop runs: their own, or others'.
const CONTROL: &[Right] = &[Right::Workflow, Right::Administer];
/// Those who may decide.
const DECIDE: &[Right] = &[Right::Approve];

impl Entry {
    fn is_for(&self, may: impl Fn(Right) -> bool) -> bool {
        self.for_those_who.iter().any(|right| may(*right))
    }

    fn named(&self, name: &'static str) -> Tool {
        let hints = ToolAnnotations::new()
            .read_only(self.hints.read_only)
            .destructive(self.hints.destructive)
            .idempotent(self.hints.idempotent)
            .open_world(self.hints.open_world);
        Tool::new(name, self.description, (self.schema)()).with_title(self.title).with_annotations(hints)
    }

    pub(super) fn tool(&self) -> Tool {
        self.named(self.name)
    }

    /// Its arguments in one line.
    pub(super) fn signature(&self) -> String {
        signature(&serde_json::Value::Object((*(self.schema)()).clone()))
    }

    fn tools(&self, names: ToolNames) -> impl Iterator<Item = Tool> {
        let dotted = self.dotted.filter(|_| names != ToolNames::Underscore);
        let plain = names != ToolNames::Dotted || dotted.is_none();
        plain.then(|| self.tool()).into_iter().chain(dotted.map(|name| self.named(name)))
    }

    fn answers_to(&self, name: &str) -> bool {
        let dotted = |dotted: &str| dotted == name || dotted.replace('.', "_") == name;
        self.name == name || self.dotted.is_some_and(dotted)
    }
}

/// The names of the tools that somebody with these rights is offered.
pub fn offered(may: impl Fn(Right) -> bool) -> Vec<&'static str> {
    ALL.iter().filter(|entry| entry.is_for(&may)).map(|entry| entry.name).collect()
}

/// Whether a tool is called by a name of old.
pub(super) fn is_old_name(name: &str) -> bool {
    find(name).is_some_and(|entry| entry.name != name)
}

/// A tool by any of its names.
pub(super) fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().copied().find(|entry| entry.answers_to(name))
}

/// One page of what a user is offered: our tools, published workflows, and what is passed on of other servers.
pub(super) async fn list(
    shared: &Shared,
    user: &User,
    cursor: Option<&str>,
) -> Result<ListToolsResult, ErrorData> {
    let ours = ALL.iter().filter(|entry| entry.is_for(|right| user.may(right)));
    let mut tools: Vec<Tool> = ours.flat_map(|entry| entry.tools(shared.settings.tool_names)).collect();
    tools.extend(published::tools(shared, user).await?);
    tools.extend(exposed(shared, user).await);
    let from = match cursor {
        None => 0,
        Some(name) => {
            let unknown = || ErrorData::invalid_params("invalid cursor; list again without one", None);
            tools.iter().position(|tool| tool.name == name).ok_or_else(unknown)?
        }
    };
    let next = tools.get(from + TOOLS_PAGE).map(|tool| tool.name.to_string());
    let page = tools.into_iter().skip(from).take(TOOLS_PAGE).collect();
    let mut result = ListToolsResult::with_all_items(page);
    result.next_cursor = next;
    result.ttl_ms = Some(LIST_TTL_MS);
    result.cache_scope = Some(CacheScope::Private);
    Ok(result)
}

/// Tools of other servers that are offered as they are.
async fn exposed(shared: &Shared, user: &User) -> Vec<Tool> {
    let (Some(gateway), false) = (&shared.gateway, shared.settings.expose.is_empty()) else {
        return Vec::new();
    };
    gateway.refresh_stale().await;
    let mut tools: Vec<Tool> = Vec::new();
    for tool in gateway.tools_up() {
        let name = shared.settings.expose.iter().find_map(|exposed| exposed.name_of(&tool.name));
        let Some(name) =
            name.filter(|name| find(name).is_none() && !tools.iter().any(|known| known.name == *name))
        else {
            continue;
        };
        let described = tool.as_mcp(&name);
        // A client would refuse it.
        if headers::problem(&described.input_schema).is_none() && user.may_call(&tool.name).await {
            tools.push(described);
        }
    }
    tools
}

/// The tool of another server that goes by a name here.
pub(super) fn passed_on(shared: &Shared, name: &str) -> Option<String> {
    let tool = shared.settings.expose.iter().find_map(|exposed| exposed.tool_of(name))?;
    // A server that is down may have it.
    let gone = shared.gateway.as_ref().is_none_or(|gateway| gateway.has_tool(&tool) == Some(false));
    (!gone).then_some(tool)
}

/// A tool as clients see it, by its name: ours, one of another server, or a published workflow. Headers of calls are
/// checked against its schema.
pub(super) fn described(shared: &Shared, name: &str) -> Option<Tool> {
    let exposed = || {
        let tool = passed_on(shared, name)?;
        Some(shared.gateway.as_ref()?.tool(&tool)?.as_mcp(name))
    };
    find(name).map(Entry::tool).or_else(exposed).or_else(|| published::known(shared, name))
}

/// Calls a tool by any of its names.
pub(super) async fn call(shared: &Shared, asked: Asked) -> Result<CallToolResponse, ErrorData> {
    let name = &*asked.request.name;
    let exposed = passed_on(shared, name);
    let answer = if let Some(tool) = exposed.filter(|_| find(name).is_none()) {
        relayed::call(shared, &asked, &tool).await
    } else if let Some(state) = &asked.request.request_state {
        let published = published::find(shared, &asked.user, name).await?;
        go_on(shared, &asked, state, published.as_ref()).await
    } else if let Some(entry) = find(name) {
        (entry.run)(shared, &asked).await
    } else if let Some(found) = published::find(shared, &asked.user, name).await? {
        published::call(shared, &asked, &found).await
    } else {
        return Err(unknown(name));
    };
    answer.or_else(Refusal::into_response)
}

/// A call that asked its client something, and is made again with the answers.
pub(super) async fn go_on(
    shared: &Shared,
    asked: &Asked,
    state: &str,
    published: Option<&published::Found>,
) -> Answer {
    let continued = gates::continued(shared, asked, state).await?;
    let row = asked.user.row(continued.run).await?;
    let waiting = Waiting {
        mode: published.map_or(TaskMode::Auto, published::Found::mode),
        after: row.seq,
        // A question that was not answered is not put again.
        asks: continued.decided,
        ..Waiting::new(WAIT_SECS)
    };
    tasks::answer(shared, asked, continued.run, Given::of(&row), waiting).await
}

fn unknown(name: &str) -> ErrorData {
    let near = nearest(name, ALL.iter().map(|entry| entry.name));
    let hint = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None if names::split(name).is_some() => {
            "tools of other servers are called by the steps of a workflow: workflow_tools finds them"
                .to_owned()
        }
        None => "tools/list has the names".to_owned(),
    };
    ErrorData::invalid_params(format!("Unknown tool: there is no tool `{name}`; {hint}"), None)
}

/// A workflow that is not stored: near names, or what is.
async fn unknown_workflow(asked: &Asked, name: &str, version: Option<u32>) -> Refusal {
    let all = asked.user.definitions().await.unwrap_or_default();
    let names: Vec<&str> = all.iter().map(|definition| definition.name.as_str()).collect();
    let hint = match (nearest(name, names.iter().copied()), names.as_slice()) {
        (Some(near), _) if near != name => format!("did you mean `{near}`?"),
        (_, []) => "none is stored yet: workflow_define stores one".to_owned(),
        (_, names) => format!("stored are {}", quoted(&names[..names.len().min(SUGGESTIONS)])),
    };
    let version = version.map(|version| format!(" with version {version}")).unwrap_or_default();
    Refusal::new("not_found", format!("there is no workflow `{name}`{version}")).hint(hint)
}

/// Arguments of a tool that speaks of one run.
#[derive(serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfRun {
    #[serde(alias = "workflow_id")]
    run_id: String,
}

/// Reads the id of a run.
fn run_id(text: &str) -> Result<RunId, Refusal> {
    let bad = |_| {
        Refusal::new("not_found", format!("there is no run `{text}`")).hint("workflow_list_runs lists them")
    };
    text.parse().map_err(bad)
}
