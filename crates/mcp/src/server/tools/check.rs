//! `workflow_check`: every problem of a definition, without storing it.

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use steprail_core::source::Source;

use super::super::answer::{Answer, Asked, Facts};
use super::super::{Shared, problems};
use super::{Entry, Hints, define, schema};
use crate::check::{cannot_run, examine_as, require_valid};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_check",
    dotted: None,
    title: "Check a definition",
    description: "Reports every problem of a definition without storing it: syntax, references, tools that do not exist, \
                  arguments that do not fit, servers that are down.",
    hints: Hints::LOOKS,
    for_those_who: super::RUN,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The definition as YAML or JSON text.
    spec_yaml: Option<String>,
    /// The definition as an object.
    spec: Option<JsonObject>,
}

async fn run(shared: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let text = define::need_text(args.spec_yaml, args.spec)?;
    checked(shared, asked, &text).await
}

/// Every problem of a definition, and what to do next.
pub(super) async fn checked(shared: &Shared, asked: &Asked, text: &str) -> Answer {
    define::need_right(asked)?;
    let source = Source::new("definition", text);
    let found = examine_as(&asked.user, &source, shared.gateway.as_ref()).await;
    let (valid, runnable) = (require_valid(&found).is_ok(), !found.iter().any(cannot_run));
    let problems = problems::facts(&found, &source);
    let mut message = match (valid, runnable, problems.len()) {
        (true, true, 0) => "The definition has no problems.".to_owned(),
        (true, true, _) => "The definition can run. Warnings:".to_owned(),
        (true, false, _) => {
            "The definition can be stored, but a run would fail or wait as things stand:".to_owned()
        }
        (false, ..) => "The definition has errors:".to_owned(),
    };
    if !problems.is_empty() {
        message.push_str(&format!("\n{}", problems::lines(&problems)));
    }
    let next = match define::repair(&found) {
        Some(repair) => format!("{repair}; then workflow_check again"),
        None if problems.is_empty() => "workflow_define with the same definition stores it".to_owned(),
        None => "read the warnings; workflow_define with the same definition stores it".to_owned(),
    };
    let facts = json!({ "valid": valid, "runnable": runnable, "problems": problems });
    Ok(Facts::new(facts, message).worded(&["valid", "runnable", "problems"]).next(next).into())
}
