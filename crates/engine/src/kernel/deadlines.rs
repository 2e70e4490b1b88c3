//! Deadlines of calls in flight. They exist only in memory, because a restart ends the calls as well.

use std::collections::BTreeSet;

use steprail_core::run::{Changes, Millis, Record, Run, TimerKind};
use steprail_store::RunId;

/// The deadline of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline {
    pub due: Millis,
    pub run: RunId,
    pub n: u32,
    pub kind: TimerKind,
}

/// Deadlines by time. Changes are undone if their transaction fails.
#[derive(Default)]
pub(super) struct Deadlines {
    entries: BTreeSet<Deadline>,
    /// Entries that the batch in progress added (true) or removed (false).
    undo: Vec<(Deadline, bool)>,
}

impl Deadlines {
    pub(super) fn next(&self) -> Option<Millis> {
        self.entries.first().map(|deadline| deadline.due)
    }

    /// Removes and returns up to `limit` deadlines that have passed.
    pub(super) fn take_due(&mut self, now: Millis, limit: usize) -> Vec<Deadline> {
        let due: Vec<Deadline> =
            self.entries.iter().take_while(|deadline| deadline.due <= now).take(limit).copied().collect();
        due.iter().for_each(|deadline| self.remove(*deadline));
        due
    }

    /// Updates the deadlines after an event of a run.
    pub(super) fn note(&mut self, run: RunId, record: &Record, changes: &Changes<'_>) {
        let Some(change) = &changes.step else { return };
        let n = change.step.n;
        if let Some((kind, due)) = record.had_deadline.filter(|_| change.clears_waits) {
            self.remove(Deadline { due, run, n, kind });
        }
        if let Some((kind, due)) = change.deadline {
            self.insert(Deadline { due, run, n, kind });
        }
    }

    /// Adds the deadlines of a run that was loaded.
    pub(super) fn load(&mut self, run: RunId, state: &Run) {
        for (n, live) in state.live() {
            if let Some((kind, due)) = live.deadline {
                self.insert(Deadline { due, run, n: *n, kind });
            }
        }
    }

    fn insert(&mut self, deadline: Deadline) {
        if self.entries.insert(deadline) {
            self.undo.push((deadline, true));
        }
    }

    fn remove(&mut self, deadline: Deadline) {
        if self.entries.remove(&deadline) {
            self.undo.push((deadline, false));
        }
    }

    pub(super) fn commit(&mut self) {
        self.undo.clear();
    }

    pub(super) fn undo(&mut self) {
        while let Some((deadline, added)) = self.undo.pop() {
            if added {
                self.entries.remove(&deadline);
            } else {
                self.entries.insert(deadline);
            }
        }
    }
}
