//! `workflow_tools`: searches the tools that steps can call.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_core::diagnostic::quoted;
use steprail_engine::Right;

use super::super::error::{ToolError, ToolResult};
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use crate::check::{reason, servers, shortened};
use crate::gateway::{Gateway, Health, ServerStatus, ToolInfo};
use crate::limits::{DESCRIPTION_BYTES, DETAILED_TOOLS, FOUND_TOOLS, PAGE, SCHEMA_BYTES};
use crate::names::alias;
use crate::signature::{example, signature};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// Words, or the name of a tool.
    query: Option<String>,
    /// Only tools of this server.
    server: Option<String>,
    /// Whether to include schemas and examples.
    detail: Option<bool>,
    /// 40 by default, up to 50.
    limit: Option<usize>,
    /// next_cursor of the previous page.
    cursor: Option<String>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    request.user.require(Right::Workflow)?;
    let Some(gateway) = &request.shared.gateway else {
        let message = "No MCP servers are configured, so there are no tools.";
        let next = "ask the user to add servers to servers.json: steprail init";
        return Ok(ToolOutput::new(json!({ "tools": [], "total": 0 }), message).next(next).into());
    };
    let states = servers(gateway).await;
    let server = args.server.as_deref().map(|name| known_server(name, &states)).transpose()?;
    let tools = callable(request, gateway, server.as_deref()).await;
    let query = args.query.as_deref().unwrap_or_default();
    let (found, all_words) = search(&tools, query);
    let from = match &args.cursor {
        None => 0,
        Some(cursor) => {
            let invalid =
                || ToolError::new("invalid_cursor", "invalid cursor").hint("search again without a cursor");
            found.iter().position(|tool| tool.name == *cursor).ok_or_else(invalid)?
        }
    };
    let limit = args.limit.unwrap_or(FOUND_TOOLS).clamp(1, PAGE);
    let detail = args.detail.unwrap_or(found.len() <= DETAILED_TOOLS);
    let page: Vec<Value> = found.iter().skip(from).take(limit).map(|tool| fields(tool, detail)).collect();
    let next_cursor = found.get(from + limit).map(|tool| tool.name.clone());
    let summary = summary(query, page.len(), found.len(), tools.len(), all_words);
    Ok(output(summary, &page, found.len(), next_cursor, &states, detail).into())
}

/// The tools that the user may call, sorted by name.
async fn callable(request: &ToolRequest, gateway: &Gateway, server: Option<&str>) -> Vec<Arc<ToolInfo>> {
    let prefix = server.map(|server| format!("{server}__"));
    let mut tools = Vec::new();
    for tool in gateway.tools_up() {
        let is_of_server = prefix.as_ref().is_none_or(|prefix| tool.name.starts_with(prefix));
        if is_of_server && request.user.may_call(&tool.name).await {
            tools.push(tool);
        }
    }
    tools.sort_by(|left, right| left.name.cmp(&right.name));
    tools
}

/// The alias of a server, by its name or alias.
fn known_server(name: &str, states: &[ServerStatus]) -> Result<String, ToolError> {
    let is_meant = |server: &&ServerStatus| server.name == name || alias(&server.name) == name;
    if let Some(server) = states.iter().find(is_meant) {
        return Ok(alias(&server.name));
    }
    let names: Vec<&str> = states.iter().map(|server| server.name.as_str()).collect();
    let error = ToolError::new("not_found", format!("unknown server `{name}`"));
    Err(error.hint(format!("servers: {}", quoted(&names))))
}

/// Tools that match every word, best first. If there is none, those that match most words, and `false`.
fn search<'t>(tools: &'t [Arc<ToolInfo>], query: &str) -> (Vec<&'t Arc<ToolInfo>>, bool) {
    let query = query.to_lowercase();
    let words: Vec<&str> =
        query.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()).collect();
    let mut scored: Vec<(usize, usize, &Arc<ToolInfo>)> = tools
        .iter()
        .map(|tool| {
            let (name, description) = (tool.name.to_lowercase(), tool.description.to_lowercase());
            let in_name = words.iter().filter(|word| name.contains(**word)).count();
            let hits =
                words.iter().filter(|word| name.contains(**word) || description.contains(**word)).count();
            (hits, in_name, tool)
        })
        .collect();
    let all_words = words.is_empty() || scored.iter().any(|(hits, ..)| *hits == words.len());
    let best_hits = scored.iter().map(|(hits, ..)| *hits).max().unwrap_or_default();
    // Include tools that match one word less than the best.
    let needed = if all_words { words.len() } else { best_hits.saturating_sub(1).max(1) };
    scored.retain(|(hits, ..)| *hits >= needed);
    scored.sort_by_key(|(hits, in_name, _)| std::cmp::Reverse((*hits, *in_name)));
    (scored.into_iter().map(|(_, _, tool)| tool).collect(), all_words)
}

/// A tool as JSON: in brief, or with its schemas.
fn fields(tool: &ToolInfo, detail: bool) -> Value {
    let (brief, full) = DESCRIPTION_BYTES;
    let text = tool.description.trim();
    let description = if detail { shortened(text, full) } else { shortened(sentence(text), brief) };
    let mut fields = json!({
        "name": tool.name,
        "description": description,
        "arguments": signature(&tool.input_schema),
        "read_only": tool.annotations.read_only,
        "destructive": tool.annotations.destructive,
        "idempotent": tool.annotations.idempotent,
    });
    if detail {
        fields["example"] = example(&tool.input_schema);
        fields["input_schema"] = bounded(&tool.input_schema);
        if let Some(schema) = &tool.output_schema {
            fields["output_schema"] = bounded(schema);
        }
    }
    fields
}

/// The first sentence.
fn sentence(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    line.split_once(". ").map_or(line, |(first, _)| first)
}

/// A schema without keys that do not constrain values; only the names of its properties if it is too large.
fn bounded(schema: &Value) -> Value {
    let mut stripped = schema.clone();
    strip(&mut stripped);
    let bytes = stripped.to_string().len();
    if bytes <= SCHEMA_BYTES {
        return stripped;
    }
    let names = schema.get("properties").and_then(Value::as_object).map(|all| all.keys().collect::<Vec<_>>());
    json!({ "cut": format!("the schema has {bytes} bytes; only the names are shown"), "properties": names })
}

/// Removes `$schema` and titles. A property that is named `title` stays: its value is a map.
fn strip(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.retain(|key, value| key != "$schema" && !(key == "title" && value.is_string()));
            map.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

fn summary(query: &str, shown: usize, found: usize, callable: usize, all_words: bool) -> String {
    match (query.trim(), found) {
        (query, 0) if !query.is_empty() => {
            format!("No tool matches `{query}`; {callable} tools can be called.")
        }
        (_, 0) => {
            "No tools that you may call are known; tools of a server that is down are known when it is up."
                .to_owned()
        }
        (query, _) if !all_words => {
            format!("No tool matches all words of `{query}`; {shown} of {found} that match some:")
        }
        _ => format!("{shown} of {found} tools:"),
    }
}

fn output(
    summary: String,
    page: &[Value],
    total: usize,
    next_cursor: Option<String>,
    states: &[ServerStatus],
    detail: bool,
) -> ToolOutput {
    // The reason matters only if tools of the server may be missing.
    let down: Vec<Value> =
        states.iter().filter_map(|server| unreachable(server, page.is_empty() || !detail)).collect();
    let mut lines = vec![summary];
    lines.extend(page.iter().map(line));
    lines.extend(down.iter().map(|server| {
        let text = |key: &str| server[key].as_str().unwrap_or_default();
        let error = server["error"].as_str().map(|error| format!(": {error}")).unwrap_or_default();
        format!("Server `{}` is {}{error}", text("name"), text("state"))
    }));
    let next = match (&next_cursor, page.first()) {
        (Some(cursor), _) => {
            format!("workflow_tools with the same arguments and cursor \"{cursor}\" returns more")
        }
        (None, None) => "workflow_tools {} lists all tools".to_owned(),
        (None, Some(first)) if !detail => {
            format!("workflow_tools {} shows one with schema and example", json!({ "query": first["name"] }))
        }
        _ => "use it in a step: `- { id: …, tool: NAME, args: { … } }`; workflow_guide describes definitions"
            .to_owned(),
    };
    let mut fields = json!({ "tools": page, "total": total });
    if let Some(cursor) = next_cursor {
        fields["next_cursor"] = cursor.into();
    }
    if !down.is_empty() {
        fields["servers_down"] = down.into();
    }
    ToolOutput::new(fields, lines.join("\n"))
        .in_message(&["tools", "total", "servers_down", "next_cursor"])
        .next(next)
}

/// A server that is not up.
fn unreachable(server: &ServerStatus, with_error: bool) -> Option<Value> {
    if server.health == Health::Up {
        return None;
    }
    let mut fields = json!({ "name": server.name, "state": server.health.name() });
    if with_error {
        let error = reason(server).unwrap_or_else(|| "it has not responded yet; search again".to_owned());
        fields["error"] = error.into();
    }
    Some(fields)
}

/// `git__git_log(repo_path: string) read-only: Shows the commit logs`.
fn line(tool: &Value) -> String {
    let text = |key: &str| tool[key].as_str().unwrap_or_default();
    let is = |key: &str| tool[key] == true;
    let hint = match (is("read_only"), is("destructive"), is("idempotent")) {
        (true, ..) => " read-only",
        (_, true, true) => " destructive, idempotent",
        (_, true, _) => " destructive",
        (_, _, true) => " idempotent",
        _ => "",
    };
    let mut line = format!("{}({}){hint}: {}", text("name"), text("arguments"), text("description"));
    for (key, label) in [("example", "example"), ("input_schema", "schema"), ("output_schema", "returns")] {
        if let Some(value) = tool.get(key) {
            line.push_str(&format!("\n  {label} {value}"));
        }
    }
    line
}
