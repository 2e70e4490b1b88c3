//! `workflow_define`: stores a version of a definition.

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_core::diagnostic::Diagnostic;
use steprail_core::source::Source;
use steprail_engine::{Error, Right};

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts, Refusal};
use super::{Entry, Hints, schema};
use crate::check::{examine, need_sound};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_define",
    dotted: None,
    title: "Define a workflow",
    description: "Stores a workflow definition, given as YAML (spec_yaml) or as an object (spec). The same content is the \
                  same version; other content is a new version, and runs that are under way keep theirs. Every problem \
                  is told at once, with its line and a hint. The resource workflow://schema describes definitions.",
    hints: Hints::CHANGES,
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
    /// Whether to offer it as a tool of its own, wf_<name>; as the definition says by default.
    publish: Option<bool>,
    /// Only check it; store nothing.
    #[serde(default)]
    check_only: bool,
}

async fn run(shared: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let text = text(args.spec_yaml, args.spec)?
        .ok_or_else(|| Refusal::new("bad_input", "give the definition as spec_yaml or as spec"))?;
    if !asked.user.may(Right::Workflow) {
        return Err(Error::Denied(format!("{} may not define workflows", asked.user.principal().id)).into());
    }
    let source = Source::new("definition", &*text);
    let found = examine(&source, shared.gateway.as_ref()).await;
    let sound = need_sound(&found);
    if args.check_only {
        let is_sound = sound.is_ok();
        let problems = told(&found, &source);
        let message = if is_sound { "The definition is sound." } else { "The definition has errors." };
        return Ok(Facts::new(json!({ "valid": is_sound, "problems": problems }), message).into());
    }
    sound.map_err(|error| invalid(error, &source))?;
    let (defined, _) = asked.user.define(&text, args.publish).await?;
    let warnings = told(&found, &source);
    let facts = json!({
        "name": defined.name,
        "version": defined.version,
        "hash": defined.hash,
        "warnings": warnings,
    });
    let message = format!("`{}` is stored as version {}.", defined.name, defined.version);
    let next = format!("workflow_start {{\"name\": \"{}\", \"input\": {{…}}}}", defined.name);
    Ok(Facts::new(facts, message).next(next).into())
}

/// A definition that came as text or as an object.
pub(super) fn text(yaml: Option<String>, spec: Option<JsonObject>) -> Result<Option<String>, Refusal> {
    match (yaml, spec) {
        (Some(_), Some(_)) => Err(Refusal::new("bad_input", "give spec_yaml or spec, not both")),
        (Some(text), None) => Ok(Some(text)),
        (None, spec) => Ok(spec.map(|map| Value::Object(map).to_string())),
    }
}

/// What is wrong with a definition, every problem with its place.
pub(super) fn invalid(error: Error, source: &Source) -> Refusal {
    match &error {
        Error::Invalid(problems) => {
            let problems = told(problems, source);
            Refusal::from(error)
                .problems(problems)
                .hint("correct every problem and define it again; workflow://schema describes definitions")
        }
        _ => error.into(),
    }
}

fn told(problems: &[Diagnostic], source: &Source) -> Vec<Value> {
    problems.iter().filter_map(|problem| serde_json::to_value(problem.finding(source)).ok()).collect()
}
