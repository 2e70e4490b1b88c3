//! `workflow_start`: starts a run and waits a little for it.

use rmcp::model::{CallToolResponse, CallToolResult, JsonObject};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use steprail_core::source::Source;
use steprail_engine::{Error, ListRuns, RunHandle, RunRow, RunStatus, Workflow};

use super::super::answer::{Answer, Asked, Refusal, add_fact};
use super::super::published::input_schema;
use super::super::tasks::{self, Given, Waiting};
use super::super::{Shared, problems};
use super::{Entry, Hints, define, schema, unknown_workflow};
use crate::check::{check_tools_as, require_valid};
use crate::limits::{DUPLICATE_MS, DUPLICATE_RUNS, WAIT_SECS};
use crate::signature::signature;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_start",
    dotted: Some("workflows.run"),
    title: "Start a workflow",
    description: "Starts a run of a stored workflow (name) or of a definition given here. The run is durable when this \
                  answers and goes on by itself. Waits up to wait_s seconds for its end; after that, ask workflow_status.",
    hints: Hints::ACTS,
    for_those_who: super::RUN,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// A stored workflow.
    name: Option<String>,
    /// The newest by default.
    version: Option<u32>,
    /// A definition as YAML or JSON text, instead of a name.
    spec_yaml: Option<String>,
    /// A definition as an object, instead of a name.
    spec: Option<JsonObject>,
    /// The inputs that the workflow declares.
    #[serde(alias = "inputs")]
    input: Option<JsonObject>,
    /// Up to 45; 10 by default.
    wait_s: Option<f64>,
    /// A second start with the same key gives the first run.
    idempotency_key: Option<String>,
}

async fn run(shared: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let text = define::text(args.spec_yaml, args.spec)?;
    let (workflow, source) = match (args.name, text) {
        (Some(name), None) => (Workflow::Named(name, args.version), None),
        (None, Some(text)) => {
            let source = Source::new("definition", &*text);
            (Workflow::Inline { text, source: "definition".to_owned() }, Some(source))
        }
        (Some(_), Some(_)) => {
            let refusal = Refusal::new("bad_input", "both a name and a definition are given");
            return Err(refusal.hint("leave one of them out"));
        }
        (None, None) => {
            let hint = "workflow_lookup {\"query\": …} finds workflows";
            return Err(Refusal::new("bad_input", "neither a name nor a definition is given").hint(hint));
        }
    };
    let warnings = match (&workflow, &source) {
        (_, Some(source)) => of_text(shared, asked, source).await?,
        (Workflow::Named(name, version), None) => of_stored(shared, asked, name, *version).await?,
        _ => Vec::new(),
    };
    let inputs = Value::Object(args.input.unwrap_or_default());
    let keyed = args.idempotency_key.is_some();
    let name = match &workflow {
        Workflow::Named(name, _) => Some(name.clone()),
        Workflow::Inline { .. } => None,
    };
    let run = match asked.through_client().start(workflow, inputs, args.idempotency_key).await {
        Ok(run) => run,
        Err(error) => return Err(refused(asked, error, source.as_ref(), name.as_deref()).await),
    };
    let twin = if keyed { None } else { twin(asked, &run).await? };
    let waiting = Waiting::new(args.wait_s.unwrap_or(WAIT_SECS));
    let mut answer = tasks::answer(shared, asked, run.id(), Given::Facts, waiting).await?;
    if let CallToolResponse::Complete(result) = &mut answer {
        note(result, warnings, twin.as_ref());
    }
    Ok(answer)
}

/// Adds what the caller should know beside how the run stands.
fn note(result: &mut CallToolResult, warnings: Vec<Value>, twin: Option<&RunRow>) {
    if !warnings.is_empty() {
        let lines = problems::lines(&warnings);
        add_fact(result, "warnings", warnings.into(), &lines);
    }
    if let Some(twin) = twin {
        let words = format!(
            "Note: run {} of the same version was started with the same inputs a moment ago (possible_duplicate_of). If \
             you meant that one, cancel this one; with idempotency_key a repeated start gives the first run.",
            twin.run_id
        );
        add_fact(result, "possible_duplicate_of", twin.run_id.to_string().into(), &words);
    }
}

/// Warnings about a definition that is given; one with errors is refused before its first call.
async fn of_text(shared: &Shared, asked: &Asked, source: &Source) -> Result<Vec<Value>, Refusal> {
    let loaded = steprail_core::load(source);
    let mut found = loaded.diagnostics;
    if let (Some(plan), Some(gateway)) = (&loaded.plan, &shared.gateway) {
        found.extend(check_tools_as(&asked.user, plan, source, gateway).await);
    }
    require_valid(&found).map_err(|_| define::unsound(&found, source))?;
    Ok(problems::facts(&found, source))
}

/// Warnings about a stored definition and the tools that there are now.
async fn of_stored(
    shared: &Shared,
    asked: &Asked,
    name: &str,
    version: Option<u32>,
) -> Result<Vec<Value>, Refusal> {
    let definition = match asked.user.definition(name, version).await {
        Ok(definition) => definition,
        Err(Error::NotFound(_)) => return Err(unknown_workflow(asked, name, version).await),
        Err(error) => return Err(error.into()),
    };
    let source = Source::new(definition.name.as_str(), definition.spec_json.as_str());
    let plan = steprail_core::load(&source).plan;
    let (Some(plan), Some(gateway)) = (&plan, &shared.gateway) else { return Ok(Vec::new()) };
    Ok(problems::facts_of_stored(&check_tools_as(&asked.user, plan, &source, gateway).await))
}

/// Why a run was not started, with what to give instead.
async fn refused(asked: &Asked, error: Error, source: Option<&Source>, name: Option<&str>) -> Refusal {
    match (&error, source, name) {
        (Error::BadInput(_), _, Some(name)) => {
            let schema = asked.user.definition(name, None).await.map(|known| input_schema(&known));
            let takes = signature(&schema.unwrap_or_default());
            let call = define::start_call(asked, name).await;
            Refusal::from(error).hint(format!("its inputs are ({takes}); for example: {call}"))
        }
        (Error::BadInput(_), Some(_), _) => {
            Refusal::from(error).hint("give `input` as the `inputs` of the definition declare it")
        }
        (_, Some(source), _) => define::invalid(error, source),
        _ => error.into(),
    }
}

/// A run of the same version that the same user started with the same inputs a moment before, and that has not failed:
/// perhaps a client gave up waiting for it.
async fn twin(asked: &Asked, run: &RunHandle) -> Result<Option<RunRow>, Refusal> {
    let this = asked.user.row(run.id()).await?;
    let list = ListRuns {
        name: Some(this.name.clone()),
        created_by: Some(this.created_by.clone()),
        before: Some(this.key),
        limit: DUPLICATE_RUNS,
        ..ListRuns::default()
    };
    let has_failed = |row: &RunRow| row.status.is_terminal() && row.status != RunStatus::Completed;
    let is_twin = |row: &RunRow| {
        row.version == this.version
            && row.input.get() == this.input.get()
            && this.started_at.saturating_sub(row.started_at) <= DUPLICATE_MS
            && !has_failed(row)
    };
    Ok(asked.user.list(list).await?.into_iter().find(is_twin))
}
