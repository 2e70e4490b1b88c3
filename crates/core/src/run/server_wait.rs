//! Calls that were not sent. The step waits for its server, and no attempt is spent.

use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::phase::Phase;
use super::{Failure, FailureKind, Millis};
use crate::limits::{REFUSED_DELAYS_MS, RETRY_AFTER_MS};
use crate::plan::Call;

impl Decision<'_> {
    /// Makes a step wait until its server accepts calls.
    pub(super) fn wait_for_server(&mut self, attempt: &Attempt, call: &Call, reason: &str) {
        let phase = self.run.live.get(&attempt.n()).map(|live| &live.phase);
        if phase != Some(&Phase::ServerWait { due: None }) {
            self.emit_server_awaited(attempt, call, Failure::new(FailureKind::Transport, reason), None);
        }
    }

    /// Retries a call that its server rejected or that could not be sent, with backoff.
    pub(super) fn retry_unsent_call(&mut self, n: u32, error: Failure) -> DecideResult {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        let crate::plan::Kind::Call(call) = &step.kind else { return self.fail_attempt(n, error) };
        let attempt = Attempt { step_ref: live.step_ref(n), scope: live.scope, step: live.step };
        let backoff = usize::try_from(live.refusals).unwrap_or(usize::MAX).min(REFUSED_DELAYS_MS.len() - 1);
        let delay = error.retry_after_ms.unwrap_or(REFUSED_DELAYS_MS[backoff]).min(RETRY_AFTER_MS);
        let due = self.now().saturating_add_unsigned(delay);
        self.emit_server_awaited(&attempt, call, error, Some(due));
        Ok(())
    }

    fn emit_server_awaited(&mut self, attempt: &Attempt, call: &Call, error: Failure, due: Option<Millis>) {
        let now = self.now();
        let deadline = self.run.live.get(&attempt.n()).and_then(|live| live.wait_until);
        let until = deadline.or_else(|| call.server_wait_ms.map(|wait| now.saturating_add_unsigned(wait)));
        let (step, place) = (attempt.step_ref.clone(), self.step_info(attempt.scope, attempt.step));
        self.emit(Event::ServerAwaited { step, place, error, due, until });
    }

    /// Fails the attempt after `server_wait`.
    pub(super) fn server_wait_expired(&mut self, n: u32) -> DecideResult {
        let message = "the server did not accept the call within `server_wait`; nothing was sent";
        self.fail_attempt(n, Failure::new(FailureKind::Transport, message).code("server_wait"))
    }
}
