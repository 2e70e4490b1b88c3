//! Durable timers that fire. A timer that no longer fits the phase of its execution does nothing.

use super::decide::{DecideResult, Decision};
use super::phase::Phase;
use super::{Failure, Payload, TimerKind};

impl Decision<'_> {
    pub(super) fn timer_fired(&mut self, n: u32, timer: TimerKind) -> DecideResult {
        let Some(phase) = self.run.live.get(&n).map(|live| &live.phase) else { return Ok(()) };
        let now = self.now();
        match timer {
            TimerKind::Timeout => return self.timed_out(n),
            TimerKind::Retry => {
                if let Phase::Backoff { due } | Phase::ServerWait { due: Some(due) } = phase
                    && *due <= now
                {
                    return self.begin(n);
                }
            }
            TimerKind::Sleep => {
                if let Phase::Sleeping { due } = phase
                    && *due <= now
                {
                    return self.complete(n, Payload::default(), None);
                }
            }
            TimerKind::Grace => {
                if *phase == Phase::Stopping {
                    return self.abandon(n);
                }
            }
            TimerKind::Escalate => self.gate_waits(n),
        }
        Ok(())
    }

    fn timed_out(&mut self, n: u32) -> DecideResult {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        match &live.phase {
            Phase::Calling => {
                self.time_out_call(n);
                Ok(())
            }
            Phase::Verifying => self.probe_ended(n, Err(Failure::timeout("the probe timed out"))),
            Phase::Creating => self.creation_ended(n, Err(Failure::timeout("the request timed out"))),
            Phase::ServerWait { .. } => self.server_wait_expired(n),
            Phase::Gate { .. } => self.gate_timed_out(n),
            Phase::Child { .. } => self.fail_attempt(n, Failure::timeout("the workflow timed out")),
            Phase::Waiting { .. } => self.fail(n, Failure::timeout("no matching signal arrived in time")),
            Phase::Blocks(_) => {
                let message = format!("the steps of `{}` did not end in time", step.id);
                self.fail(n, Failure::timeout(&message))
            }
            Phase::Ready
            | Phase::Stopping
            | Phase::Backoff { .. }
            | Phase::Uncertain
            | Phase::KeyWait
            | Phase::Sleeping { .. }
            | Phase::Passing => Ok(()),
        }
    }
}
