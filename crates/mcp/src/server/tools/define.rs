//! `workflow_define`: stores a version of a definition.

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_core::diagnostic::{Code, Diagnostic, Severity};
use steprail_core::source::Source;
use steprail_engine::{Error, Right};

use super::super::answer::{Answer, Asked, Facts, Refusal};
use super::super::published::{self, input_schema};
use super::super::{Shared, problems};
use super::{Entry, Hints, check, schema};
use crate::check::{cannot_run, examine_as, require_valid};
use crate::signature::example;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_define",
    dotted: None,
    title: "Define a workflow",
    description: "Stores a workflow definition. The same content is the same version, other content a new one; runs under \
                  way keep theirs. Reports every problem with its line and a hint. workflow_guide teaches the language, \
                  workflow_tools finds the tools.",
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
    /// Offer it as a tool, wf_<name>; as the definition says by default.
    publish: Option<bool>,
    #[serde(default)]
    #[schemars(skip)]
    check_only: bool,
}

async fn run(shared: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let text = need_text(args.spec_yaml, args.spec)?;
    if args.check_only {
        return check::checked(shared, asked, &text).await;
    }
    need_right(asked)?;
    let source = Source::new("definition", &*text);
    let found = examine_as(&asked.user, &source, shared.gateway.as_ref()).await;
    require_valid(&found).map_err(|_| unsound(&found, &source))?;
    let (defined, _) = asked.user.define(&text, args.publish).await?;
    let warnings = problems::facts(&found, &source);
    let runnable = !found.iter().any(cannot_run);
    let mut message = format!("`{}` is stored as version {}", defined.name, defined.version);
    message.push_str(if runnable { "." } else { ", but a run would fail or wait as things stand." });
    if !warnings.is_empty() {
        message.push_str(&format!("\n{}", problems::lines(&warnings)));
    }
    let mut facts = json!({
        "name": defined.name,
        "version": defined.version,
        "runnable": runnable,
        "warnings": warnings,
    });
    let next = match repair(&found) {
        Some(repair) => format!("{repair}; then workflow_define again"),
        None => start_call(asked, &defined.name).await,
    };
    let published = published::name_of(shared, asked, &defined.name).await;
    if let Some(tool) = published {
        message.push_str(&format!("\nIt is offered as the tool {tool}."));
        facts["published_as"] = tool.into();
    }
    Ok(Facts::new(facts, message)
        .worded(&["name", "version", "warnings", "runnable", "published_as"])
        .next(next)
        .into())
}

/// The right to define workflows.
pub(super) fn need_right(asked: &Asked) -> Result<(), Refusal> {
    if asked.user.may(Right::Workflow) {
        return Ok(());
    }
    Err(Error::Denied(format!("{} may not define workflows", asked.user.principal().id)).into())
}

/// What has to be done before a definition can run.
pub(super) fn repair(found: &[Diagnostic]) -> Option<String> {
    let has = |code: Code| found.iter().any(|problem| problem.code == code);
    if !found.iter().any(cannot_run) {
        None
    } else if found.iter().any(|problem| require_valid(std::slice::from_ref(problem)).is_err()) {
        Some(
            "correct every error; workflow_guide describes the language, workflow_tools the arguments"
                .to_owned(),
        )
    } else if has(Code::UnknownTool) {
        Some(
            "correct the tool's name; workflow_tools {\"query\": …} finds tools and their arguments"
                .to_owned(),
        )
    } else if has(Code::UnknownOutput) {
        Some("correct the reference; the hint lists what there is".to_owned())
    } else if has(Code::UnknownWorkflow) {
        Some("define the workflow that the step names".to_owned())
    } else if has(Code::ToolDenied) {
        Some("use a tool that workflow_tools lists, or ask for the right".to_owned())
    } else {
        Some("ask the user to look at the server that cannot be reached".to_owned())
    }
}

/// The call that starts a workflow, with inputs that fit it.
pub(super) async fn start_call(asked: &Asked, name: &str) -> String {
    let inputs = match asked.user.definition(name, None).await {
        Ok(definition) => example(&input_schema(&definition)),
        Err(_) => json!({}),
    };
    format!("workflow_start {}", json!({ "name": name, "input": inputs }))
}

/// A definition that came as text or as an object.
pub(super) fn text(yaml: Option<String>, spec: Option<JsonObject>) -> Result<Option<String>, Refusal> {
    match (yaml, spec) {
        (Some(_), Some(_)) => {
            let hint = "leave one of them out";
            Err(Refusal::new("bad_input", "both spec_yaml and spec are given").hint(hint))
        }
        (Some(text), None) => Ok(Some(text)),
        (None, spec) => Ok(spec.map(|map| Value::Object(map).to_string())),
    }
}

/// The same where there has to be one.
pub(super) fn need_text(yaml: Option<String>, spec: Option<JsonObject>) -> Result<String, Refusal> {
    let hint = "give spec_yaml or spec; workflow_guide has three complete definitions";
    text(yaml, spec)?.ok_or_else(|| Refusal::new("bad_input", "there is no definition").hint(hint))
}

/// Why the engine did not take a definition.
pub(super) fn invalid(error: Error, source: &Source) -> Refusal {
    match error {
        Error::Invalid(found) => unsound(&found, source),
        error => error.into(),
    }
}

/// What is wrong with a definition that has errors: every problem with its place, warnings as well.
pub(super) fn unsound(found: &[Diagnostic], source: &Source) -> Refusal {
    let errors = found.iter().filter(|problem| problem.code.severity() == Severity::Error).count();
    let message = format!("the definition has {errors} error{}", if errors == 1 { "" } else { "s" });
    let hint = "correct every problem and call again; workflow_guide describes the language, workflow_tools the arguments \
                of tools";
    Refusal::new("invalid_definition", message).problems(problems::facts(found, source)).hint(hint)
}
