//! `workflow_events`: the log of a run.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{EventPage, StoredEvent};

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts};
use super::super::view;
use super::{Entry, Hints, run_id, schema};
use crate::limits::EVENTS_PAGE;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_events",
    dotted: None,
    title: "Events of a run",
    description: "The append-only log of a run: everything that happened to it, in order, each event with its number (seq).",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Only events after this number; 0 by default.
    #[serde(default)]
    after_seq: u64,
    /// 100 by default, up to 500.
    limit: Option<usize>,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    let limit = args.limit.unwrap_or(EVENTS_PAGE).clamp(1, 5 * EVENTS_PAGE);
    let EventPage { events, has_more } = asked.user.events(run, args.after_seq, limit).await?;
    let last = events.last().map_or(args.after_seq, |event| event.seq);
    let told: Vec<Value> = events.iter().map(event).collect();
    let message = format!("{} events of run {run}.", told.len());
    let facts = Facts::new(json!({ "run_id": run, "events": told, "last_seq": last }), message).about(run);
    Ok(if has_more {
        facts.next(format!("workflow_events with after_seq={last} has those that follow"))
    } else {
        facts
    }
    .into())
}

/// An event with its number and time.
pub(in super::super) fn event(stored: &StoredEvent) -> Value {
    let mut told = serde_json::to_value(&stored.event).unwrap_or_default();
    if let Value::Object(map) = &mut told {
        map.insert("seq".to_owned(), stored.seq.into());
        map.insert("at".to_owned(), view::time(stored.at));
    }
    told
}
