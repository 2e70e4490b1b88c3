//! Wakes the subscriptions of a run when it changes. A commit does not wake those of other runs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use steprail_store::RunId;
use tokio::sync::watch;

/// Entries that may be unused before they are removed.
const SLACK: usize = 1_000;

/// Receivers by run. Closed when the engine stops.
#[derive(Default)]
pub(crate) struct RunSignals(Mutex<Signals>);

#[derive(Default)]
struct Signals {
    is_closed: bool,
    runs: HashMap<RunId, watch::Sender<()>>,
    /// The number of entries after the last removal of unused ones.
    used: usize,
}

impl RunSignals {
    /// A receiver that changes with each commit of a run. It is closed if the engine has stopped.
    pub(crate) fn watch(&self, run: RunId) -> watch::Receiver<()> {
        let mut signals = self.lock();
        if signals.is_closed {
            return watch::channel(()).1;
        }
        if signals.runs.len() > 2 * signals.used + SLACK {
            signals.runs.retain(|_, sender| sender.receiver_count() > 0);
            signals.used = signals.runs.len();
        }
        signals.runs.entry(run).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Wakes the subscriptions of runs that changed.
    pub(crate) fn notify(&self, changed: &[RunId]) {
        let mut signals = self.lock();
        if signals.runs.is_empty() {
            return;
        }
        for run in changed {
            if signals.runs.get(run).is_some_and(|sender| sender.send(()).is_err()) {
                signals.runs.remove(run);
            }
        }
    }

    /// Ends all subscriptions: the engine has stopped.
    pub(crate) fn close(&self) {
        let mut signals = self.lock();
        signals.is_closed = true;
        signals.runs.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Signals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
