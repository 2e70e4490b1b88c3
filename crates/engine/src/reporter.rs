//! Reports of calls in flight: progress, task ids, changed tools.

use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use steprail_core::run::Report;

use crate::driver::Message;
use crate::kernel::{CallId, Notification, Request};
use crate::limits::{PROGRESS_BURST, PROGRESS_INTERVAL_MS};

/// Receives the reports of one call. Clones share the receiver; the default discards reports.
#[derive(Clone, Default)]
pub struct CallReporter(Option<Arc<dyn Fn(Report) + Send + Sync>>);

impl CallReporter {
    /// A reporter that passes every report to a function.
    pub fn new(receive: impl Fn(Report) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(receive)))
    }

    /// Reports something about the call.
    pub fn report(&self, report: Report) {
        if let Some(receive) = &self.0 {
            receive(report);
        }
    }

    /// A reporter that writes to the log of the run. Progress reports that come too often are dropped.
    pub(crate) fn to_log(call: CallId, sender: Sender<Message>) -> Self {
        let rate_limit = Mutex::<ProgressRateLimit>::default();
        Self::new(move |report| {
            let mut rate_limit = rate_limit.lock().unwrap_or_else(PoisonError::into_inner);
            if !matches!(report, Report::Progress { .. }) || rate_limit.admit() {
                let notification = Notification::CallReported { id: call, report };
                // A stopped engine needs no reports.
                let _ = sender.send(Message::Request(Request::Notification(notification)));
            }
        })
    }
}

impl fmt::Debug for CallReporter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("CallReporter")
    }
}

#[derive(Default)]
struct ProgressRateLimit {
    admitted: u32,
    last: Option<Instant>,
}

impl ProgressRateLimit {
    fn admit(&mut self) -> bool {
        let interval = Duration::from_millis(PROGRESS_INTERVAL_MS);
        let is_early = self.last.is_some_and(|last| last.elapsed() < interval);
        if self.admitted >= PROGRESS_BURST && is_early {
            return false;
        }
        self.admitted += 1;
        self.last = Some(Instant::now());
        true
    }
}
