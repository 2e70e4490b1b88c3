//! `workflow_lookup`: finds definitions by words, and shows one with its inputs.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{Definition, Error};

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts};
use super::super::published::input_schema;
use super::{Entry, Hints, define, list_definitions, schema, unknown_workflow};
use crate::limits::PAGE;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_lookup",
    dotted: Some("workflows.lookup"),
    title: "Look up a workflow",
    description: "Finds stored workflows by words in name, description and labels; with name, shows one with its inputs and \
                  its definition.",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    query: Option<String>,
    /// The workflow to show.
    name: Option<String>,
    /// The newest by default.
    version: Option<u32>,
    /// 50 by default, up to 200.
    limit: Option<usize>,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    if let Some(name) = &args.name {
        return show(asked, name, args.version).await;
    }
    let query = args.query.unwrap_or_default().to_lowercase();
    let words: Vec<&str> = query.split_whitespace().collect();
    let limit = args.limit.unwrap_or(PAGE).clamp(1, 4 * PAGE);
    let all = asked.user.definitions().await?;
    let found = all.iter().filter(|definition| matches(definition, &words));
    let found: Vec<Value> = found.take(limit).map(list_definitions::brief).collect();
    let message = match (found.len(), words.is_empty()) {
        (0, false) => format!("No workflow has all the words of `{query}`; {} are stored.", all.len()),
        (count, _) => format!("{count} workflows found."),
    };
    let next = match found.first() {
        Some(first) => {
            format!("workflow_lookup {} shows one with its inputs", json!({ "name": first["name"] }))
        }
        None => "workflow_list_definitions lists all; workflow_define stores a new one".to_owned(),
    };
    Ok(Facts::new(json!({ "definitions": found }), message).next(next).into())
}

fn matches(definition: &Definition, words: &[&str]) -> bool {
    let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
    let text = format!("{} {} {}", definition.name, spec["description"], spec["labels"]).to_lowercase();
    words.iter().all(|word| text.contains(word))
}

async fn show(asked: &Asked, name: &str, version: Option<u32>) -> Answer {
    let definition = match asked.user.definition(name, version).await {
        Ok(definition) => definition,
        Err(Error::NotFound(_)) => return Err(unknown_workflow(asked, name, version).await),
        Err(error) => return Err(error.into()),
    };
    let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
    let facts = json!({
        "name": definition.name,
        "version": definition.version,
        "hash": definition.hash,
        "description": spec["description"],
        "input_schema": input_schema(&definition),
        "created_by": definition.created_by,
        "spec": spec,
    });
    let message = format!("`{name}`, version {}.", definition.version);
    Ok(Facts::new(facts, message).next(define::start_call(asked, name).await).into())
}
