//! A call that was not sent: its step waits for the server, and no attempt is spent.

use super::decide::{Decided, Decision, Entry};
use super::event::Event;
use super::state::Phase;
use super::{Failure, FailureKind, Millis};
use crate::limits::{REFUSED_DELAYS_MS, RETRY_AFTER_MS};
use crate::plan::Call;

impl Decision<'_> {
    /// The server of a step cannot take calls: the step begins when it can.
    pub(super) fn await_server(&mut self, at: &Entry, call: &Call, reason: &str) {
        let phase = self.run.live.get(&at.n()).map(|live| &live.phase);
        if phase != Some(&Phase::ServerWait { due: None }) {
            self.server_awaited(at, call, Failure::new(FailureKind::Transport, reason), None);
        }
    }

    /// The server refused a call, or could not be reached: it is tried again after a delay that grows.
    pub(super) fn refused_by_server(&mut self, n: u32, error: Failure) -> Decided {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        let crate::plan::Kind::Call(call) = &step.kind else { return self.fail_attempt(n, error) };
        let at = Entry { step_ref: live.step_ref(n), scope: live.scope, step: live.step };
        let backoff = usize::try_from(live.refusals).unwrap_or(usize::MAX).min(REFUSED_DELAYS_MS.len() - 1);
        let delay = error.retry_after_ms.unwrap_or(REFUSED_DELAYS_MS[backoff]).min(RETRY_AFTER_MS);
        let due = self.now().saturating_add_unsigned(delay);
        self.server_awaited(&at, call, error, Some(due));
        Ok(())
    }

    fn server_awaited(&mut self, at: &Entry, call: &Call, error: Failure, due: Option<Millis>) {
        let now = self.now();
        let since = self.run.live.get(&at.n()).and_then(|live| live.wait_until);
        let until = since.or_else(|| call.server_wait_ms.map(|wait| now.saturating_add_unsigned(wait)));
        let (step, place) = (at.step_ref.clone(), self.place(at.scope, at.step));
        self.emit(Event::ServerAwaited { step, place, error, due, until });
    }

    /// `server_wait` is over.
    pub(super) fn server_wait_over(&mut self, n: u32) -> Decided {
        let message = "the server could not take the call within `server_wait`; nothing was sent";
        self.fail_attempt(n, Failure::new(FailureKind::Transport, message).code("server_wait"))
    }
}
