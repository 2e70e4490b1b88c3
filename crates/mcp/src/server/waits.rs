//! What sleeping and waiting steps of a run wait for, read from the end of its log.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use steprail_core::run::{Millis, Started};
use steprail_engine::{Error, Event, RunId, RunView, StoredEvent, User};

use super::view::time;
use crate::limits::WAIT_EVENTS;

/// A run as it stands, with what its steps wait for.
pub(super) struct Seen {
    pub view: RunView,
    waits: BTreeMap<(String, u32), Wait>,
}

/// What one step waits for.
enum Wait {
    Until(Millis),
    Event { event: String, correlate: Option<Value> },
}

/// Reads a run. The log is read only if a step sleeps or waits for an event.
pub(super) async fn look(user: &User, run: RunId) -> Result<Seen, Error> {
    let view = user.status(run).await?;
    let waits = |step: &steprail_engine::StepRow| {
        step.status == "waiting" && ["sleep", "wait"].contains(&&*step.kind)
    };
    if !view.steps.iter().any(waits) {
        return Ok(Seen { view, waits: BTreeMap::new() });
    }
    let after = view.run.seq.saturating_sub(WAIT_EVENTS as u64);
    let events = user.events(run, after, WAIT_EVENTS).await?.events;
    let waits = events.iter().filter_map(begun).collect();
    Ok(Seen { view, waits })
}

fn begun(stored: &StoredEvent) -> Option<((String, u32), Wait)> {
    let Event::StepStarted { step, what, .. } = &stored.event else { return None };
    let wait = match what {
        Started::Sleep { due } => Wait::Until(*due),
        Started::Wait { event, correlate, .. } => {
            Wait::Event { event: event.to_string(), correlate: correlate.clone() }
        }
        _ => return None,
    };
    Some(((step.path.to_string(), step.attempt), wait))
}

impl Seen {
    /// Steps that wait for a moment or for an event.
    pub(super) fn waiting(&self) -> Vec<Value> {
        let waiting = self.view.steps.iter().filter(|step| step.status == "waiting");
        let told = waiting.filter_map(|step| {
            let wait = self.waits.get(&(step.path.clone(), step.attempt));
            let mut told = match &*step.kind {
                "sleep" => json!({ "step": step.path, "for": "time" }),
                "wait" => json!({ "step": step.path, "for": "event" }),
                _ => return None,
            };
            match wait {
                Some(Wait::Until(due)) => told["until"] = time(*due),
                Some(Wait::Event { event, correlate }) => {
                    told["event"] = event.as_str().into();
                    if let Some(correlate) = correlate {
                        told["correlate"] = correlate.clone();
                    }
                }
                None => {}
            }
            Some(told)
        });
        told.collect()
    }
}
