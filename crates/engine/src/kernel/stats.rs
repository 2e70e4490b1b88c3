//! Counters of committed events, which the driver exports as metrics.

use steprail_core::expr::StepIx;
use steprail_core::plan::Plan;
use steprail_core::run::{AttemptOutcome, Changes, GateChange, TimerKind, ValueChange};

/// The kinds of steps.
pub(crate) const KINDS: [&str; 10] =
    ["tool", "foreach", "parallel", "branch", "approve", "sleep", "wait", "workflow", "let", "pass"];
/// The final statuses of runs.
pub(crate) const ENDS: [&str; 3] = ["completed", "failed", "cancelled"];
/// The outcomes of approvals.
pub(crate) const DECISIONS: [&str; 3] = ["approved", "denied", "expired"];
/// The kinds of timers.
pub(crate) const TIMERS: [&str; 5] = ["timeout", "retry", "sleep", "grace", "escalate"];

/// Counts of committed events. The arrays have the order of the lists above.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitStats {
    pub(crate) events: u32,
    pub(crate) runs_started: u32,
    pub(crate) runs_ended: [u32; ENDS.len()],
    pub(crate) attempts: [[u32; AttemptOutcome::ALL.len()]; KINDS.len()],
    pub(crate) approvals_requested: u32,
    pub(crate) approvals_decided: [u32; DECISIONS.len()],
    pub(crate) timers: [u32; TIMERS.len()],
}

impl CommitStats {
    /// The number of events.
    pub fn events(&self) -> u32 {
        self.events
    }

    pub(super) fn record(&mut self, plan: &Plan, at: Option<StepIx>, changes: &Changes<'_>) {
        self.events += 1;
        let Changes { run, step, value } = changes;
        self.runs_started += u32::from(matches!(value, Some(ValueChange::RunInputs(_))));
        if let Some(end) = run.status.and_then(|status| place(&ENDS, status.name())) {
            self.runs_ended[end] += 1;
        }
        let Some(step) = step else { return };
        let kind = at.and_then(|at| place(&KINDS, plan.step(at).kind.name()));
        if let (Some(kind), Some(outcome)) = (kind, step.outcome()) {
            self.attempts[kind][outcome as usize] += 1;
        }
        match &step.gate {
            Some(GateChange::Requested(_)) => self.approvals_requested += 1,
            Some(GateChange::Decided(decision)) => {
                let decided = place(&DECISIONS, decision.outcome.into());
                decided.into_iter().for_each(|at| self.approvals_decided[at] += 1);
            }
            Some(GateChange::Signed { .. } | GateChange::Escalated { .. } | GateChange::Reminded { .. })
            | None => {}
        }
    }

    pub(super) fn timer(&mut self, kind: TimerKind) {
        if let Some(place) = place(&TIMERS, kind.name()) {
            self.timers[place] += 1;
        }
    }

    /// Adds other counts.
    pub(super) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.runs_started += other.runs_started;
        self.approvals_requested += other.approvals_requested;
        add(&mut self.runs_ended, &other.runs_ended);
        add(&mut self.approvals_decided, &other.approvals_decided);
        add(&mut self.timers, &other.timers);
        self.attempts.iter_mut().zip(&other.attempts).for_each(|(kind, other)| add(kind, other));
    }
}

fn add(counts: &mut [u32], others: &[u32]) {
    counts.iter_mut().zip(others).for_each(|(count, other)| *count += other);
}

fn place(words: &[&str], word: &str) -> Option<usize> {
    words.iter().position(|known| *known == word)
}
