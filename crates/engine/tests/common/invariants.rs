//! Invariants of a log: rules about calls, timers and gates.

use std::collections::{BTreeMap, BTreeSet};

use steprail_core::plan::{GateRules, Kind, Plan};
use steprail_core::run::{Event, FailureKind, Millis, PauseReason, Resolved, Started};
use steprail_core::spec::policy::{Effects, OnUncertain};

use super::NoTools;
use steprail_engine::ToolCaller;

/// Returns all violations in a log, as text. Events have the times at which they were written.
pub(crate) fn violations(plan: &Plan, tools: &NoTools, events: &[(Millis, Event)]) -> Vec<String> {
    let mut checker = Checker {
        plan,
        tools,
        steps: BTreeMap::new(),
        ended: false,
        interrupted: false,
        held: false,
        violations: Vec::new(),
    };
    for (at, event) in events {
        checker.check(*at, event);
    }
    checker.violations
}

struct Checker<'l> {
    plan: &'l Plan,
    tools: &'l NoTools,
    steps: BTreeMap<u32, Step>,
    ended: bool,
    interrupted: bool,
    held: bool,
    violations: Vec<String>,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the step")]
struct Step {
    id: String,
    key: Option<String>,
    due: Option<Millis>,
    until: Option<Millis>,
    resolved: bool,
    approved: bool,
    gated: bool,
    verified: bool,
    ended: bool,
    uncertain: bool,
    blocks: u32,
    blocks_ended: u32,
    attempts: BTreeSet<u32>,
    /// Whether the attempt may start again: its tool requested input or was created.
    reopened: bool,
    gate: Option<Gate>,
}

/// An open gate, as the log has it.
struct Gate {
    rules: GateRules,
    level: u32,
    reminders: u32,
    escalate: Option<Millis>,
    remind: Option<Millis>,
}

impl Gate {
    /// The gate after a request.
    fn requested(event: &Event) -> Option<Self> {
        let Event::ApprovalRequested { subject, level, reminders, escalate, remind, .. } = event else {
            return None;
        };
        let rules = subject.as_ref()?.rules.clone();
        Some(Self { rules, level: *level, reminders: *reminders, escalate: *escalate, remind: *remind })
    }

    /// Applies an event of the gate. Returns what is wrong with it.
    fn apply(&mut self, at: Millis, event: &Event) -> Option<&'static str> {
        let is_early = |due: Option<Millis>| due.is_none_or(|due| at < due);
        match event {
            Event::ApprovalReminded { count, level, remind, .. } => {
                let wrong = is_early(self.remind) || *count != self.reminders + 1 || *level != self.level;
                (self.reminders, self.remind) = (*count, *remind);
                wrong.then_some("reminded too early or too often")
            }
            Event::ApprovalEscalated { level, escalate, .. } => {
                let repeats = *level as usize >= self.rules.escalate.len();
                let wrong = *level != self.level || (is_early(self.escalate) && !repeats);
                (self.level, self.escalate) = (level + 1, *escalate);
                wrong.then_some("escalated too early")
            }
            Event::ApprovalSigned { by, provenance, .. } | Event::ApprovalGranted { by, provenance, .. } => {
                let groups = provenance.iter().flat_map(|provenance| provenance.groups.clone());
                let admitted = self.rules.admits(self.level, by, &groups.collect::<Vec<_>>());
                (!admitted).then_some("approved by someone who may not decide at its level")
            }
            _ => None,
        }
    }
}

impl Checker<'_> {
    fn check(&mut self, at: Millis, event: &Event) {
        if self.ended && !matches!(event, Event::LateResult { .. }) {
            self.violations.push(format!("{} after the end", event.name()));
        }
        self.ended |= matches!(
            event,
            Event::RunCompleted { .. } | Event::RunFailed { .. } | Event::RunCancelled { .. }
        );
        match event {
            Event::RunInterrupted { .. } => self.interrupted = true,
            Event::RunPaused { reason: PauseReason::Requested | PauseReason::RequestedByAgent, .. } => {
                self.held = true;
            }
            Event::RunResumed { .. } => self.held = false,
            _ => self.check_step(at, event),
        }
    }

    fn check_step(&mut self, at: Millis, event: &Event) {
        let Some(reference) = event.step() else { return };
        let path = reference.path.clone();
        let step = self.steps.entry(reference.n).or_default();
        if step.ended && !matches!(event, Event::LateResult { .. } | Event::BranchTaken { .. }) {
            self.violations.push(format!("{path}: {} after its end", event.name()));
        }
        step.ended |= event.ends_step();
        let wrong = match (event, &mut step.gate) {
            (_, Some(gate)) => gate.apply(at, event),
            (Event::ApprovalReminded { .. } | Event::ApprovalEscalated { .. }, None) => {
                Some("has no request")
            }
            _ => None,
        };
        self.violations.extend(wrong.map(|wrong| format!("{path}: {}: {wrong}", event.name())));
        match event {
            Event::ApprovalRequested { .. } => step.gate = Gate::requested(event),
            Event::ApprovalGranted { .. } | Event::ApprovalDenied { .. } => step.gate = None,
            _ => {}
        }
        match event {
            Event::StepReady { place, .. } | Event::KeyAwaited { place, .. } => {
                step.id = place.id.to_string();
            }
            Event::ServerAwaited { place, due, .. } => {
                step.id = place.id.to_string();
                step.due = *due;
                step.reopened = true;
            }
            Event::StepStarted { place, what, until, .. } => {
                step.id = place.id.to_string();
                step.until = *until;
                if step.due.take().is_some_and(|due| at < due) {
                    self.violations.push(format!("{path}: attempt {} started early", reference.attempt));
                }
                match what {
                    Started::Foreach { items: blocks, .. } | Started::Parallel { branches: blocks } => {
                        step.blocks = *blocks;
                    }
                    Started::Branch {} => step.blocks = 1,
                    Started::Call { key, .. } => self.called(reference.n, reference.attempt, &path, key),
                    Started::Sleep { due } => step.due = Some(*due),
                    _ => {}
                }
            }
            Event::StepCompleted { from: Some(from), .. } if &**from == "late answer" && !step.uncertain => {
                self.violations
                    .push(format!("{path}: completed by a late result although the outcome was known"));
            }
            Event::BlockCompleted { .. } => step.blocks_ended += 1,
            Event::StepCompleted { from: None, .. } if step.blocks_ended < step.blocks => {
                self.violations.push(format!("{path}: completed before its blocks"));
            }
            Event::StepCompleted { from: None, .. } if step.due.take().is_some_and(|due| at < due) => {
                self.violations.push(format!("{path}: slept too short"));
            }
            Event::RetryScheduled { error, due, .. } => {
                step.due = Some(*due);
                let excused = step.resolved || step.verified || self.interrupted;
                step.resolved = false;
                step.verified = false;
                // A call that its server did not accept has a known outcome, also if its time is up.
                // An approval that expires comes before the call.
                let unsent = &*error.message == "the step timed out before its call was sent"
                    || !step.attempts.contains(&reference.attempt);
                let lost = matches!(error.kind, FailureKind::Lost | FailureKind::Timeout) && !unsent;
                if lost && !excused && !self.may_repeat(reference.n, error.kind) {
                    self.violations
                        .push(format!("{path}: a call with an unknown outcome is repeated without consent"));
                }
            }
            Event::StepFailed { error, .. } => {
                let lost = error.kind == FailureKind::Lost;
                if lost && error.step.is_none() && !step.resolved && !self.may_fail(reference.n) {
                    self.violations.push(format!("{path}: an unknown outcome is treated as a failure"));
                }
            }
            Event::StepUncertain { error, .. } => {
                step.uncertain = true;
                let known = !matches!(error.kind, FailureKind::Lost | FailureKind::Timeout);
                if known && !step.verified {
                    self.violations.push(format!("{path}: a known failure is treated as an unknown outcome"));
                }
            }
            Event::UncertaintyResolved { how, .. } => {
                step.resolved = *how != Resolved::Happened;
                step.uncertain = false;
            }
            Event::VerifyStarted { .. } => step.verified = true,
            Event::ToolCreated { .. } => step.reopened = true,
            Event::ApprovalRequested { state: Some(_), .. } => {
                step.reopened = true;
                step.until = None;
            }
            Event::ApprovalRequested { until, .. } => {
                step.gated = true;
                step.until = *until;
                step.approved = false;
            }
            Event::ApprovalGranted { .. } => {
                step.approved = true;
                if step.until.is_some_and(|until| at >= until) && self.closes_on_timeout(reference.n) {
                    self.violations.push(format!("{path}: approved after the request expired"));
                }
            }
            Event::ApprovalDenied { by: None, .. } if step.until.is_some_and(|until| at < until) => {
                self.violations.push(format!("{path}: expired early"));
            }
            _ => {}
        }
    }

    fn called(&mut self, n: u32, attempt: u32, path: &str, key: &str) {
        let needs_human = self.plan_step(n).is_some_and(|step| step.needs_human.is_some());
        if self.held {
            self.violations.push(format!("{path}: called while the run is paused"));
        }
        let Some(step) = self.steps.get_mut(&n) else { return };
        let reopened = std::mem::take(&mut step.reopened);
        if !step.attempts.insert(attempt) && !reopened {
            self.violations.push(format!("{path}: attempt {attempt} started twice"));
        }
        if step.key.as_deref().is_some_and(|before| before != key) {
            self.violations.push(format!("{path}: attempts have different idempotency keys"));
        }
        step.key = Some(key.to_owned());
        if needs_human && !(step.gated && step.approved) {
            self.violations.push(format!("{path}: called without approval"));
        }
        let same: Vec<u32> = self
            .steps
            .iter()
            .filter(|(other, step)| **other != n && step.key.as_deref() == Some(key))
            .map(|(other, _)| *other)
            .collect();
        let own_key = |n: u32| {
            self.plan_step(n)
                .is_some_and(|step| matches!(&step.kind, Kind::Call(call) if call.idempotency.is_none()))
        };
        if own_key(n) && same.iter().any(|other| own_key(*other)) {
            self.violations.push(format!("{path}: has the idempotency key of another step"));
        }
    }

    fn plan_step(&self, n: u32) -> Option<&steprail_core::plan::Step> {
        let id = &self.steps.get(&n)?.id;
        self.plan.find(id).map(|step| self.plan.step(step))
    }

    fn closes_on_timeout(&self, n: u32) -> bool {
        match self.plan_step(n).map(|step| &step.kind) {
            Some(Kind::Approve(approve)) => approve.gate.rules.closes_on_timeout(),
            _ => true,
        }
    }

    fn is_repeatable(&self, n: u32) -> bool {
        let Some(Kind::Call(call)) = self.plan_step(n).map(|step| &step.kind) else { return true };
        let annotations = self.tools.annotations(&call.full_name());
        let annotated = annotations.read_only == Some(true) || annotations.idempotent == Some(true);
        let by_policy = match call.effects {
            Some(Effects::Read) => annotated || annotations.read_only.is_none(),
            Some(Effects::Idempotent) => annotated || annotations.idempotent.is_none(),
            Some(Effects::Once) => false,
            None => annotated,
        };
        by_policy || call.idempotency_arg.is_some()
    }

    fn may_repeat(&self, n: u32, kind: FailureKind) -> bool {
        let Some(step) = self.plan_step(n) else { return false };
        let Kind::Call(call) = &step.kind else { return true };
        let kinds = step.retry.as_ref().and_then(|retry| retry.retry_on.as_deref()).unwrap_or_default();
        let consent = kinds.contains(&kind) || kinds.contains(&FailureKind::Lost);
        self.is_repeatable(n) || consent || call.on_uncertain == Some(OnUncertain::Retry)
    }

    fn may_fail(&self, n: u32) -> bool {
        let Some(step) = self.plan_step(n) else { return true };
        let Kind::Call(call) = &step.kind else { return true };
        let named = step
            .retry
            .as_ref()
            .and_then(|retry| retry.retry_on.as_ref())
            .is_some_and(|kinds| kinds.contains(&FailureKind::Lost));
        self.is_repeatable(n) || named || call.on_uncertain == Some(OnUncertain::Fail)
    }
}
