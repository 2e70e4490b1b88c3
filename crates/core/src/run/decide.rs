//! An input to facts.

use std::collections::{BTreeMap, VecDeque};

use super::event::Event;
use super::parts::{Next, PauseReason, ScopeKey, Started, StepInfo, StepRef};
use super::state::{Live, Phase, Run, RunStatus};
use super::world::{Record, World, WorldError};
use super::{Failure, Input, Millis, Payload, TimerKind};
use crate::expr::StepIx;
use crate::plan::{Kind, Plan, Step, Target};

/// What follows from an input. The run is moved on by the events; if an error comes back, or the events
/// cannot be committed, the run must be folded from the log again.
pub fn decide(
    plan: &Plan,
    run: &mut Run,
    input: Input,
    world: &mut dyn World,
) -> Result<Vec<Record>, WorldError> {
    let mut decision = Decision {
        plan,
        run,
        world,
        records: Vec::new(),
        tasks: VecDeque::new(),
        outputs: BTreeMap::new(),
        inputs: BTreeMap::new(),
        full: false,
    };
    let may_begin = matches!(input, Input::Admitted);
    decision.take(input)?;
    if decision.records.is_empty() && decision.tasks.is_empty() && !may_begin {
        // A stale or repeated input moves nothing, also no step that waits for a slot.
        return Ok(Vec::new());
    }
    decision.work()?;
    decision.begin_ready()?;
    decision.settle_status();
    Ok(decision.records)
}

/// A decision in the making.
pub(super) struct Decision<'d> {
    pub plan: &'d Plan,
    pub run: &'d mut Run,
    pub world: &'d mut dyn World,
    pub records: Vec<Record>,
    /// Steps that ended in this decision and whose consequences are still to be drawn.
    tasks: VecDeque<Task>,
    /// What executions gave and were given in this decision: the store does not have it yet.
    pub outputs: BTreeMap<u32, Payload>,
    pub inputs: BTreeMap<u32, Payload>,
    /// Whether there was no place left for any call.
    pub full: bool,
}

/// A consequence still to be drawn. A queue and not recursion: a list of steps that end at once may be long.
#[derive(Debug)]
pub(super) enum Task {
    /// A step ended well enough for its block to go on.
    Advance { scope: ScopeKey, step: StepIx, ended: StepRef },
    /// A block goes on with another step.
    GoTo { scope: ScopeKey, to: Target },
    /// A step failed, and its block with it.
    Fail { scope: ScopeKey, error: Failure },
    /// A block may have nothing left to run.
    Settle { scope: ScopeKey },
}

impl Task {
    fn scope(&self) -> ScopeKey {
        match self {
            Self::Advance { scope, .. }
            | Self::GoTo { scope, .. }
            | Self::Fail { scope, .. }
            | Self::Settle { scope } => *scope,
        }
    }
}

/// The result of a part of a decision.
pub(super) type Decided = Result<(), WorldError>;

impl<'d> Decision<'d> {
    fn take(&mut self, input: Input) -> Decided {
        let status = self.run.status;
        match input {
            Input::CallEnded { n, attempt, outcome } => self.call_ended(n, attempt, outcome),
            Input::Reported { n, attempt, report } => {
                self.reported(n, attempt, report);
                Ok(())
            }
            Input::AnsweredLate { n, attempt, output } => self.answered_late(n, attempt, output),
            _ if status.is_terminal() => Ok(()),
            Input::Resume { by, force } => self.resume(by, &force),
            Input::Cancel { by, reason } => {
                self.cancel_run(by, reason);
                Ok(())
            }
            Input::Begin => self.enter_block(ScopeKey::ROOT),
            // There is nothing to do but what every decision does in the end.
            Input::Admitted => Ok(()),
            Input::TimerFired { n, timer } => self.timer_fired(n, timer),
            Input::Decided { n, approved, by, reason, digest, answer } => {
                self.decided(n, approved, by, reason.as_deref(), digest, answer)
            }
            Input::Signalled { event, payload, keep } => self.signalled(event, payload, keep),
            Input::ChildEnded { n, attempt, outcome } => self.child_ended(n, attempt, outcome),
            Input::KeyFreed { n } => self.key_freed(n),
            Input::Pause { by } => {
                self.pause(by);
                Ok(())
            }
            Input::Interrupt if status == RunStatus::Interrupted => Ok(()),
            Input::Interrupt => {
                self.emit(Event::RunInterrupted {});
                Ok(())
            }
            Input::Resolve { n, resolution, by } => self.resolve(n, resolution, by),
            Input::Intervene { intervention, by } => self.intervene(intervention, by),
        }
    }

    fn work(&mut self) -> Decided {
        while let Some(task) = self.tasks.pop_front() {
            if self.run.status.is_terminal() {
                self.tasks.clear();
                break;
            }
            match task {
                Task::Advance { scope, step, ended } => self.advance(scope, step, &ended)?,
                Task::GoTo { scope, to } => self.go_to(scope, to)?,
                Task::Fail { scope, error } => self.fail_block(scope, error)?,
                Task::Settle { scope } => self.settle_block(scope)?,
            }
        }
        Ok(())
    }

    /// Puts a consequence at the end of the queue.
    pub(super) fn later(&mut self, task: Task) {
        self.tasks.push_back(task);
    }

    /// Whether consequences for a block are still to be drawn.
    pub(super) fn is_pending(&self, scope: ScopeKey) -> bool {
        self.tasks.iter().any(|task| task.scope() == scope)
    }

    /// Forgets the consequences of a block that ends.
    pub(super) fn forget(&mut self, scope: ScopeKey) {
        self.tasks.retain(|task| task.scope() != scope);
    }

    /// Records an event and moves the run on by it.
    pub(super) fn emit(&mut self, event: Event) {
        self.record(event, None);
    }

    /// Records an event with the payload that it speaks of.
    pub(super) fn record(&mut self, event: Event, payload: Option<Payload>) {
        let n = event.step().map(|step| step.n);
        let live = n.and_then(|n| self.run.live.get(&n));
        let phase = live.map(|live| &live.phase);
        let mut record = Record {
            at: live.map(|live| live.step),
            had_timer: live.is_some_and(|live| live.timer),
            had_claim: live.is_some_and(|live| live.claim),
            had_wait: matches!(phase, Some(Phase::Waiting { .. } | Phase::KeyWait)),
            had_gate: matches!(phase, Some(Phase::Gate { .. })),
            had_input_request: match (phase, live.and_then(|live| live.asked.as_ref())) {
                (Some(Phase::Gate { .. }), Some(asked)) if event.ends_step() => Some(asked.state.clone()),
                _ => None,
            },
            had_child: match phase {
                Some(Phase::Child { run }) => Some(run.clone()),
                _ => None,
            },
            event,
            payload,
        };
        self.run.apply(self.plan, &record.event);
        let entered = || n.and_then(|n| self.run.live.get(&n)).map(|live| live.step);
        record.at = record.at.or_else(entered);
        if let Some(payload) = &record.payload {
            match &record.event {
                Event::StepCompleted { step, .. } => self.outputs.insert(step.n, payload.clone()),
                event => event.step().and_then(|step| self.inputs.insert(step.n, payload.clone())),
            };
        }
        self.records.push(record);
    }

    pub(super) fn now(&self) -> Millis {
        self.world.now()
    }

    pub(super) fn step(&self, step: StepIx) -> &'d Step {
        self.plan.step(step)
    }

    /// An execution that has not ended, with its step.
    pub(super) fn live(&self, n: u32) -> Option<(&Live, &'d Step)> {
        let live = self.run.live.get(&n)?;
        Some((live, self.plan.step(live.step)))
    }

    /// What names an execution in events.
    pub(super) fn place(&self, scope: ScopeKey, step: StepIx) -> StepInfo {
        let step = self.step(step);
        StepInfo { id: step.id.clone(), kind: step.kind.word().into(), scope }
    }

    /// The event that a step began.
    pub(super) fn started(&mut self, at: &Entry, what: Started, payload: Option<Payload>) {
        let timeout = self.step(at.step).timeout_ms.and_then(|timeout| i64::try_from(timeout).ok());
        let until = timeout.map(|timeout| self.now().saturating_add(timeout));
        let place = self.place(at.scope, at.step);
        self.record(Event::StepStarted { step: at.step_ref.clone(), place, what, until }, payload);
    }

    /// A step gave its output.
    pub(super) fn complete(&mut self, n: u32, output: Payload, from: Option<&str>) -> Decided {
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        let Some((scope, at)) = self.run.live.get(&n).map(|live| (live.scope, live.step)) else {
            return Ok(());
        };
        if let Err(error) = output.fits() {
            return self.fail(n, error);
        }
        let event =
            Event::StepCompleted { step: step.clone(), output: output.hash(), from: from.map(Into::into) };
        self.record(event, Some(output));
        self.later(Task::Advance { scope, step: at, ended: step });
        Ok(())
    }

    /// A step failed for good: what happens now is up to its `on_error`.
    #[expect(clippy::unnecessary_wraps, reason = "reads like the other ways in which a step moves on")]
    pub(super) fn fail(&mut self, n: u32, error: Failure) -> Decided {
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        let Some((scope, at)) = self.run.live.get(&n).map(|live| (live.scope, live.step)) else {
            return Ok(());
        };
        self.cancel_blocks(n);
        let cause = error.clone().caused_by(&step.path);
        self.emit(Event::StepFailed { step: step.clone(), error });
        self.after_failure(scope, at, step, cause);
        Ok(())
    }

    /// A step is left out, and its block goes on.
    pub(super) fn skip(&mut self, n: u32, reason: &str) {
        let Some(step) = self.run.step_ref(n) else { return };
        let Some((scope, at)) = self.run.live.get(&n).map(|live| (live.scope, live.step)) else { return };
        self.cancel_blocks(n);
        self.emit(Event::StepSkipped { step: step.clone(), reason: reason.into() });
        self.later(Task::Advance { scope, step: at, ended: step });
    }

    fn timer_fired(&mut self, n: u32, timer: TimerKind) -> Decided {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        let now = self.now();
        match (&live.phase, timer) {
            (Phase::Backoff { due } | Phase::ServerWait { due: Some(due) }, TimerKind::Retry)
                if *due <= now =>
            {
                self.begin(n)
            }
            (Phase::ServerWait { .. }, TimerKind::Timeout) => self.server_wait_over(n),
            (Phase::Sleeping { due }, TimerKind::Sleep) if *due <= now => {
                self.complete(n, Payload::default(), None)
            }
            (Phase::Stopping, TimerKind::Grace) => self.abandon(n),
            (Phase::Calling, TimerKind::Timeout) => {
                self.time_out_call(n);
                Ok(())
            }
            (Phase::Verifying, TimerKind::Timeout) => {
                self.verified(n, Err(Failure::timeout("the probe did not answer in time")))
            }
            (Phase::Creating, TimerKind::Timeout) => {
                self.creation_ended(n, Err(Failure::timeout("it did not answer in time")))
            }
            (Phase::Gate { .. }, TimerKind::Timeout) => self.gate_timed_out(n),
            (Phase::Gate { .. }, TimerKind::Escalate) => {
                self.escalate(n);
                Ok(())
            }
            (Phase::Child { .. }, TimerKind::Timeout) => {
                self.fail_attempt(n, Failure::timeout("the workflow did not end in time"))
            }
            (Phase::Waiting { .. }, TimerKind::Timeout) => {
                self.fail(n, Failure::timeout("the event did not arrive in time"))
            }
            (Phase::Blocks(_), TimerKind::Timeout) => {
                let message = format!("the steps of `{}` did not end in time", step.id);
                self.fail(n, Failure::timeout(&message))
            }
            _ => Ok(()),
        }
    }

    /// Says so when a run comes to wait for humans only, or stops waiting for them.
    fn settle_status(&mut self) {
        let run = &self.run;
        if run.status.is_terminal() || run.status == RunStatus::Interrupted || run.is_held() {
            return;
        }
        let waits = run.attention > 0 && run.moving == 0;
        match (waits, run.status) {
            (true, RunStatus::Running) => {
                self.emit(Event::RunPaused { reason: PauseReason::Attention, by: None });
            }
            (false, RunStatus::Paused) => self.emit(Event::RunResumed { by: None }),
            _ => {}
        }
    }

    /// Where a decision led, for those who watch.
    pub(super) fn taken(&mut self, step: &StepRef, to: Next) {
        self.emit(Event::BranchTaken { step: step.clone(), to });
    }
}

/// An execution that is about to begin, for the first time or again.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub step_ref: StepRef,
    pub scope: ScopeKey,
    pub step: StepIx,
}

impl Entry {
    pub(super) fn n(&self) -> u32 {
        self.step_ref.n
    }
}

impl Decision<'_> {
    /// Begins an execution that exists: it was held back, or is attempted again.
    pub(super) fn begin(&mut self, n: u32) -> Decided {
        let Some(live) = self.run.live.get(&n) else { return Ok(()) };
        let step_ref = StepRef { n, path: live.path.clone(), attempt: live.attempt };
        self.begin_entry(&Entry { step_ref, scope: live.scope, step: live.step })
    }

    /// Begins everything that was held back, as far as there is room.
    fn begin_ready(&mut self) -> Decided {
        if self.run.ready.is_empty() || self.run.is_held() {
            return Ok(());
        }
        let ready: Vec<u32> = self.run.ready.iter().copied().collect();
        self.full = false;
        for n in ready {
            if self.full || self.run.is_held() || self.run.status.is_terminal() {
                break;
            }
            if self.run.ready.contains(&n) {
                self.begin(n)?;
                self.work()?;
            }
        }
        Ok(())
    }

    pub(super) fn begin_entry(&mut self, at: &Entry) -> Decided {
        let approved = self.run.live.get(&at.n()).is_some_and(|live| live.approved);
        let step = self.step(at.step);
        if self.run.is_held() {
            self.hold(at);
            return Ok(());
        }
        let asked = self.run.live.get(&at.n()).is_some_and(|live| live.asked.is_some());
        if step.needs_human && !approved && !asked {
            return self.gate_before(at);
        }
        match &step.kind {
            Kind::Call(call) => self.begin_call(at, call),
            Kind::Foreach(foreach) => self.begin_foreach(at, foreach),
            Kind::Parallel(parallel) => self.begin_parallel(at, parallel),
            Kind::Branch(branch) => self.begin_branch(at, branch),
            Kind::Approve(_) if approved => self.pass_gate(at.n()),
            Kind::Approve(approve) => self.begin_approve(at, approve),
            Kind::Sleep(sleep) => self.begin_sleep(at, sleep),
            Kind::Wait(wait) => self.begin_wait(at, wait),
            Kind::Workflow(workflow) => self.begin_workflow(at, workflow),
            Kind::Pass => {
                self.started(at, Started::Pass {}, None);
                self.complete(at.n(), Payload::default(), None)
            }
        }
    }

    /// Keeps an execution until there is room for it, or the run is resumed.
    pub(super) fn hold(&mut self, at: &Entry) {
        let held = self.run.live.get(&at.n()).is_some_and(|live| live.phase == Phase::Ready);
        if !held {
            let place = self.place(at.scope, at.step);
            self.emit(Event::StepReady { step: at.step_ref.clone(), place });
        }
    }

    /// A step that fails before it could do anything.
    pub(super) fn fail_entry(&mut self, at: &Entry, error: Failure) -> Decided {
        self.started(at, Started::Pass {}, None);
        self.fail(at.n(), error)
    }
}
