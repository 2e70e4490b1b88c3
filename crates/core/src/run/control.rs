//! Cancel, pause and resume.

use super::decide::{Decided, Decision};
use super::event::Event;
use super::lost::RESTARTED;
use super::parts::{PauseReason, ScopeKey};
use super::state::RunStatus;
use super::{Failure, FailureKind};
use crate::plan::RetryPolicy;

impl Decision<'_> {
    /// Stops everything at once. Answers that come later are noted and change nothing.
    pub(super) fn cancel_run(&mut self, by: Option<Box<str>>, reason: Box<str>) {
        self.cancel_scope(ScopeKey::ROOT);
        self.cancel_scope(ScopeKey::FAILURE);
        self.emit(Event::RunCancelled { reason, by });
    }

    /// Holds back every step that would begin. Calls in flight go on, and what they give is kept.
    pub(super) fn pause(&mut self, by: Box<str>) {
        if !self.run.is_held() {
            self.emit(Event::RunPaused { reason: PauseReason::Requested, by: Some(by) });
        }
    }

    /// Lets a run go on that was paused, or that was interrupted by a restart.
    pub(super) fn resume(&mut self, by: Box<str>, force: &[Box<str>]) -> Decided {
        let interrupted = self.run.status == RunStatus::Interrupted;
        if !interrupted && !self.run.is_held() {
            return Ok(());
        }
        self.emit(Event::RunResumed { by: Some(by) });
        if interrupted {
            self.calls_were_lost(force)?;
        }
        Ok(())
    }

    /// The engine stopped while calls were in flight.
    fn calls_were_lost(&mut self, force: &[Box<str>]) -> Decided {
        let calls: Vec<_> = self.run.calls().map(|(n, live)| (n, live.attempt, live.path.clone())).collect();
        for (n, attempt, path) in calls {
            let error = Failure::new(FailureKind::Lost, "the engine stopped while the call was in flight");
            if force.iter().any(|forced| **forced == *path) {
                self.schedule_retry(n, error, &RetryPolicy::at_once())?;
            } else {
                self.call_ended(n, attempt, Err(error.code(RESTARTED)))?;
            }
        }
        Ok(())
    }
}
