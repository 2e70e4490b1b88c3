//! `workflow_lookup`: searches stored workflows, or returns one with its inputs.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::Definition;

use super::super::error::ToolResult;
use super::super::output::ToolOutput;
use super::super::published::input_schema;
use super::super::request::ToolRequest;
use super::{define, find_definition, list_definitions};
use crate::limits::PAGE;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    query: Option<String>,
    /// The workflow to show.
    name: Option<String>,
    /// The newest by default.
    version: Option<u32>,
    /// 50 by default, up to 200.
    limit: Option<usize>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    if let Some(name) = &args.name {
        return show(request, name, args.version).await;
    }
    let query = args.query.unwrap_or_default().to_lowercase();
    let words: Vec<&str> = query.split_whitespace().collect();
    let limit = args.limit.unwrap_or(PAGE).clamp(1, 4 * PAGE);
    let all = request.user.definitions().await?;
    let found = all.iter().filter(|definition| matches(definition, &words));
    let found: Vec<Value> = found.take(limit).map(list_definitions::brief).collect();
    let message = match (found.len(), words.is_empty()) {
        (0, false) => format!("No workflow has all words of `{query}`; {} are stored.", all.len()),
        (count, _) => format!("{count} workflows found."),
    };
    let next = match found.first() {
        Some(first) => {
            format!("workflow_lookup {} shows one with its inputs", json!({ "name": first["name"] }))
        }
        None => "workflow_list_definitions lists all; workflow_define stores a new one".to_owned(),
    };
    Ok(ToolOutput::new(json!({ "definitions": found }), message).next(next).into())
}

fn matches(definition: &Definition, words: &[&str]) -> bool {
    let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
    let text = format!("{} {} {}", definition.name, spec["description"], spec["labels"]).to_lowercase();
    words.iter().all(|word| text.contains(word))
}

async fn show(request: &ToolRequest, name: &str, version: Option<u32>) -> ToolResult {
    let definition = find_definition(request, name, version).await?;
    let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
    let fields = json!({
        "name": definition.name,
        "version": definition.version,
        "hash": definition.hash,
        "description": spec["description"],
        "input_schema": input_schema(&definition),
        "created_by": definition.created_by,
        "spec": spec,
    });
    let message = format!("`{name}`, version {}.", definition.version);
    Ok(ToolOutput::new(fields, message).next(define::start_call(request, name).await).into())
}
