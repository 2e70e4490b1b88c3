//! `workflow_signal`: brings an event to a run that waits for it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts};
use super::{Entry, Hints, run_id, schema};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_signal",
    dotted: None,
    title: "Send an event",
    description: "Brings an event to a run, which keeps it until a step waits for it; without run_id, to every run that \
                  waits for it now.",
    hints: Hints { read_only: false, destructive: false, idempotent: false, open_world: true },
    for_those_who: super::CONTROL,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The event's name.
    event: String,
    /// What it carries: any JSON.
    #[serde(default)]
    payload: Value,
    /// The run that it is for.
    #[serde(alias = "workflow_id")]
    run_id: Option<String>,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let run = args.run_id.as_deref().map(run_id).transpose()?;
    let reached = asked.user.signal(&args.event, args.payload, run).await?;
    let message = match reached {
        0 => format!("No run waits for the event `{}`, so it was not delivered.", args.event),
        1 => format!("`{}` reached one run.", args.event),
        _ => format!("`{}` reached {reached} runs.", args.event),
    };
    let facts = Facts::new(json!({ "event": args.event, "reached": reached }), message);
    Ok(match run {
        Some(run) => facts.next(format!("workflow_status {}", json!({ "run_id": run, "wait_s": 30 }))),
        None if reached == 0 => {
            facts.next("workflow_list_runs {\"status\": \"paused\"} lists runs that wait")
        }
        None => facts,
    }
    .into())
}
