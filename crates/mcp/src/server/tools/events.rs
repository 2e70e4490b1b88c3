//! `workflow_events`: reads the log of a run.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{After, EventPage, StoredEvent};

use super::super::error::ToolResult;
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use super::super::view;
use super::run_id;
use crate::limits::EVENTS_PAGE;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Only events after this sequence number; 0 by default.
    #[serde(default)]
    after_seq: u64,
    /// 100 by default, up to 500.
    limit: Option<usize>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let run = run_id(&args.run_id)?;
    let limit = args.limit.unwrap_or(EVENTS_PAGE).clamp(1, 5 * EVENTS_PAGE);
    let EventPage { events, next } = request.user.events(run, After::Seq(args.after_seq), limit).await?;
    let last = events.last().map_or(args.after_seq, |event| event.seq);
    let events: Vec<Value> = events.iter().map(fields).collect();
    let message = format!("{} events of run {run}.", events.len());
    let output = ToolOutput::new(json!({ "run_id": run, "events": events, "last_seq": last }), message);
    let output = output.link_run(run);
    Ok(if next.is_some() {
        output.next(format!("workflow_events with after_seq={last} returns the events that follow"))
    } else {
        output
    }
    .into())
}

/// An event with its number and time.
pub(in super::super) fn fields(stored: &StoredEvent) -> Value {
    let mut fields = serde_json::to_value(&stored.event).unwrap_or_default();
    if let Value::Object(map) = &mut fields {
        map.insert("seq".to_owned(), stored.seq.into());
        map.insert("at".to_owned(), view::time(stored.at));
    }
    fields
}
