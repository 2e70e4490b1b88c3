//! Runs whose last decision reached its limit of events. They continue round-robin, a few slices per commit, so that
//! requests of other runs are handled in between.

use std::collections::{BTreeMap, BTreeSet};

use steprail_core::run::{Input, Millis, Run};
use steprail_store::{Head, RunId, StoreError};

use super::{Done, Kernel};
use crate::limits::Limits;

/// The limits on the number of events of a decision and of a transaction.
#[derive(Clone, Copy)]
pub(super) struct Slices {
    events: usize,
    per_commit: usize,
    /// Whether the next decision gets a slice even if the transaction is large.
    is_reserved: bool,
}

impl Slices {
    pub(super) fn new(limits: &Limits) -> Self {
        let (events, per_commit) = (limits.slice_events.max(1), limits.slices_per_commit.max(1));
        Self { events, per_commit, is_reserved: false }
    }

    fn events_per_commit(self) -> usize {
        self.events.saturating_mul(self.per_commit)
    }
}

/// The runs that owe a continuation.
#[derive(Default)]
pub(super) struct Continuations {
    /// The runs in the order in which they are served, in two queues.
    queue: BTreeMap<Place, RunId>,
    places: BTreeMap<RunId, Place>,
    last_number: u64,
    /// The queue that was served last.
    last_queue: Queue,
    /// The queued runs that are children of other runs.
    children: BTreeSet<RunId>,
    /// Runs that were removed in the transaction in progress, with their queue, and whether they are children.
    removed: Vec<(RunId, Queue, bool)>,
}

/// The two queues, which are served alternately. A run that ends is thus not delayed by all other runs, and neither are
/// its parent and child runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    /// Runs that cancel steps.
    Ending,
    #[default]
    Others,
}

impl Queue {
    fn of(state: &Run) -> Self {
        if state.is_ending() { Self::Ending } else { Self::Others }
    }
}

/// A position in one of the queues.
type Place = (Queue, u64);

impl Continuations {
    /// Records after a decision whether a run owes a continuation. A run that is not in its queue yet is added at the
    /// end.
    pub(super) fn note(&mut self, run: RunId, head: &Head, state: &Run) {
        let queue = state.owes_continuation().then(|| Queue::of(state));
        if self.places.get(&run).map(|(queue, _)| *queue) != queue {
            self.remove(run);
            queue.into_iter().for_each(|queue| self.add(run, queue, head.parent.is_some()));
        }
    }

    /// Adds a loaded run that owes a continuation: the decision that would have queued it was rolled back.
    pub(super) fn loaded(&mut self, run: RunId, head: &Head, state: &Run) {
        if (state.owes_continuation() || state.has_startable()) && !self.places.contains_key(&run) {
            self.add(run, Queue::of(state), head.parent.is_some());
        }
    }

    fn add(&mut self, run: RunId, queue: Queue, is_child: bool) {
        self.last_number += 1;
        let place = (queue, self.last_number);
        self.queue.insert(place, run);
        self.places.insert(run, place);
        self.children.extend(is_child.then_some(run));
    }

    /// Removes a run. A rollback of the transaction undoes it.
    fn remove(&mut self, run: RunId) {
        if let Some(place) = self.places.remove(&run) {
            self.queue.remove(&place);
            let is_child = self.children.remove(&run);
            self.removed.push((run, place.0, is_child));
        }
    }

    /// Removes the first run of the next queue. A run that still owes a continuation afterwards is added at the end.
    fn next(&mut self) -> Option<RunId> {
        let next = match self.last_queue {
            Queue::Ending => {
                self.queue.range((Queue::Others, 0)..).next().or_else(|| self.queue.iter().next())
            }
            Queue::Others => self.queue.iter().next(),
        };
        let ((queue, _), run) = next.map(|(place, run)| (*place, *run))?;
        self.last_queue = queue;
        self.remove(run);
        Some(run)
    }

    /// The number of child runs.
    pub(super) fn children(&self) -> usize {
        self.children.len()
    }

    pub(super) fn commit(&mut self) {
        self.removed.clear();
    }

    /// Restores the runs that were removed in a transaction that is rolled back. A run that was added in it stays; its
    /// continuation has no effect.
    pub(super) fn undo(&mut self) {
        for (run, queue, is_child) in std::mem::take(&mut self.removed) {
            if !self.places.contains_key(&run) {
                self.add(run, queue, is_child);
            }
        }
    }
}

impl Kernel {
    /// Whether a run owes a continuation. [`Kernel::handle`] must then be called again, even without requests.
    pub fn owes_continuation(&self) -> bool {
        !self.continuations.queue.is_empty()
    }

    /// The number of events after which the next decision makes no further transition. When the transaction is large
    /// enough, a decision makes only the events that its input causes directly.
    pub(super) fn slice_limit(&self, done: &Done) -> usize {
        if self.slices.is_reserved || self.has_room(done) { self.slices.events } else { 1 }
    }

    fn has_room(&self, done: &Done) -> bool {
        usize::try_from(done.stats.events).unwrap_or(usize::MAX) < self.slices.events_per_commit()
    }

    /// Continues some of the runs that owe a continuation. One of them always gets its slice, so that requests cannot
    /// starve them.
    pub(super) fn continue_some(&mut self, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        for served in 0..self.slices.per_commit {
            if served > 0 && !self.has_room(done) {
                break;
            }
            let Some(run) = self.continuations.next() else { break };
            self.slices.is_reserved = true;
            let continued = self.input(run, Input::Continue, now, done);
            self.slices.is_reserved = false;
            continued?;
            self.deliver_messages(now, done)?;
        }
        Ok(())
    }
}
