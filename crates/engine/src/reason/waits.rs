//! The waits of a run: from its open approvals, and from the last events of its log. Pure.

use std::collections::BTreeMap;

use steprail_core::plan::{EscalationLevel, GateRules};
use steprail_core::run::{
    ApprovalKind, Event, Failure, FailureKind, Millis, PauseReason, PolicyRule, RunStatus, Started,
    StepStatus,
};
use steprail_core::spec::step::KindName;
use steprail_core::steps::OnTimeout;
use steprail_store::{Approval, Freeze, RunId, RunRow, StepRow, StoredEvent, UnknownCall};

use super::sentence::quoted;
use super::{NextStep, ReasonKind, RunReason};

/// What is known about a run.
pub(super) struct Facts<'a> {
    pub row: &'a RunRow,
    /// Open approvals of the run and of its sub-workflows.
    pub approvals: &'a [Approval],
    /// Calls with unknown outcomes of the run and of its sub-workflows.
    pub unknown_calls: &'a [UnknownCall],
    pub tail: &'a Tail,
    /// The waits of sub-workflows that have neither.
    pub children: Vec<RunReason>,
    pub freeze: Option<&'a Freeze>,
    pub damage: Option<String>,
    pub now: Millis,
}

/// What the last events of a run say.
#[derive(Default)]
pub(super) struct Tail {
    waits: BTreeMap<u32, Wait>,
    uncertain_since: BTreeMap<String, Millis>,
    /// The runs of sub-workflows that a step waits for.
    pub children: Vec<RunId>,
    paused: Option<(Option<Box<str>>, Millis)>,
    interrupted: Option<Millis>,
    denied: Option<RunReason>,
    cancelled: Option<(Option<Box<str>>, Box<str>)>,
}

/// A step that waits, and whether for the run of a sub-workflow.
struct Wait {
    reason: RunReason,
    child: Option<RunId>,
}

impl Tail {
    pub(super) fn of(events: &[StoredEvent]) -> Self {
        let mut tail = Self::default();
        events.iter().for_each(|stored| tail.add(stored));
        tail.children = tail.waits.values().filter_map(|wait| wait.child).collect();
        tail
    }

    /// Whether no step waits, and the run is not paused, as far as the events say.
    pub(super) fn has_no_waits(&self) -> bool {
        self.waits.is_empty() && self.paused.is_none()
    }

    /// Adds since when calls of a sub-workflow have an unknown outcome.
    pub(super) fn add_uncertain(&mut self, below: Self) {
        self.uncertain_since.extend(below.uncertain_since);
    }

    /// Adds the waits of steps whose events are further back.
    pub(super) fn add_steps(&mut self, steps: &[StepRow]) {
        let waits = steps.iter().filter_map(|step| Some((step.n, wait_of_row(step)?)));
        self.waits.extend(waits.map(|(n, reason)| (n, Wait { reason, child: None })));
    }

    fn add(&mut self, StoredEvent { event, at, .. }: &StoredEvent) {
        let at = *at;
        match event {
            Event::RunPaused { reason: PauseReason::Requested, by } => self.paused = Some((by.clone(), at)),
            Event::RunResumed { .. } => (self.paused, self.interrupted) = (None, None),
            Event::RunInterrupted { .. } => self.interrupted = Some(at),
            Event::RunCancelling { by, reason } | Event::RunCancelled { by, reason } => {
                self.cancelled = Some((by.clone(), reason.clone()));
            }
            Event::ApprovalDenied { step, by, reason, .. } => {
                self.denied = Some(RunReason {
                    step: Some(step.path.to_string()),
                    by: by.as_deref().map(str::to_owned),
                    since: Some(at),
                    // The default reason says nothing more.
                    detail: Some(reason.to_string()).filter(|reason| reason != "denied"),
                    ..RunReason::new(ReasonKind::Denied)
                });
            }
            _ => {}
        }
        let Some(step) = event.step() else { return };
        if let Event::StepUncertain { .. } = event {
            self.uncertain_since.insert(step.path.to_string(), at);
        }
        self.waits.remove(&step.n);
        if let Some((reason, child)) = wait_of(event) {
            let reason = RunReason { step: Some(step.path.to_string()), since: Some(at), ..reason };
            self.waits.insert(step.n, Wait { reason, child });
        }
    }
}

/// The wait of a step whose events are not at the end of the log.
fn wait_of_row(step: &StepRow) -> Option<RunReason> {
    let kind = match (step.status, step.kind) {
        (StepStatus::Ready, _) => ReasonKind::Slot,
        (StepStatus::Pending, _) => ReasonKind::Retry,
        (StepStatus::Waiting, KindName::Sleep) => ReasonKind::Time,
        (StepStatus::Waiting, KindName::Wait) => ReasonKind::Event,
        (StepStatus::Waiting, KindName::Workflow) => ReasonKind::Workflow,
        (StepStatus::Waiting, KindName::Tool | KindName::ToolRemote) => match &step.error {
            Some(error) => server_kind(error),
            None => ReasonKind::IdempotencyKey,
        },
        _ => return None,
    };
    let due = step.ready_at.filter(|_| kind == ReasonKind::Retry);
    Some(RunReason {
        step: Some(step.path.clone()),
        since: step.started_at.or(step.ready_at).filter(|_| due.is_none()),
        detail: step.error.as_ref().map(|error| error.message.to_string()),
        next: due.map(|due| NextStep { what: "the next attempt starts".to_owned(), at: Some(due) }),
        ..RunReason::new(kind)
    })
}

/// The wait that begins with an event, and the run of a sub-workflow.
fn wait_of(event: &Event) -> Option<(RunReason, Option<RunId>)> {
    let next = |what: &str, at: Option<Millis>| Some(NextStep { what: what.to_owned(), at });
    let reason = match event {
        Event::StepReady { .. } => {
            RunReason { next: next("starts when one is free", None), ..RunReason::new(ReasonKind::Slot) }
        }
        Event::StepStarted { what, until, .. } => return started(what, *until),
        Event::RetryScheduled { error, due, .. } => RunReason {
            detail: Some(error.message.to_string()),
            next: next("the next attempt starts", Some(*due)),
            ..RunReason::new(ReasonKind::Retry)
        },
        Event::ServerAwaited { error, due, until, .. } => {
            let next = match (due, until) {
                (Some(due), _) => next("is tried again", Some(*due)),
                (None, Some(until)) => {
                    next("continues when the server is available, and fails", Some(*until))
                }
                (None, None) => next("continues when the server is available", None),
            };
            RunReason { detail: Some(error.message.to_string()), next, ..RunReason::new(server_kind(error)) }
        }
        Event::KeyAwaited { .. } => RunReason::new(ReasonKind::IdempotencyKey),
        _ => return None,
    };
    Some((reason, None))
}

fn started(what: &Started, until: Option<Millis>) -> Option<(RunReason, Option<RunId>)> {
    let at = |what: &str, at: Option<Millis>| at.map(|at| NextStep { what: what.to_owned(), at: Some(at) });
    match what {
        Started::Sleep { due } => {
            Some((RunReason { next: at("continues", Some(*due)), ..RunReason::new(ReasonKind::Time) }, None))
        }
        Started::Wait { event, .. } => {
            let detail = Some(event.to_string());
            Some((
                RunReason { detail, next: at("times out", until), ..RunReason::new(ReasonKind::Event) },
                None,
            ))
        }
        Started::Workflow { run, .. } => {
            let reason = RunReason { next: at("times out", until), ..RunReason::new(ReasonKind::Workflow) };
            Some((reason, run.parse().ok()))
        }
        _ => None,
    }
}

fn server_kind(error: &Failure) -> ReasonKind {
    if error.kind == FailureKind::Limit { ReasonKind::Limit } else { ReasonKind::Server }
}

impl Facts<'_> {
    /// The reason of the run; `None` if it works or has completed.
    pub(super) fn reason(self) -> Option<RunReason> {
        if let Some(damage) = self.damage {
            return Some(RunReason { detail: Some(damage), ..RunReason::new(ReasonKind::Damaged) });
        }
        match self.row.status {
            RunStatus::Completed => None,
            RunStatus::Failed => Some(self.failed()),
            RunStatus::Cancelled => Some(self.cancelled()),
            RunStatus::Interrupted => Some(RunReason {
                since: self.tail.interrupted,
                next: Some(NextStep { what: "continues when it is resumed".to_owned(), at: None }),
                ..RunReason::new(ReasonKind::Interrupted)
            }),
            RunStatus::Pending | RunStatus::Running | RunStatus::Paused => self.waiting(),
        }
    }

    fn failed(&self) -> RunReason {
        let error = self.row.error.as_ref();
        let is_denied = error.is_some_and(|error| error.code.as_deref() == Some("denied"));
        if let Some(denied) = self.tail.denied.as_ref().filter(|_| is_denied) {
            return denied.clone();
        }
        let detail = error.map(ToString::to_string);
        RunReason { since: self.row.completed_at, detail, ..RunReason::new(ReasonKind::Failed) }
    }

    fn cancelled(&self) -> RunReason {
        let (by, reason) = self.tail.cancelled.clone().unwrap_or_default();
        if let Some(denied) = self.tail.denied.as_ref().filter(|_| &*reason == "denied") {
            return denied.clone();
        }
        RunReason {
            by: by.map(Into::into),
            since: self.row.completed_at,
            detail: Some(reason.into()).filter(|reason: &String| !reason.is_empty()),
            ..RunReason::new(ReasonKind::Cancelled)
        }
    }

    /// The first wait, those that need a person first, and the number of the others.
    fn waiting(self) -> Option<RunReason> {
        let paused = |by: Option<&str>, since: Option<Millis>| RunReason {
            by: by.map(str::to_owned),
            since,
            next: Some(NextStep { what: "continues when it is resumed".to_owned(), at: None }),
            ..RunReason::new(ReasonKind::Paused)
        };
        if let Some((by, since)) = &self.tail.paused {
            return Some(paused(by.as_deref(), Some(*since)));
        }
        let has_waits_below = !self.children.is_empty()
            || self.approvals.iter().any(|open| open.run_id != self.row.run_id)
            || self.unknown_calls.iter().any(|call| call.run_id != self.row.run_id);
        let approvals = self.approvals.iter().map(|open| self.approval(open));
        let unknown_calls = self.unknown_calls.iter().map(|call| self.unknown_call(call));
        // A step that waits for a sub-workflow says less than the wait of the sub-workflow.
        let own = self.tail.waits.values().filter(|wait| wait.child.is_none() || !has_waits_below);
        let own = own.map(|wait| self.with_freeze(wait.reason.clone()));
        let mut waits: Vec<RunReason> =
            approvals.chain(unknown_calls).chain(own).chain(self.children.clone()).collect();
        // A slot is free soon.
        waits.sort_by_key(|wait| wait.kind == ReasonKind::Slot);
        let more = waits.len().saturating_sub(1);
        match waits.into_iter().next() {
            Some(first) => Some(RunReason { more: first.more + more, ..first }),
            None => (self.row.status == RunStatus::Paused).then(|| paused(None, None)),
        }
    }

    fn with_freeze(&self, reason: RunReason) -> RunReason {
        match self.freeze.filter(|_| reason.kind == ReasonKind::Slot) {
            Some(Freeze { by, reason: why, .. }) => RunReason {
                kind: ReasonKind::Freeze,
                by: Some(by.clone()),
                detail: why.clone(),
                next: Some(NextStep { what: "continues when the freeze is lifted".to_owned(), at: None }),
                ..reason
            },
            None => reason,
        }
    }

    fn below(&self, run: RunId) -> Option<RunId> {
        Some(run).filter(|run| *run != self.row.run_id)
    }

    fn unknown_call(&self, call: &UnknownCall) -> RunReason {
        RunReason {
            step: Some(call.shown.clone()),
            run_id: self.below(call.run_id),
            since: self.tail.uncertain_since.get(&call.path).copied(),
            detail: call.error.as_ref().map(|error| error.message.to_string()),
            next: Some(NextStep {
                what: "continues when a person states what happened".to_owned(),
                at: None,
            }),
            ..RunReason::new(ReasonKind::UnknownOutcome)
        }
    }

    fn approval(&self, open: &Approval) -> RunReason {
        let asked = asked(open);
        let kind = if asked.kind == ApprovalKind::Input { ReasonKind::Input } else { ReasonKind::Approval };
        let level = reached_level(&asked.rules, open, self.now);
        let approvers = asked.rules.approvers_at(level).map(|name| plain(name).to_owned());
        RunReason {
            step: Some(open.path.clone()),
            run_id: self.below(open.run_id),
            whom: approvers.filter(|name| !open.signed.contains(name)).collect(),
            since: Some(open.requested_at),
            detail: detail_of_gate(&asked, open),
            next: next_of_gate(&asked.rules, open, self.now),
            ..RunReason::new(kind)
        }
    }
}

/// A user without the type, as decisions name users.
fn plain(name: &str) -> &str {
    name.strip_prefix("user:").unwrap_or(name)
}

/// The parts of a subject that say who decides and what happens otherwise.
#[derive(Default, serde::Deserialize)]
struct Asked {
    #[serde(default)]
    kind: ApprovalKind,
    #[serde(default)]
    rules: GateRules,
    #[serde(default)]
    policy: Option<PolicyRule>,
}

fn asked(open: &Approval) -> Asked {
    let subject = open.subject.as_ref().and_then(|subject| serde_json::from_str(subject.get()).ok());
    subject.unwrap_or_default()
}

/// The approvals so far, if several are needed, and the rule that requires them.
fn detail_of_gate(asked: &Asked, open: &Approval) -> Option<String> {
    let (given, quorum) = (open.signed.len(), asked.rules.quorum);
    let quorum = (quorum > 1).then(|| format!("{given} of {quorum} approvals so far"));
    let rule = asked.policy.as_ref().map(|policy| format!("required by the rule {}", policy.rule));
    let parts: Vec<String> = quorum.into_iter().chain(rule).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The number of levels whose time has passed. A gate without approvers is open to everybody at each level.
fn reached_level(rules: &GateRules, open: &Approval, now: Millis) -> u32 {
    let is_reached =
        |level: &&EscalationLevel| open.requested_at.saturating_add_unsigned(level.after_ms) <= now;
    let count = rules.escalate.iter().take_while(is_reached).count();
    if rules.approvers.is_empty() { 0 } else { u32::try_from(count).unwrap_or(u32::MAX) }
}

/// The next escalation, or the end of the request, whichever is first.
fn next_of_gate(rules: &GateRules, open: &Approval, now: Millis) -> Option<NextStep> {
    let escalation = rules.escalate.iter().find_map(|level| {
        let at = open.requested_at.saturating_add_unsigned(level.after_ms);
        let notify: Vec<String> = level.notify.iter().map(|name| quoted(plain(name))).collect();
        let what = format!("escalates to {}", notify.join(", "));
        (at > now).then_some(NextStep { what, at: Some(at) })
    });
    let end = open.expires_at.map(|at| {
        let what = match (rules.on_timeout, &rules.on_timeout_goto) {
            (OnTimeout::Escalate, _) => "escalates".to_owned(),
            (OnTimeout::Fail, _) => "fails".to_owned(),
            (OnTimeout::Deny, Some(step)) => format!("continues at {step}"),
            (OnTimeout::Deny, None) => "expires".to_owned(),
        };
        NextStep { what, at: Some(at) }
    });
    escalation.into_iter().chain(end).min_by_key(|next| next.at)
}
