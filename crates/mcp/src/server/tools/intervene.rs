//! `workflow_intervene`: a human changes a run that is under way.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{Edit, Error, Intervention, Payload, Resolution};

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts, Refusal};
use super::super::view;
use super::{Entry, Hints, run_id, schema};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_intervene",
    dotted: None,
    title: "Change a run",
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
    /// The run's id.
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// What to do.
    action: Action,
    /// The step, by its path; its id for set_output. Not for set_inputs.
    step: Option<String>,
    /// The arguments, the output, the inputs or the result.
    value: Option<Value>,
}

#[derive(Deserialize, JsonSchema, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Action {
    SetArguments,
    SetOutput,
    SetInputs,
    Skip,
    SupplyResult,
    Happened,
    Retry,
    Fail,
}

/// What an action comes to.
enum Change {
    Intervention(Intervention),
    Resolution(Resolution),
    /// Leaves a step out, whatever it does.
    Skip,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    let step = args.step.unwrap_or_default();
    if step.is_empty() && args.action != Action::SetInputs {
        return Err(Refusal::new("bad_input", "`step` is missing"));
    }
    match change(args.action, &step, args.value.as_ref())? {
        Change::Intervention(intervention) => asked.user.intervene(run, intervention).await?,
        Change::Resolution(resolution) => asked.user.resolve(run, &step, resolution).await?,
        Change::Skip => match asked.user.resolve(run, &step, Resolution::Skip).await {
            // Its outcome is not unknown: it waits or runs, and is left out as it is.
            Err(Error::Conflict(_) | Error::NotFound(_)) => {
                asked.user.intervene(run, Intervention::Skip { path: step.as_str().into() }).await?;
            }
            resolved => resolved?,
        },
    }
    Ok(match asked.user.status(run).await {
        Ok(view) => view::run(&view),
        // Who decides need not see the rest of the run.
        Err(_) => Facts::new(json!({ "run_id": run, "step": step }), "The run was changed."),
    }
    .into())
}

fn change(action: Action, step: &str, value: Option<&Value>) -> Result<Change, Refusal> {
    let path = || Box::<str>::from(step);
    let value = || value.cloned().ok_or_else(|| Refusal::new("bad_input", "`value` is missing"));
    Ok(match action {
        Action::SetArguments => {
            Change::Intervention(Intervention::SetArguments { path: path(), args: value()? })
        }
        Action::SetOutput => {
            Change::Intervention(Intervention::SetValue(Edit { id: Some(path()), value: value()? }))
        }
        Action::SetInputs => Change::Intervention(Intervention::SetValue(Edit { id: None, value: value()? })),
        Action::Skip => Change::Skip,
        Action::SupplyResult => {
            Change::Intervention(Intervention::SupplyResult { path: path(), output: Payload::new(value()?) })
        }
        Action::Happened => Change::Resolution(Resolution::Happened(Payload::new(value()?))),
        Action::Retry => Change::Resolution(Resolution::Retry),
        Action::Fail => Change::Resolution(Resolution::Fail),
    })
}
