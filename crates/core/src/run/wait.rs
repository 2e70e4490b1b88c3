//! `wait` steps: a step waits for a signal from outside the run.

use serde_json::Value;

use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::parts::Started;
use super::phase::Phase;
use super::{Payload, WorldError};
use crate::limits;
use crate::plan::Wait;

impl Decision<'_> {
    pub(super) fn begin_wait(&mut self, attempt: &Attempt, wait: &Wait) -> DecideResult {
        let event: Box<str> = match self.eval_text(attempt.scope, &wait.event)? {
            Ok(Value::String(event)) => event.into(),
            Ok(other) => other.to_string().into(),
            Err(error) => return self.fail_before_start(attempt, error),
        };
        let correlate = match &wait.correlate {
            None => None,
            Some(template) => match self.eval(attempt.scope, template)? {
                Ok(value) => Some(value),
                Err(error) => return self.fail_before_start(attempt, error),
            },
        };
        let buffered = self.buffered_signal(&event, correlate.as_ref())?;
        let signal = buffered.as_ref().map(|(seq, _)| *seq);
        self.emit_started(attempt, Started::Wait { event, correlate, signal }, None);
        match buffered {
            Some((_, payload)) => self.complete(attempt.n(), payload, None),
            None => Ok(()),
        }
    }

    /// Returns the first buffered signal with this name whose payload matches `correlate`.
    fn buffered_signal(
        &mut self,
        event: &str,
        correlate: Option<&Value>,
    ) -> Result<Option<(u64, Payload)>, WorldError> {
        let named = self.run.signals.iter().filter(|(name, _)| &**name == event);
        let candidates: Vec<u64> = named.map(|(_, seq)| *seq).collect();
        for seq in candidates {
            let payload = self.event_value(seq)?;
            if correlates(payload.value(), correlate) {
                return Ok(Some((seq, payload)));
            }
        }
        Ok(None)
    }

    /// Delivers a signal to the first step that waits for it. If none does, the signal is buffered if `keep` is set and the
    /// buffer has room, and dropped otherwise.
    pub(super) fn signalled(&mut self, event: Box<str>, payload: Value, keep: bool) -> DecideResult {
        let waiting = self.run.live.iter().find(|(n, live)| match &live.phase {
            Phase::Waiting { event: name, correlate } => {
                *name == event && correlates(&payload, correlate.as_ref()) && !self.run.is_doomed(**n)
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

/// Whether a payload matches `correlate`: it is equal, or a map that contains all of its entries.
fn correlates(payload: &Value, expected: Option<&Value>) -> bool {
    match (expected, payload) {
        (None, _) => true,
        (Some(Value::Object(expected)), Value::Object(payload)) => {
            expected.iter().all(|(key, value)| payload.get(key) == Some(value))
        }
        (Some(expected), payload) => expected == payload,
    }
}
