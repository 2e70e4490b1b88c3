//! `workflow_tools`: finds tools that steps can call, with their arguments.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_core::diagnostic::quoted;
use steprail_engine::Right;

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts, Refusal};
use super::{Entry, Hints, schema};
use crate::check::{reason, servers, shortened};
use crate::gateway::{Gateway, Health, ServerStatus, ToolInfo};
use crate::limits::{DESCRIPTION_BYTES, DETAILED_TOOLS, FOUND_TOOLS, PAGE, SCHEMA_BYTES};
use crate::names::alias;
use crate::signature::{example, signature};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_tools",
    dotted: None,
    title: "Find tools",
    description: "Finds tools that workflow steps can call, by words in name and description. A few matches come with schema \
                  and example arguments, many as one line each.",
    hints: Hints::LOOKS,
    for_those_who: super::RUN,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Words, or a tool's name.
    query: Option<String>,
    /// Only tools of this server.
    server: Option<String>,
    /// Whether to show schemas and examples.
    detail: Option<bool>,
    /// 20 by default, up to 50.
    limit: Option<usize>,
    /// next_cursor of the page before.
    cursor: Option<String>,
}

async fn run(shared: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    asked.user.require(Right::Workflow)?;
    let Some(gateway) = &shared.gateway else {
        let message = "No MCP servers are configured, so there are no tools to search.";
        let next = "ask the user to add servers to servers.json: steprail init";
        return Ok(Facts::new(json!({ "tools": [], "total": 0 }), message).next(next).into());
    };
    let states = servers(gateway).await;
    let server = args.server.as_deref().map(|name| known_server(name, &states)).transpose()?;
    let tools = callable(asked, gateway, server.as_deref()).await;
    let query = args.query.as_deref().unwrap_or_default();
    let (found, all_words) = search(&tools, query);
    let from = match &args.cursor {
        None => 0,
        Some(cursor) => {
            let invalid =
                || Refusal::new("bad_input", "invalid cursor").hint("search again without a cursor");
            found.iter().position(|tool| tool.name == *cursor).ok_or_else(invalid)?
        }
    };
    let limit = args.limit.unwrap_or(FOUND_TOOLS).clamp(1, PAGE);
    let detail = args.detail.unwrap_or(found.len() <= DETAILED_TOOLS);
    let page: Vec<Value> = found.iter().skip(from).take(limit).map(|tool| described(tool, detail)).collect();
    let next_cursor = found.get(from + limit).map(|tool| tool.name.clone());
    let counted = counted(query, page.len(), found.len(), tools.len(), all_words);
    Ok(answer(counted, &page, found.len(), next_cursor, &states, detail).into())
}

/// The tools that the user may call, by name.
async fn callable(asked: &Asked, gateway: &Gateway, server: Option<&str>) -> Vec<Arc<ToolInfo>> {
    let prefix = server.map(|server| format!("{server}__"));
    let mut tools = Vec::new();
    for tool in gateway.tools_up() {
        let is_of_server = prefix.as_ref().is_none_or(|prefix| tool.name.starts_with(prefix));
        if is_of_server && asked.user.may_call(&tool.name).await {
            tools.push(tool);
        }
    }
    tools.sort_by(|left, right| left.name.cmp(&right.name));
    tools
}

/// A server by its name, or by the name that its tools begin with.
fn known_server(name: &str, states: &[ServerStatus]) -> Result<String, Refusal> {
    let is_meant = |server: &&ServerStatus| server.name == name || alias(&server.name) == name;
    if let Some(server) = states.iter().find(is_meant) {
        return Ok(alias(&server.name));
    }
    let names: Vec<&str> = states.iter().map(|server| server.name.as_str()).collect();
    let refusal = Refusal::new("not_found", format!("there is no server `{name}`"));
    Err(refusal.hint(format!("the servers are {}", quoted(&names))))
}

/// Tools that have every word, best first; else those that have some, and `false`.
fn search<'t>(tools: &'t [Arc<ToolInfo>], query: &str) -> (Vec<&'t Arc<ToolInfo>>, bool) {
    let query = query.to_lowercase();
    let words: Vec<&str> =
        query.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()).collect();
    let mut scored: Vec<(usize, usize, &Arc<ToolInfo>)> = tools
        .iter()
        .map(|tool| {
            let (name, about) = (tool.name.to_lowercase(), tool.description.to_lowercase());
            let in_name = words.iter().filter(|word| name.contains(**word)).count();
            let hits = words.iter().filter(|word| name.contains(**word) || about.contains(**word)).count();
            (hits, in_name, tool)
        })
        .collect();
    let all_words = words.is_empty() || scored.iter().any(|(hits, ..)| *hits == words.len());
    let most = scored.iter().map(|(hits, ..)| *hits).max().unwrap_or_default();
    // Beside the best matches, those that lack one word more.
    let needed = if all_words { words.len() } else { most.saturating_sub(1).max(1) };
    scored.retain(|(hits, ..)| *hits >= needed);
    scored.sort_by_key(|(hits, in_name, _)| std::cmp::Reverse((*hits, *in_name)));
    (scored.into_iter().map(|(_, _, tool)| tool).collect(), all_words)
}

/// A tool as facts: one line of what it is, or everything.
fn described(tool: &ToolInfo, detail: bool) -> Value {
    let (brief, full) = DESCRIPTION_BYTES;
    let about = tool.description.trim();
    let about = if detail { shortened(about, full) } else { shortened(sentence(about), brief) };
    let mut told = json!({
        "name": tool.name,
        "description": about,
        "arguments": signature(&tool.input_schema),
        "read_only": tool.annotations.read_only,
        "destructive": tool.annotations.destructive,
        "idempotent": tool.annotations.idempotent,
    });
    if detail {
        told["example"] = example(&tool.input_schema);
        told["input_schema"] = bounded(&tool.input_schema);
        if let Some(schema) = &tool.output_schema {
            told["output_schema"] = bounded(schema);
        }
    }
    told
}

/// The first sentence.
fn sentence(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    line.split_once(". ").map_or(line, |(first, _)| first)
}

/// A schema without what says nothing about values, or what there is to say about one that is too large.
fn bounded(schema: &Value) -> Value {
    let mut plain = schema.clone();
    strip(&mut plain);
    let bytes = plain.to_string().len();
    if bytes <= SCHEMA_BYTES {
        return plain;
    }
    let names = schema.get("properties").and_then(Value::as_object).map(|all| all.keys().collect::<Vec<_>>());
    json!({ "cut": format!("the schema has {bytes} bytes; only the names are shown"), "properties": names })
}

/// Removes `$schema`, and titles that repeat a name. A property may be called `title`: its value is a map.
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

fn counted(query: &str, shown: usize, found: usize, callable: usize, all_words: bool) -> String {
    match (query.trim(), found) {
        (query, 0) if !query.is_empty() => {
            format!("No tool matches `{query}`; {callable} tools can be called.")
        }
        (_, 0) => {
            "No tools are known that you may call; those of a server that is down become known when it is up."
                .to_owned()
        }
        (query, _) if !all_words => {
            format!("No tool has all words of `{query}`; {shown} of {found} that have some:")
        }
        _ => format!("{shown} of {found} tools:"),
    }
}

fn answer(
    counted: String,
    page: &[Value],
    total: usize,
    next_cursor: Option<String>,
    states: &[ServerStatus],
    detail: bool,
) -> Facts {
    // Why a server is down matters to those who miss its tools.
    let down: Vec<Value> =
        states.iter().filter_map(|server| unreachable(server, page.is_empty() || !detail)).collect();
    let mut lines = vec![counted];
    lines.extend(page.iter().map(line));
    lines.extend(down.iter().map(|server| {
        let text = |key: &str| server[key].as_str().unwrap_or_default();
        let error = server["error"].as_str().map(|error| format!(": {error}")).unwrap_or_default();
        format!("The server `{}` is {}{error}", text("name"), text("state"))
    }));
    let next = match (&next_cursor, page.first()) {
        (Some(cursor), _) => {
            format!("workflow_tools with the same arguments and cursor \"{cursor}\" has more")
        }
        (None, None) => "workflow_tools {} lists all tools".to_owned(),
        (None, Some(first)) if !detail => {
            format!("workflow_tools {} shows one with schema and example", json!({ "query": first["name"] }))
        }
        _ => "use it in a step: `- { id: …, tool: NAME, args: { … } }`; workflow_guide describes definitions"
            .to_owned(),
    };
    let mut facts = json!({ "tools": page, "total": total });
    if let Some(cursor) = next_cursor {
        facts["next_cursor"] = cursor.into();
    }
    if !down.is_empty() {
        facts["servers_down"] = down.into();
    }
    Facts::new(facts, lines.join("\n")).worded(&["tools", "total", "servers_down", "next_cursor"]).next(next)
}

/// A server whose tools cannot be called now.
fn unreachable(server: &ServerStatus, with_error: bool) -> Option<Value> {
    if server.health == Health::Up {
        return None;
    }
    let mut told = json!({ "name": server.name, "state": server.health.word() });
    if with_error {
        let error = reason(server).unwrap_or_else(|| "it has not answered yet; search again".to_owned());
        told["error"] = error.into();
    }
    Some(told)
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
    for (key, word) in [("example", "example"), ("input_schema", "schema"), ("output_schema", "gives")] {
        if let Some(value) = tool.get(key) {
            line.push_str(&format!("\n  {word} {value}"));
        }
    }
    line
}
