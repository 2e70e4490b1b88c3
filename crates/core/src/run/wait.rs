//! `wait`: until an event arrives from outside.

use serde_json::Value;

use super::decide::{Decided, Decision, Entry};
use super::event::Event;
use super::parts::Started;
use super::state::Phase;
use super::{Payload, WorldError};
use crate::limits;
use crate::plan::Wait;

impl Decision<'_> {
    pub(super) fn begin_wait(&mut self, at: &Entry, wait: &Wait) -> Decided {
        let event: Box<str> = match self.eval_text(at.scope, &wait.event)? {
            Ok(Value::String(event)) => event.into(),
            Ok(other) => other.to_string().into(),
            Err(error) => return self.fail_entry(at, error),
        };
        let correlate = match &wait.correlate {
            None => None,
            Some(template) => match self.eval(at.scope, template)? {
                Ok(value) => Some(value),
                Err(error) => return self.fail_entry(at, error),
            },
        };
        let kept = self.kept_signal(&event, correlate.as_ref())?;
        let signal = kept.as_ref().map(|(seq, _)| *seq);
        self.started(at, Started::Wait { event, correlate, signal }, None);
        match kept {
            Some((_, payload)) => self.complete(at.n(), payload, None),
            None => Ok(()),
        }
    }

    /// The first signal that arrived before anybody waited for it.
    fn kept_signal(
        &mut self,
        event: &str,
        correlate: Option<&Value>,
    ) -> Result<Option<(u64, Payload)>, WorldError> {
        let named = self.run.signals.iter().filter(|(name, _)| &**name == event);
        let candidates: Vec<u64> = named.map(|(_, seq)| *seq).collect();
        for seq in candidates {
            let payload = self.noted(seq)?;
            if carries(payload.value(), correlate) {
                return Ok(Some((seq, payload)));
            }
        }
        Ok(None)
    }

    /// An event arrived: the first step that waits for it goes on, or it is kept.
    pub(super) fn signalled(&mut self, event: Box<str>, payload: Value, keep: bool) -> Decided {
        let waiting = self.run.live.iter().find(|(_, live)| match &live.phase {
            Phase::Waiting { event: name, correlate } => {
                *name == event && carries(&payload, correlate.as_ref())
            }
            _ => false,
        });
        match waiting.map(|(n, _)| *n) {
            Some(n) => self.complete(n, Payload::new(payload), None),
            None if keep && self.run.signals.len() < limits::SIGNALS => {
                self.emit(Event::SignalReceived { event, payload });
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// Whether an event is meant for a step: it is equal to what the step expects, or has all of its keys.
fn carries(payload: &Value, expected: Option<&Value>) -> bool {
    match (expected, payload) {
        (None, _) => true,
        (Some(Value::Object(expected)), Value::Object(payload)) => {
            expected.iter().all(|(key, value)| payload.get(key) == Some(value))
        }
        (Some(expected), payload) => expected == payload,
    }
}
