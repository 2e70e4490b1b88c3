//! The timers of a gate: reminders, escalations and the timeout.

use super::decide::{DecideResult, Decision};
use super::event::Event;
use super::phase::Phase;
use super::{Failure, Millis};
use crate::limits::REMINDERS;
use crate::plan::EscalationLevel;
use crate::steps::OnTimeout;

/// The reason of the end of a request that nobody decided in time.
const TIMEOUT: &str = "timeout";

impl Decision<'_> {
    pub(super) fn gate_timed_out(&mut self, n: u32) -> DecideResult {
        let Some(Phase::Gate { open, .. }) = self.run.live.get(&n).map(|live| &live.phase) else {
            return Ok(());
        };
        match open.rules.on_timeout {
            OnTimeout::Deny => self.denied(n, None, TIMEOUT),
            OnTimeout::Fail => self.expired(n),
            OnTimeout::Escalate => {
                self.escalate(n);
                Ok(())
            }
        }
    }

    /// Closes a gate that has expired, and fails its step.
    fn expired(&mut self, n: u32) -> DecideResult {
        let Some((live, _)) = self.live(n) else { return Ok(()) };
        let Phase::Gate { digest, .. } = &live.phase else { return Ok(()) };
        let (step, digest) = (live.step_ref(n), Some(*digest));
        let (by, provenance) = (None, None);
        self.emit(Event::ApprovalDenied { step, by, reason: TIMEOUT.into(), digest, provenance });
        self.fail_attempt(n, Failure::timeout("the approval request expired"))
    }

    /// Reminds and escalates, as far as it is due. Those who are reminded were asked before, so reminders come first.
    pub(super) fn gate_waits(&mut self, n: u32) {
        let is_due = |due: Option<Millis>, now| due.is_some_and(|due| due <= now);
        let now = self.now();
        let Some(Phase::Gate { until, open, .. }) = self.run.live.get(&n).map(|live| &live.phase) else {
            return;
        };
        // The timer of the timeout closes the gate.
        if is_due(*until, now) && open.rules.closes_on_timeout() {
            return;
        }
        let (reminds, escalates) = (is_due(open.remind, now), is_due(open.escalate, now));
        if reminds {
            self.remind(n);
        }
        if escalates {
            self.escalate(n);
        }
    }

    /// Reminds those who were asked so far. Reminders that were due while the engine was stopped are not made up for.
    fn remind(&mut self, n: u32) {
        let Some((live, _)) = self.live(n) else { return };
        let Phase::Gate { level, open, .. } = &live.phase else { return };
        let (step, level, escalate) = (live.step_ref(n), *level, open.escalate);
        let count = open.reminders.saturating_add(1);
        let interval = open.rules.remind_ms.filter(|_| count < REMINDERS);
        let remind = interval.map(|interval| self.after(interval));
        self.emit(Event::ApprovalReminded { step, count, level, remind, escalate });
    }

    /// Reaches the next escalation level and sets the timer of the one after.
    fn escalate(&mut self, n: u32) {
        let Some((live, _)) = self.live(n) else { return };
        let Phase::Gate { level, open, .. } = &live.phase else { return };
        let (at, level, remind) = (*level as usize, *level, open.remind);
        let levels = &open.rules.escalate;
        let Some(EscalationLevel { after_ms, notify, .. }) = levels.get(at).or(levels.last()) else { return };
        let next = levels.get(at + 1);
        let escalate = next.map(|later| self.after(later.after_ms.saturating_sub(*after_ms)));
        let (step, notify) = (live.step_ref(n), notify.clone());
        self.emit(Event::ApprovalEscalated { step, level, notify, escalate, remind });
    }
}
