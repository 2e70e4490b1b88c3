//! What each event changes, in one place. State, rows, metrics, traces and displays are derived from it.

use super::approval::{OpenGate, Provenance, Subject};
use super::event::Event;
use super::parts::{Ending, Next, PauseReason, Resolved, ScopeKey, Started, StepInfo, StepRef, TimerKind};
use super::phase::{Phase, Progress};
use super::policy::RATE_LIMITED;
use super::state::{RunStatus, StepStatus};
use super::{Failure, Millis};
use crate::plan::Hash;

/// All changes that an event makes.
#[derive(Debug, Default)]
pub struct Changes<'e> {
    /// Changes of the run as a whole.
    pub run: RunChange<'e>,
    /// Changes of a step execution, if the event is about one.
    pub step: Option<StepChange<'e>>,
    /// The value that the event adds, by its hash. The value itself is stored outside the log.
    pub value: Option<ValueChange>,
}

/// The changes of a run as a whole.
#[derive(Debug, Default)]
pub struct RunChange<'e> {
    /// The new status.
    pub status: Option<RunStatus>,
    /// Why the run is paused.
    pub paused: Option<PauseReason>,
    /// The incarnation of the restored database that interrupted the run.
    pub(super) restored: Option<u64>,
    /// Why the run ended with a failure.
    pub error: Option<&'e Failure>,
    /// The failure that starts the steps of `on_failure`.
    pub(super) failing: Option<&'e Failure>,
    /// The reason of a cancellation in several decisions, and the user.
    pub(super) cancelling: Option<(&'e str, Option<&'e str>)>,
    /// The block whose steps start.
    pub(super) opens: Option<ScopeKey>,
    /// The name of a signal that is buffered until a step waits for it.
    pub(super) signal: Option<&'e str>,
    /// The path of a step whose arguments a human edited.
    pub(super) edited: Option<&'e str>,
    /// The value that a human replaced.
    pub(super) replaced: Option<Replaced<'e>>,
    /// The value that is stored in the event itself, for [`super::World::event_value`].
    pub(super) inline: Option<&'e serde_json::Value>,
}

/// A value that a human replaced.
#[derive(Debug, Clone, Copy)]
pub(super) enum Replaced<'e> {
    Inputs,
    /// The output of the step with this id.
    Output(&'e str),
}

/// The changes of one execution of a step.
#[derive(Debug)]
pub struct StepChange<'e> {
    /// The attempt that the event is about.
    pub step: &'e StepRef,
    /// The step in the definition, on events that may be the first of their execution.
    pub info: Option<&'e StepInfo>,
    /// Whether the attempt starts.
    pub starts_attempt: bool,
    /// The new status of the attempt.
    pub status: Option<StepStatus>,
    /// The new phase of the execution.
    pub phase: Option<Phase>,
    /// Full name of the tool that the attempt calls.
    pub tool: Option<&'e str>,
    /// Why the attempt failed, waits, or has an unknown outcome.
    pub error: Option<&'e Failure>,
    /// Whether the timers, the awaited signal and the open gate of the execution are removed.
    pub clears_waits: bool,
    /// Durable timers that are set, with their due times.
    timers: [Option<(TimerKind, Millis)>; 2],
    /// The deadline of the call in flight. It needs no durable timer: a restart ends the call as well.
    pub deadline: Option<(TimerKind, Millis)>,
    /// The signal or idempotency key that the execution waits for.
    pub wait: Option<&'e str>,
    /// The change of the execution's gate.
    pub gate: Option<GateChange<'e>>,
    /// When the next attempt starts, if this one failed and is retried.
    pub retry_at: Option<Millis>,
    /// Whether the call of the attempt may still return a result.
    pub(super) late_result: LateResult,
    /// Changes that only the state machine needs.
    pub(super) internal: InternalChange<'e>,
}

/// The change of a gate.
#[derive(Debug)]
pub enum GateChange<'e> {
    /// An approval was requested.
    Requested(GateRequest<'e>),
    /// A user approved, and the quorum is not reached.
    Signed {
        /// The user who approved.
        by: &'e str,
        /// How the decision was made.
        provenance: Option<&'e Provenance>,
    },
    /// The request was decided or expired.
    Decided(GateDecision<'e>),
    /// The request was escalated.
    Escalated {
        /// Number of escalations before this one.
        level: u32,
        /// When the next escalation is due.
        next: Option<Millis>,
    },
    /// Those who were asked were reminded.
    Reminded {
        /// Number of reminders, with this one.
        count: u32,
        /// When the next reminder is due.
        next: Option<Millis>,
    },
}

/// A request for an approval or an input.
#[derive(Debug)]
pub struct GateRequest<'e> {
    /// Hash that binds the decision to what was requested.
    pub digest: Hash,
    /// The prompt to show.
    pub prompt: &'e str,
    /// Full name of the tool that is called if approved.
    pub tool: Option<&'e str>,
    /// When the request expires.
    pub until: Option<Millis>,
    /// The recipients of the notification.
    pub notify: &'e [Box<str>],
    /// JSON Schema of the input that a tool requests.
    pub form: Option<&'e serde_json::Value>,
    /// Opaque state that is sent back to the tool with the input.
    pub state: Option<&'e serde_json::Value>,
    /// What the approval covers.
    pub subject: Option<&'e Subject>,
    /// Whether the request replaces one that became stale.
    pub renewed: bool,
    /// When the next escalation is due.
    pub escalate: Option<Millis>,
}

/// How a request was decided.
#[derive(Debug)]
pub struct GateDecision<'e> {
    /// Whether the request was approved, was denied or expired.
    pub outcome: ApprovalOutcome,
    /// The user who decided; `None` if the request expired.
    pub by: Option<&'e str>,
    /// The reason of the decision.
    pub reason: Option<&'e str>,
    /// The input that a tool requested, or the values of a form.
    pub answer: Option<&'e serde_json::Value>,
    /// How the decision was made.
    pub provenance: Option<&'e Provenance>,
}

/// How an approval ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum ApprovalOutcome {
    Approved,
    Denied,
    Expired,
}

/// A value that an event adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueChange {
    /// The inputs of the run.
    RunInputs(Hash),
    /// The output of the run.
    RunOutput(Hash),
    /// The input of a step: arguments, items or the inputs of a child run.
    StepInput(Hash),
    /// The output of a step.
    StepOutput(Hash),
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum AttemptOutcome {
    Completed,
    Failed,
    Retried,
    Skipped,
    Cancelled,
    Uncertain,
}

impl AttemptOutcome {
    /// Every outcome, in the order of its discriminants.
    pub const ALL: [Self; 6] =
        [Self::Completed, Self::Failed, Self::Retried, Self::Skipped, Self::Cancelled, Self::Uncertain];
}

/// Whether the call of an attempt may still return a result after its step stopped waiting for it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum LateResult {
    #[default]
    NotExpected,
    /// Expected if a call is in flight.
    ExpectedIfInFlight,
    Expected,
    Arrived,
}

/// Changes that only the state machine needs.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the changes are independent")]
pub(super) struct InternalChange<'e> {
    /// Id of the call's task at its server.
    pub task: Option<&'e str>,
    /// The idempotency key, and whether it is claimed in the store.
    pub key: Option<(&'e str, bool)>,
    /// Set if the execution waits for its server.
    pub server: Option<ServerWait>,
    /// Whether a restart of the engine interrupted the call.
    pub restarted: bool,
    /// Whether a probe starts.
    pub probe: bool,
    /// Whether the missing tool was created.
    pub created: bool,
    /// Whether the call is repeated although it may have taken effect. Its approval covered the first execution.
    pub repeated: bool,
    /// Sequence number of the buffered signal that ends the wait.
    pub signal: Option<u64>,
    /// The end of a block of the execution.
    pub block: Option<BlockEnd<'e>>,
    /// The target of its conditional transition.
    pub taken: Option<&'e Next>,
    /// How it ends after the executions in its blocks are cancelled.
    pub ending: Option<&'e Ending>,
}

/// A wait for a server that cannot accept a call.
#[derive(Debug)]
pub(super) struct ServerWait {
    /// Whether the server rejected the call, so that it is retried with backoff.
    pub rejected: bool,
    /// When the wait ends with a failure.
    pub until: Option<Millis>,
}

/// The end of one block of an execution.
#[derive(Debug)]
pub(super) struct BlockEnd<'e> {
    pub index: u32,
    pub result: Option<u32>,
    pub error: Option<&'e Failure>,
}

impl StepChange<'_> {
    /// Durable timers that are set, with their due times.
    pub fn timers(&self) -> impl Iterator<Item = (TimerKind, Millis)> + '_ {
        self.timers.iter().flatten().copied()
    }

    /// Whether the execution ends.
    pub fn ends(&self) -> bool {
        self.retry_at.is_none() && self.status.is_some_and(StepStatus::is_end)
    }

    /// How the attempt ended, if it did.
    pub fn outcome(&self) -> Option<AttemptOutcome> {
        match self.status? {
            _ if self.retry_at.is_some() => Some(AttemptOutcome::Retried),
            StepStatus::Done => Some(AttemptOutcome::Completed),
            StepStatus::Failed => Some(AttemptOutcome::Failed),
            StepStatus::Skipped => Some(AttemptOutcome::Skipped),
            StepStatus::Cancelled => Some(AttemptOutcome::Cancelled),
            StepStatus::Uncertain => Some(AttemptOutcome::Uncertain),
            StepStatus::Pending | StepStatus::Ready | StepStatus::Running | StepStatus::Waiting => None,
        }
    }
}

impl<'e> From<RunChange<'e>> for Changes<'e> {
    #[inline]
    fn from(run: RunChange<'e>) -> Self {
        Self { run, ..Self::default() }
    }
}

impl<'e> From<StepChange<'e>> for Changes<'e> {
    #[inline]
    fn from(step: StepChange<'e>) -> Self {
        Self { step: Some(step), ..Self::default() }
    }
}

impl Changes<'_> {
    #[inline]
    fn with_value(self, value: ValueChange) -> Self {
        Self { value: Some(value), ..self }
    }
}

#[inline]
fn run_status<'e>(status: RunStatus) -> RunChange<'e> {
    RunChange { status: Some(status), ..RunChange::default() }
}

/// A step change without changes, which the others extend.
#[inline]
fn unchanged(step: &StepRef) -> StepChange<'_> {
    StepChange {
        step,
        info: None,
        starts_attempt: false,
        status: None,
        phase: None,
        tool: None,
        error: None,
        clears_waits: false,
        timers: [None, None],
        deadline: None,
        wait: None,
        gate: None,
        retry_at: None,
        late_result: LateResult::NotExpected,
        internal: InternalChange::default(),
    }
}

/// Moves an execution to another phase.
#[inline]
fn with_phase(step: &StepRef, phase: Phase) -> StepChange<'_> {
    StepChange { phase: Some(phase), clears_waits: true, ..unchanged(step) }
}

/// Ends an execution.
#[inline]
fn with_end(step: &StepRef, status: StepStatus) -> StepChange<'_> {
    StepChange { status: Some(status), clears_waits: true, ..unchanged(step) }
}

#[inline]
fn timer(kind: TimerKind, due: Option<Millis>) -> Option<(TimerKind, Millis)> {
    due.map(|due| (kind, due))
}

/// The timer of the next escalation or reminder, whichever is earlier. A timer of each kind would need another kind in the
/// store.
#[inline]
fn escalation_timer(escalate: Option<Millis>, remind: Option<Millis>) -> Option<(TimerKind, Millis)> {
    timer(TimerKind::Escalate, escalate.into_iter().chain(remind).min())
}

impl Event {
    /// Returns everything that the event changes.
    pub fn changes(&self) -> Changes<'_> {
        self.all_changes()
    }

    /// See [`Event::changes`]. The match has no wildcard arm, so a new event must be added here.
    ///
    /// It is inlined, so that a method that reads one field of the changes, such as [`Event::step`], does not build the
    /// others.
    #[expect(clippy::too_many_lines, reason = "one arm per event, and nothing else")]
    #[expect(clippy::inline_always, reason = "the caller decides which fields are built")]
    #[inline(always)]
    pub(super) fn all_changes(&self) -> Changes<'_> {
        match self {
            Self::RunStarted { inputs, .. } => {
                let run = RunChange { opens: Some(ScopeKey::ROOT), ..run_status(RunStatus::Running) };
                Changes::from(run).with_value(ValueChange::RunInputs(*inputs))
            }
            Self::RunPaused { reason, .. } => {
                RunChange { paused: Some(*reason), ..run_status(RunStatus::Paused) }.into()
            }
            Self::RunResumed { .. } => run_status(RunStatus::Running).into(),
            Self::RunInterrupted { restored } => {
                let restored = restored.as_ref().map(|restored| restored.incarnation);
                RunChange { restored, ..run_status(RunStatus::Interrupted) }.into()
            }
            Self::RunFailing { error } => {
                let opens = Some(ScopeKey::FAILURE);
                RunChange { failing: Some(error), opens, ..RunChange::default() }.into()
            }
            Self::RunCompleted { output } => {
                Changes::from(run_status(RunStatus::Completed)).with_value(ValueChange::RunOutput(*output))
            }
            Self::RunFailed { error } => {
                RunChange { error: Some(error), ..run_status(RunStatus::Failed) }.into()
            }
            Self::RunCancelling { reason, by } => {
                // It ends a pause and an interruption: the engine works on the run until it is cancelled.
                let cancelling = Some((&**reason, by.as_deref()));
                RunChange { cancelling, ..run_status(RunStatus::Running) }.into()
            }
            Self::RunCancelled { .. } => run_status(RunStatus::Cancelled).into(),
            Self::SignalReceived { event, payload } => {
                RunChange { signal: Some(event), inline: Some(payload), ..RunChange::default() }.into()
            }
            Self::ArgumentsEdited { path, args, .. } => {
                RunChange { edited: Some(path), inline: Some(args), ..RunChange::default() }.into()
            }
            Self::ValueSet { id, value, .. } => {
                let replaced = Some(id.as_deref().map_or(Replaced::Inputs, Replaced::Output));
                RunChange { replaced, inline: Some(value), ..RunChange::default() }.into()
            }
            Self::StepReady { step, place } => {
                let status = Some(StepStatus::Ready);
                StepChange { info: Some(place), status, ..with_phase(step, Phase::Ready) }.into()
            }
            Self::StepStarted { step, place, what, until } => step_started(step, place, what, *until),
            Self::StepCompleted { step, output, from } => {
                let late_result =
                    if from.is_some() { LateResult::ExpectedIfInFlight } else { LateResult::NotExpected };
                let step = StepChange { late_result, ..with_end(step, StepStatus::Done) };
                Changes::from(step).with_value(ValueChange::StepOutput(*output))
            }
            Self::StepFailed { step, error } => {
                StepChange { error: Some(error), ..with_end(step, StepStatus::Failed) }.into()
            }
            Self::StepSkipped { step, .. } => StepChange {
                late_result: LateResult::ExpectedIfInFlight,
                ..with_end(step, StepStatus::Skipped)
            }
            .into(),
            Self::StepCancelled { step, in_flight } => {
                let late_result = if *in_flight { LateResult::Expected } else { LateResult::NotExpected };
                StepChange { late_result, ..with_end(step, StepStatus::Cancelled) }.into()
            }
            Self::RetryScheduled { step, error, due } => StepChange {
                status: Some(StepStatus::Failed),
                error: Some(error),
                retry_at: Some(*due),
                timers: [Some((TimerKind::Retry, *due)), None],
                internal: InternalChange { restarted: error.is_restart(), ..InternalChange::default() },
                ..with_phase(step, Phase::Backoff { due: *due })
            }
            .into(),
            Self::StepUncertain { step, error } => StepChange {
                status: Some(StepStatus::Uncertain),
                error: Some(error),
                late_result: LateResult::Expected,
                internal: InternalChange { restarted: error.is_restart(), ..InternalChange::default() },
                ..with_phase(step, Phase::Uncertain)
            }
            .into(),
            Self::CallTimedOut { step, until } => {
                let deadline = Some((TimerKind::Grace, *until));
                StepChange { deadline, ..with_phase(step, Phase::Stopping) }.into()
            }
            Self::CallAbandoned { step } => {
                StepChange { late_result: LateResult::Expected, ..unchanged(step) }.into()
            }
            Self::CallAccepted { step, task } => {
                let internal = InternalChange { task: Some(task), ..InternalChange::default() };
                StepChange { internal, ..unchanged(step) }.into()
            }
            Self::VerifyStarted { step, until, restarted, .. } => StepChange {
                deadline: timer(TimerKind::Timeout, *until),
                internal: InternalChange { restarted: *restarted, probe: true, ..InternalChange::default() },
                ..with_phase(step, Phase::Verifying)
            }
            .into(),
            Self::ToolRequested { step, until, .. } => {
                let deadline = timer(TimerKind::Timeout, *until);
                StepChange { deadline, ..with_phase(step, Phase::Creating) }.into()
            }
            Self::ToolCreated { step, .. } => {
                let internal = InternalChange { created: true, ..InternalChange::default() };
                StepChange { clears_waits: true, internal, ..unchanged(step) }.into()
            }
            Self::LateResult { step } => {
                StepChange { late_result: LateResult::Arrived, ..unchanged(step) }.into()
            }
            Self::KeyAwaited { step, place, key } => StepChange {
                info: Some(place),
                status: Some(StepStatus::Waiting),
                wait: Some(key),
                ..with_phase(step, Phase::KeyWait)
            }
            .into(),
            Self::ServerAwaited { step, place, error, due, until } => StepChange {
                info: Some(place),
                status: Some(StepStatus::Waiting),
                error: Some(error),
                timers: [timer(TimerKind::Retry, *due), timer(TimerKind::Timeout, *until)],
                internal: InternalChange {
                    server: Some(ServerWait { rejected: is_rejected(*due, error), until: *until }),
                    ..InternalChange::default()
                },
                ..with_phase(step, Phase::ServerWait { due: *due })
            }
            .into(),
            Self::BlockCompleted { step, index, result, error } => {
                let block = BlockEnd { index: *index, result: *result, error: error.as_ref() };
                let internal = InternalChange { block: Some(block), ..InternalChange::default() };
                StepChange { internal, ..unchanged(step) }.into()
            }
            Self::BranchTaken { step, to } => {
                let internal = InternalChange { taken: Some(to), ..InternalChange::default() };
                StepChange { internal, ..unchanged(step) }.into()
            }
            Self::StepEnding { step, how } => {
                let internal = InternalChange { ending: Some(how), ..InternalChange::default() };
                StepChange { internal, ..unchanged(step) }.into()
            }
            Self::ApprovalRequested {
                step,
                digest,
                prompt,
                tool,
                args,
                until,
                escalate,
                level,
                remind,
                reminders,
                notify,
                form,
                state,
                subject,
                renewed,
            } => {
                let gate = GateChange::Requested(GateRequest {
                    digest: *digest,
                    prompt,
                    tool: tool.as_deref(),
                    until: *until,
                    notify,
                    form: form.as_ref(),
                    state: state.as_ref(),
                    subject: subject.as_deref(),
                    renewed: *renewed,
                    escalate: *escalate,
                });
                let open = Box::new(OpenGate {
                    escalate: *escalate,
                    remind: *remind,
                    reminders: *reminders,
                    notify: notify.clone(),
                    renewed: *renewed,
                    ..OpenGate::new(subject.as_deref())
                });
                let phase = Phase::Gate { until: *until, level: *level, digest: *digest, open };
                let step = StepChange {
                    status: Some(StepStatus::Waiting),
                    gate: Some(gate),
                    timers: [timer(TimerKind::Timeout, *until), escalation_timer(*escalate, *remind)],
                    ..with_phase(step, phase)
                };
                Changes { value: args.map(ValueChange::StepInput), ..Changes::from(step) }
            }
            Self::ApprovalSigned { step, by, provenance, .. } => {
                let gate = Some(GateChange::Signed { by, provenance: provenance.as_deref() });
                StepChange { gate, ..unchanged(step) }.into()
            }
            Self::ApprovalGranted { step, by, reason, answer, provenance, .. } => {
                let decided = GateDecision {
                    outcome: ApprovalOutcome::Approved,
                    by: Some(by),
                    reason: reason.as_deref(),
                    answer: answer.as_ref(),
                    provenance: provenance.as_deref(),
                };
                let status = Some(StepStatus::Ready);
                let gate = Some(GateChange::Decided(decided));
                StepChange { status, gate, ..with_phase(step, Phase::Ready) }.into()
            }
            Self::ApprovalDenied { step, by, reason, provenance, .. } => {
                let outcome = if by.is_some() { ApprovalOutcome::Denied } else { ApprovalOutcome::Expired };
                let provenance = provenance.as_deref();
                let decided = GateDecision {
                    outcome,
                    by: by.as_deref(),
                    reason: Some(reason),
                    answer: None,
                    provenance,
                };
                StepChange { gate: Some(GateChange::Decided(decided)), ..with_phase(step, Phase::Passing) }
                    .into()
            }
            Self::ApprovalEscalated { step, level, escalate, remind, .. } => {
                let timers = [escalation_timer(*escalate, *remind), None];
                let gate = Some(GateChange::Escalated { level: *level, next: *escalate });
                StepChange { timers, gate, ..unchanged(step) }.into()
            }
            Self::ApprovalReminded { step, count, remind, escalate, .. } => {
                let timers = [escalation_timer(*escalate, *remind), None];
                let gate = Some(GateChange::Reminded { count: *count, next: *remind });
                StepChange { timers, gate, ..unchanged(step) }.into()
            }
            Self::UncertaintyResolved { step, how, .. } => {
                let mut change = unchanged(step);
                change.internal.repeated = *how == Resolved::Retry;
                change.into()
            }
            Self::StepProgressed { step, .. }
            | Self::CallResumed { step, .. }
            | Self::ToolChanged { step, .. } => unchanged(step).into(),
        }
    }
}

#[expect(clippy::inline_always, reason = "see `all_changes`")]
#[inline(always)]
fn step_started<'e>(
    step: &'e StepRef,
    place: &'e StepInfo,
    what: &'e Started,
    until: Option<Millis>,
) -> Changes<'e> {
    let blocks = |total| Phase::Blocks(Progress { total, ..Progress::default() });
    let base = |status, phase| StepChange {
        info: Some(place),
        starts_attempt: true,
        status: Some(status),
        timers: [timer(TimerKind::Timeout, until), None],
        ..with_phase(step, phase)
    };
    let (running, waiting) = (StepStatus::Running, StepStatus::Waiting);
    match what {
        Started::Call { tool, args, key, claimed, policy: _ } => {
            let deadline = timer(TimerKind::Timeout, until);
            let timers = [None, None];
            let mut step = StepChange { tool: Some(tool), deadline, timers, ..base(running, Phase::Calling) };
            step.internal.key = Some((key, *claimed));
            Changes::from(step).with_value(ValueChange::StepInput(*args))
        }
        Started::Foreach { items, input } => {
            Changes::from(base(running, blocks(*items))).with_value(ValueChange::StepInput(*input))
        }
        Started::Parallel { branches } => base(running, blocks(*branches)).into(),
        Started::Branch {} => base(running, blocks(1)).into(),
        Started::Pass {} => base(running, Phase::Passing).into(),
        Started::Approve {} => base(waiting, Phase::Passing).into(),
        Started::Sleep { due } => {
            let mut step = base(waiting, Phase::Sleeping { due: *due });
            step.timers[1] = Some((TimerKind::Sleep, *due));
            step.into()
        }
        Started::Wait { event, correlate, signal } => {
            let phase = Phase::Waiting { event: event.clone(), correlate: correlate.clone() };
            let mut step = base(waiting, phase);
            // A buffered signal ends the wait at once.
            (step.wait, step.internal.signal) = (signal.is_none().then_some(&**event), *signal);
            step.into()
        }
        Started::Workflow { run, input, .. } => {
            let step = base(waiting, Phase::Child { run: run.clone() });
            Changes::from(step).with_value(ValueChange::StepInput(*input))
        }
    }
}

/// Whether a server rejected a call that was started. A call that waits for the rate of a rule has not started.
fn is_rejected(due: Option<Millis>, error: &Failure) -> bool {
    due.is_some() && error.code.as_deref() != Some(RATE_LIMITED)
}
