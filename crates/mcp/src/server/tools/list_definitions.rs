//! `workflow_list_definitions`: what there is to run.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::Definition;

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts};
use super::{Entry, Hints, schema};
use crate::limits::PAGE;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_list_definitions",
    dotted: None,
    title: "List workflows",
    description: "Lists stored workflows by name, the newest version of each.",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// next_cursor of the page before.
    cursor: Option<String>,
    /// 50 by default, up to 200.
    limit: Option<usize>,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let all = asked.user.definitions().await?;
    let after = args.cursor.unwrap_or_default();
    let limit = args.limit.unwrap_or(PAGE).clamp(1, 4 * PAGE);
    let mut rest = all.iter().filter(|definition| definition.name > after);
    let page: Vec<&Definition> = rest.by_ref().take(limit).collect();
    let mut facts = json!({
        "definitions": page.iter().map(|definition| brief(definition)).collect::<Vec<_>>(),
        "total": all.len(),
    });
    if let Some(last) = page.last().filter(|_| rest.next().is_some()) {
        facts["next_cursor"] = last.name.as_str().into();
    }
    let message = match all.len() {
        0 => "There are no workflows yet; workflow_define stores one.".to_owned(),
        total => format!("{} of {total} workflows.", page.len()),
    };
    Ok(Facts::new(facts, message).into())
}

/// A definition in a list.
pub(super) fn brief(definition: &Definition) -> Value {
    let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
    let inputs = spec["inputs"].as_object().map(|inputs| inputs.keys().cloned().collect::<Vec<_>>());
    json!({
        "name": definition.name,
        "version": definition.version,
        "description": spec["description"],
        "inputs": inputs.unwrap_or_default(),
        "published": !matches!(spec["publish"], Value::Null | Value::Bool(false)),
    })
}
