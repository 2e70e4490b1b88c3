//! `workflow_intervene`: a human changes a run that is under way.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{InterventionAction, InterventionRequest};

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts};
use super::super::view;
use super::super::waits::look;
use super::{Entry, Hints, run_id, schema};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_intervene",
    dotted: None,
    title: "InterventionRequest a run",
    description: "A human changes a run that is under way: sets the arguments of a step to come (set_arguments), replaces \
                  what a step gave (set_output) or the inputs (set_inputs), leaves a step out (skip), gives its result \
                  (supply_result); or says what became of a call with an unknown outcome (happened, retry, fail, or skip).",
    hints: Hints::STOPS,
    for_those_who: super::DECIDE,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// What to do.
    action: InterventionAction,
    /// The step, by its path; its id for set_output. Not for set_inputs.
    step: Option<String>,
    /// The arguments, the output, the inputs or the result.
    value: Option<Value>,
    /// For a call with an unknown outcome: the attempt's digest, as unknown_calls shows it.
    digest: Option<String>,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    let Args { action, step, value, digest, .. } = args;
    asked.user.intervene(run, InterventionRequest { action, step: step.clone(), value, digest }).await?;
    Ok(match look(&asked.user, run).await {
        Ok(seen) => view::run(&seen),
        // Who decides need not see the rest of the run.
        Err(_) => Facts::new(json!({ "run_id": run, "step": step }), "The run was changed."),
    }
    .into())
}
