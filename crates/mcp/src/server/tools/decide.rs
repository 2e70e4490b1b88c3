//! `workflow_approve` and `workflow_deny`: a human's decision at a gate. Who may decide is not for the caller to say.

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_core::plan::Hash;

use super::super::answer::{Answer, Asked, Facts, Refusal};
use super::{Entry, Hints, run_id, schema};

pub(super) const APPROVE: Entry = Entry {
    name: "workflow_approve",
    dotted: None,
    title: "Approve a step",
    description: "Says yes at a gate: the run goes on. Only a human who may decide can do this, and by default not the one \
                  who started the run.",
    hints: Hints::STOPS,
    for_those_who: super::DECIDE,
    schema: schema::of::<Args>,
    run: |_, asked| Box::pin(decide(asked, true)),
};

pub(super) const DENY: Entry = Entry {
    name: "workflow_deny",
    dotted: None,
    title: "Deny a step",
    description: "Says no at a gate: as the definition has it, the run is cancelled, or the step fails.",
    hints: Hints::CHANGES,
    for_those_who: super::DECIDE,
    schema: schema::of::<Args>,
    run: |_, asked| Box::pin(decide(asked, false)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// The step that waits, by its path, as workflow_status shows it.
    #[serde(alias = "step")]
    step_name: String,
    /// Why.
    reason: Option<String>,
    /// What the step's tool wants to know, if it asks something: as the form in workflow_status has it.
    answer: Option<JsonObject>,
    /// What was shown, as workflow_status gave it: if it has changed since, the decision is refused.
    digest: Option<String>,
}

async fn decide(asked: &Asked, approved: bool) -> Answer {
    let args: Args = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    let digest = match &args.digest {
        None => None,
        Some(text) => {
            let bad = || {
                Refusal::new("bad_input", "invalid digest")
                    .hint("workflow_status shows the digest of an open approval")
            };
            Some(Hash::from_hex(text).ok_or_else(bad)?)
        }
    };
    match args.answer {
        Some(answer) if approved => {
            asked.user.answer(run, &args.step_name, Value::Object(answer), digest).await?;
        }
        _ => asked.user.decide(run, &args.step_name, approved, args.reason, digest).await?,
    }
    let word = if approved { "approved" } else { "denied" };
    let facts = json!({ "run_id": run, "step": args.step_name, "decision": word });
    let message = format!("`{}` was {word} by {}.", args.step_name, asked.user.principal().id);
    Ok(Facts::new(facts, message)
        .about(run)
        .next("workflow_status with wait_s=30 shows how it goes on")
        .into())
}
