//! `workflow_lookup`: finds definitions by words, and shows one with its inputs.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::Definition;

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts};
use super::super::published::input_schema;
use super::{Entry, Hints, list_definitions, schema};
use crate::limits::PAGE;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_lookup",
    dotted: Some("workflows.lookup"),
    title: "Look up a workflow",
    description: "Finds workflows whose name, description or labels contain every word of the query; or shows one by its \
                  name, with the schema of its inputs and its definition.",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Words to find workflows by.
    query: Option<String>,
    /// The workflow to show.
    name: Option<String>,
    /// A version of it; the newest by default.
    version: Option<u32>,
    /// At most so many; 50 by default.
    #[schemars(range(min = 1, max = 200))]
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
        (0, false) => format!("No workflow has all the words of `{query}`."),
        (count, _) => format!("{count} workflows found."),
    };
    Ok(Facts::new(json!({ "definitions": found }), message)
        .next("workflow_lookup {\"name\": …} shows the inputs of one")
        .into())
}

fn matches(definition: &Definition, words: &[&str]) -> bool {
    let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
    let text = format!("{} {} {}", definition.name, spec["description"], spec["labels"]).to_lowercase();
    words.iter().all(|word| text.contains(word))
}

async fn show(asked: &Asked, name: &str, version: Option<u32>) -> Answer {
    let definition = asked.user.definition(name, version).await?;
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
    Ok(Facts::new(facts, message)
        .next(format!("workflow_start {{\"name\": \"{name}\", \"input\": {{…}}}}"))
        .into())
}
