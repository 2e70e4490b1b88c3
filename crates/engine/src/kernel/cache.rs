//! What is kept in memory because it will be asked for again: payloads of runs under way, within a number of bytes.

use std::collections::{HashMap, VecDeque};

use steprail_core::run::{Event, Payload, Record};
use steprail_store::{RunKey, Wanted};

use crate::limits::CACHED_BYTES;

/// Entries of the order that may be out of date before it is tidied up.
const ORDER_SLACK: usize = 1_000;

/// Payloads, the oldest of which go first.
#[derive(Default)]
pub(super) struct Values {
    values: HashMap<RunKey, HashMap<Wanted, Payload>>,
    /// What was put in, oldest first; some of it may be gone.
    order: VecDeque<(RunKey, Wanted)>,
    count: usize,
    bytes: usize,
}

impl Values {
    pub(super) fn get(&self, run: RunKey, wanted: Wanted) -> Option<Payload> {
        self.values.get(&run)?.get(&wanted).cloned()
    }

    pub(super) fn put(&mut self, run: RunKey, wanted: Wanted, payload: Payload) {
        self.bytes += cost(&payload);
        match self.values.entry(run).or_default().insert(wanted, payload) {
            Some(before) => self.bytes -= cost(&before),
            None => {
                self.order.push_back((run, wanted));
                self.count += 1;
            }
        }
        while self.bytes > CACHED_BYTES {
            let Some((run, wanted)) = self.order.pop_front() else { break };
            if let Some(payload) = self.values.get_mut(&run).and_then(|of_run| of_run.remove(&wanted)) {
                self.bytes -= cost(&payload);
                self.count -= 1;
            }
        }
    }

    /// A run ended: nobody asks for its values any more.
    pub(super) fn drop_run(&mut self, run: RunKey) {
        let Some(gone) = self.values.remove(&run) else { return };
        self.count -= gone.len();
        self.bytes -= gone.values().map(cost).sum::<usize>();
        if self.order.len() > 2 * self.count + ORDER_SLACK {
            self.order.retain(|(run, wanted)| {
                self.values.get(run).is_some_and(|of_run| of_run.contains_key(wanted))
            });
        }
    }

    /// Keeps what events speak of: the next step is likely to read it.
    pub(super) fn keep(&mut self, run: RunKey, records: &[Record]) {
        for record in records {
            let Some(payload) = &record.payload else { continue };
            match &record.event {
                Event::StepCompleted { step, .. } => self.put(run, Wanted::Output(step.n), payload.clone()),
                Event::ApprovalRequested { step, .. } => {
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
