//! Cache of the payloads of runs in memory, bounded in bytes.

use std::collections::VecDeque;

use steprail_core::plan::Hash;
use steprail_core::run::{Changes, Event, Payload, Record, ValueChange};
use steprail_store::{IdMap, RunId, Wanted};

use crate::limits::CACHED_BYTES;

/// The maximum number of outdated entries in the order before it is compacted.
const ORDER_SLACK: usize = 1_000;

/// Payloads, evicted in the order in which they were added.
#[derive(Default)]
pub(super) struct Values {
    values: IdMap<RunId, IdMap<Wanted, Payload>>,
    /// The entries in the order in which they were added. Some of them may have been removed.
    order: VecDeque<(RunId, Wanted)>,
    count: usize,
    bytes: usize,
}

impl Values {
    pub(super) fn get(&self, run: RunId, wanted: Wanted) -> Option<Payload> {
        self.values.get(&run)?.get(&wanted).cloned()
    }

    pub(super) fn put(&mut self, run: RunId, wanted: Wanted, payload: Payload) {
        self.bytes += cost(&payload);
        if let Some(before) = self.values.entry(run).or_default().insert(wanted, payload) {
            self.bytes -= cost(&before);
        } else {
            self.order.push_back((run, wanted));
            self.count += 1;
        }
        while self.bytes > CACHED_BYTES {
            let Some((run, wanted)) = self.order.pop_front() else { break };
            if let Some(payload) = self.values.get_mut(&run).and_then(|of_run| of_run.remove(&wanted)) {
                self.bytes -= cost(&payload);
                self.count -= 1;
            }
        }
    }

    /// Removes the values of a run that ended.
    pub(super) fn drop_run(&mut self, run: RunId) {
        let Some(gone) = self.values.remove(&run) else { return };
        self.count -= gone.len();
        self.bytes -= gone.values().map(cost).sum::<usize>();
        if self.order.len() > 2 * self.count + ORDER_SLACK {
            self.order.retain(|(run, wanted)| {
                self.values.get(run).is_some_and(|of_run| of_run.contains_key(wanted))
            });
        }
    }

    /// Adds the values of new events: the next step is likely to read them.
    pub(super) fn keep(&mut self, run: RunId, records: &[Record]) {
        for record in records {
            let Some(payload) = &record.payload else { continue };
            match &record.event {
                Event::StepCompleted { step, .. } => self.put(run, Wanted::Output(step.n), payload.clone()),
                Event::ApprovalRequested { step, .. } => {
                    self.put(run, Wanted::Input(step.n), payload.clone());
                }
                // Replaced only if it is cached: a new attempt can have another input.
                Event::StepStarted { step, .. } if self.get(run, Wanted::Input(step.n)).is_some() => {
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

/// Hashes of the values of a run, according to its log.
#[derive(Default)]
pub(super) struct Hashes(IdMap<Wanted, Hash>);

impl Hashes {
    /// The hashes of a new run.
    pub(super) fn of_run(inputs: Hash) -> Self {
        Self(IdMap::from_iter([(Wanted::Inputs, inputs)]))
    }

    /// Records the hash of a value in an event. The input of a step is not needed after its end.
    pub(super) fn note(&mut self, changes: &Changes<'_>) {
        let n = changes.step.as_ref().map(|change| change.step.n).unwrap_or_default();
        match changes.value {
            Some(ValueChange::RunInputs(hash)) => drop(self.0.insert(Wanted::Inputs, hash)),
            Some(ValueChange::StepInput(hash)) => drop(self.0.insert(Wanted::Input(n), hash)),
            Some(ValueChange::StepOutput(hash)) => {
                self.0.remove(&Wanted::Input(n));
                self.0.insert(Wanted::Output(n), hash);
            }
            Some(ValueChange::RunOutput(_)) | None => {}
        }
    }

    /// Whether a value matches its hash.
    pub(super) fn matches(&self, wanted: Wanted, found: &Payload) -> bool {
        self.0.get(&wanted).is_none_or(|hash| *hash == found.hash())
    }
}

/// The approximate memory of a payload: its text, its parsed value and its entry.
fn cost(payload: &Payload) -> usize {
    3 * payload.json().len() + 200
}
