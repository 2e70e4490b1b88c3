//! `workflow_start`: starts a run and waits a little for it.

use rmcp::model::{CallToolResponse, JsonObject};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use steprail_core::source::Source;
use steprail_engine::{ListRuns, RunHandle, RunRow, Workflow};

use super::super::Shared;
use super::super::answer::{Answer, Asked, Refusal};
use super::super::tasks::{self, AS_TOOL, Given, Waiting};
use super::{Entry, Hints, define, schema};
use crate::check::{fitting, need_sound};
use crate::limits::{DUPLICATE_MS, DUPLICATE_RUNS, PASSED_ON_SECS, WAIT_SECS};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_start",
    dotted: Some("workflows.run"),
    title: "Start a workflow",
    description: "Starts a run of a stored workflow (name) or of a definition that you give (spec_yaml or spec), with its \
                  inputs. The run is durable when this answers: it goes on whatever happens to this conversation. Waits \
                  up to wait_s seconds for its end; if it takes longer, gives the run_id to ask workflow_status for.",
    hints: Hints::ACTS,
    for_those_who: super::RUN,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The workflow to run.
    name: Option<String>,
    /// A version of it; the newest by default.
    version: Option<u32>,
    /// A definition as YAML or JSON text, instead of a name.
    spec_yaml: Option<String>,
    /// A definition as an object, instead of a name.
    spec: Option<JsonObject>,
    /// The inputs of the run, as the workflow declares them.
    #[serde(alias = "inputs")]
    input: Option<JsonObject>,
    /// Seconds to wait for its end, up to 45; 10 by default.
    #[schemars(range(min = 0, max = 45))]
    wait_s: Option<f64>,
    /// A key of your choice: a second start with the same key is the first run.
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
        (Some(_), Some(_)) => return Err(Refusal::new("bad_input", "give a name or a definition, not both")),
        (None, None) => {
            let hint = "workflow_lookup finds workflows";
            return Err(Refusal::new("bad_input", "give the name of a workflow, or a definition").hint(hint));
        }
    };
    if let (Some(source), Some(gateway)) = (&source, &shared.gateway) {
        // Before the first call, and not when a later one fails.
        need_sound(&fitting(source, gateway)).map_err(|error| define::invalid(error, source))?;
    }
    let inputs = Value::Object(args.input.unwrap_or_default());
    let keyed = args.idempotency_key.is_some();
    let started = asked.through_client().start(workflow, inputs, args.idempotency_key).await;
    let run = started.map_err(|error| match source {
        Some(source) => define::invalid(error, &source),
        None => error.into(),
    })?;
    let twin = if keyed { None } else { twin(asked, &run).await? };
    let waiting = Waiting::new(args.wait_s.unwrap_or(WAIT_SECS));
    let answer = tasks::answer(shared, asked, run.id(), Given::Facts, waiting).await?;
    Ok(match (answer, twin) {
        (CallToolResponse::Complete(mut result), Some(twin)) => {
            if let Some(Value::Object(facts)) = &mut result.structured_content {
                facts.insert("possible_duplicate_of".to_owned(), twin.run_id.to_string().into());
            }
            let note = format!(
                "Note: run {} was started with the same inputs a moment ago (possible_duplicate_of). If you meant that \
                 one, cancel this one; with idempotency_key a repeated start is the first run.",
                twin.run_id
            );
            result.content.push(rmcp::model::ContentBlock::text(note));
            result.into()
        }
        (answer, _) => answer,
    })
}

/// A run that the same user started with the same inputs a moment before: perhaps a client that gave up waiting.
async fn twin(asked: &Asked, run: &RunHandle) -> Result<Option<RunRow>, Refusal> {
    let this = asked.user.row(run.id()).await?;
    let list = ListRuns {
        name: Some(this.name.clone()),
        created_by: Some(this.created_by.clone()),
        before: Some(this.key),
        limit: DUPLICATE_RUNS,
        ..ListRuns::default()
    };
    let is_twin = |row: &RunRow| {
        row.input.get() == this.input.get() && this.started_at.saturating_sub(row.started_at) <= DUPLICATE_MS
    };
    Ok(asked.user.list(list).await?.into_iter().find(is_twin))
}

/// Calls a tool of another server that is passed on as it is.
pub(super) async fn call_tool(shared: &Shared, asked: &Asked, tool: &str) -> Answer {
    let args = Value::Object(asked.request.arguments.clone().unwrap_or_default());
    let run = asked.user.via(format!("{AS_TOOL}{tool}")).call_tool(tool, &args).await?.id();
    tasks::answer(shared, asked, run, Given::Output, Waiting::new(PASSED_ON_SECS)).await
}
