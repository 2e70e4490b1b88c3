//! What was committed, counted. The kernel only counts; the driver tells those who want to know.

use steprail_core::plan::Plan;
use steprail_core::run::{Event, TimerKind};

/// Kinds of steps, as they are counted.
pub(crate) const KINDS: [&str; 9] =
    ["tool", "foreach", "parallel", "branch", "approve", "sleep", "wait", "workflow", "pass"];
/// What becomes of an attempt of a step.
pub(crate) const OUTCOMES: [&str; 6] =
    ["completed", "failed", "retried", "skipped", "cancelled", "uncertain"];
/// How runs end.
pub(crate) const ENDS: [&str; 3] = ["completed", "failed", "cancelled"];
/// How questions to humans end.
pub(crate) const DECISIONS: [&str; 3] = ["approved", "denied", "expired"];
/// Kinds of timers.
pub(crate) const TIMERS: [&str; 5] = ["timeout", "retry", "sleep", "grace", "escalate"];

/// How often something happened, in the order of the lists above.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    pub(crate) events: u32,
    pub(crate) runs_started: u32,
    pub(crate) runs_ended: [u32; ENDS.len()],
    pub(crate) attempts: [[u32; OUTCOMES.len()]; KINDS.len()],
    pub(crate) approvals_requested: u32,
    pub(crate) approvals_decided: [u32; DECISIONS.len()],
    pub(crate) timers: [u32; TIMERS.len()],
}

impl Tally {
    pub(super) fn event(&mut self, plan: &Plan, event: &Event) {
        self.events += 1;
        match event {
            Event::RunStarted { .. } => self.runs_started += 1,
            Event::RunCompleted { .. } => self.runs_ended[0] += 1,
            Event::RunFailed { .. } => self.runs_ended[1] += 1,
            Event::RunCancelled { .. } => self.runs_ended[2] += 1,
            Event::StepCompleted { step, .. } => self.attempt(plan, &step.path, 0),
            Event::StepFailed { step, .. } => self.attempt(plan, &step.path, 1),
            Event::RetryScheduled { step, .. } => self.attempt(plan, &step.path, 2),
            Event::StepSkipped { step, .. } => self.attempt(plan, &step.path, 3),
            Event::StepCancelled { step, .. } => self.attempt(plan, &step.path, 4),
            Event::StepUncertain { step, .. } => self.attempt(plan, &step.path, 5),
            Event::ApprovalRequested { .. } => self.approvals_requested += 1,
            Event::ApprovalGranted { .. } => self.approvals_decided[0] += 1,
            Event::ApprovalDenied { by: Some(_), .. } => self.approvals_decided[1] += 1,
            Event::ApprovalDenied { by: None, .. } => self.approvals_decided[2] += 1,
            _ => {}
        }
    }

    fn attempt(&mut self, plan: &Plan, path: &str, outcome: usize) {
        // The last part of a path is the step's id, with a number if it ran before.
        let last = path.rsplit('.').next().unwrap_or(path);
        let id = last.split('#').next().unwrap_or(last);
        let kind = plan.find(id).and_then(|step| place(&KINDS, plan.step(step).kind.word()));
        if let Some(kind) = kind {
            self.attempts[kind][outcome] += 1;
        }
    }

    pub(super) fn timer(&mut self, kind: TimerKind) {
        if let Some(place) = place(&TIMERS, kind.word()) {
            self.timers[place] += 1;
        }
    }

    /// Both together.
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
