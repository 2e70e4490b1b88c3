//! Pause and resume.

use super::decide::{DecideResult, Decision};
use super::event::Event;
use super::lost::RESTARTED;
use super::parts::{PauseReason, Resolved, Restored};
use super::state::{Live, RunStatus};
use super::{Failure, FailureKind, Millis};
use crate::limits::RESTORED_CALLS;
use crate::plan::{Kind, RetryPolicy};

impl Decision<'_> {
    /// Pauses the run: no further steps start. Calls in flight continue, and their results count.
    pub(super) fn pause(&mut self, by: Box<str>, agent: bool) {
        let reason = if agent { PauseReason::RequestedByAgent } else { PauseReason::Requested };
        let by_person = !agent && self.run.paused == Some(PauseReason::RequestedByAgent);
        if !self.run.is_held() || by_person {
            self.emit(Event::RunPaused { reason, by: Some(by) });
        }
    }

    /// Interrupts a run whose database was restored, once per restore. Names the calls that may have been executed since.
    pub(super) fn interrupt_restored(&mut self, incarnation: u64, backup_at: Millis) {
        if self.run.restored == Some(incarnation) {
            return;
        }
        let is_call = |live: &Live| matches!(self.plan.step(live.step).kind, Kind::Call(_));
        let calls = self.run.live.values().filter(|live| is_call(live));
        let mut may_have_run: Vec<Box<str>> = calls.map(|live| (*live.path).into()).collect();
        let more = may_have_run.len().saturating_sub(RESTORED_CALLS);
        may_have_run.truncate(RESTORED_CALLS);
        let restored = Restored { incarnation, backup_at, may_have_run, more };
        self.emit(Event::RunInterrupted { restored: Some(Box::new(restored)) });
    }

    /// Resumes a paused or interrupted run.
    pub(super) fn resume(&mut self, by: &str, force: &[Box<str>]) -> DecideResult {
        let interrupted = self.run.status == RunStatus::Interrupted;
        if !interrupted && !self.run.is_held() {
            return Ok(());
        }
        self.emit(Event::RunResumed { by: Some(by.into()) });
        if interrupted {
            self.recover_calls(by, force)?;
        }
        Ok(())
    }

    /// Treats the calls that were in flight when the engine stopped as lost, and repeats those in `force`.
    fn recover_calls(&mut self, by: &str, force: &[Box<str>]) -> DecideResult {
        let calls: Vec<_> = self.run.calls().map(|(n, live)| (n, live.attempt, live.path.clone())).collect();
        for (n, attempt, path) in calls {
            let error = Failure::new(FailureKind::Lost, "the engine stopped while the call was in flight");
            if force.iter().any(|forced| **forced == *path) {
                if let Some(step) = self.run.step_ref(n) {
                    let (how, by) = (Resolved::Retry, by.into());
                    self.emit(Event::UncertaintyResolved { step, how, by, provenance: None });
                }
                self.schedule_retry(n, error, &RetryPolicy::immediate())?;
            } else {
                self.call_ended(n, attempt, Err(error.code(RESTARTED)))?;
            }
        }
        Ok(())
    }
}
