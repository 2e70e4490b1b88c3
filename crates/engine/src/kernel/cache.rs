//! What is kept in memory because it will be asked for again: payloads, within a number of bytes.

use std::collections::{HashMap, VecDeque};

use steprail_core::run::{Event, Payload, Record};
use steprail_store::{RunKey, Wanted};

use crate::limits::CACHED_BYTES;

/// Payloads, the oldest of which go first.
#[derive(Default)]
pub(super) struct Values {
    values: HashMap<(RunKey, Wanted), Payload>,
    order: VecDeque<(RunKey, Wanted)>,
    bytes: usize,
}

impl Values {
    pub(super) fn get(&self, run: RunKey, wanted: Wanted) -> Option<Payload> {
        self.values.get(&(run, wanted)).cloned()
    }

    pub(super) fn put(&mut self, run: RunKey, wanted: Wanted, payload: Payload) {
        self.bytes += cost(&payload);
        match self.values.insert((run, wanted), payload) {
            Some(before) => self.bytes -= cost(&before),
            None => self.order.push_back((run, wanted)),
        }
        while self.bytes > CACHED_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(payload) = self.values.remove(&oldest) {
                self.bytes -= cost(&payload);
            }
        }
    }

    /// Keeps what events speak of: the next step is likely to read it.
    pub(super) fn keep(&mut self, run: RunKey, records: &[Record]) {
        for record in records {
            let Some(payload) = &record.payload else { continue };
            match &record.event {
                Event::StepCompleted { step, .. } => self.put(run, Wanted::Output(step.n), payload.clone()),
                Event::StepStarted { step, .. } | Event::ApprovalRequested { step, .. } => {
                    self.put(run, Wanted::Input(step.n), payload.clone());
                }
                _ => {}
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// About what a payload takes: its text, its value, and the entry.
fn cost(payload: &Payload) -> usize {
    3 * payload.json().len() + 200
}
