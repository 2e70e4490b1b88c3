//! Decides which events follow from an input, and runs the queue of transitions that they cause.

use std::collections::{BTreeMap, VecDeque};

use super::event::Event;
use super::parts::{Next, PauseReason, ScopeKey, Started, StepInfo, StepRef};
use super::phase::Phase;
use super::state::{Live, Run, RunStatus};
use super::world::{Record, World, WorldError};
use super::{Failure, Input, Millis, Payload, ValueChange};
use crate::expr::StepIx;
use crate::plan::{Kind, Plan, Step, Target};

/// Returns the events that follow from an input, and applies them to the run. If this fails, or the events
/// cannot be committed, the caller must rebuild the run from the log.
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
    decision.handle(input)?;
    if decision.records.is_empty() && decision.tasks.is_empty() && !may_begin {
        // A stale or repeated input must not start steps that wait for a slot.
        return Ok(Vec::new());
    }
    decision.run_tasks()?;
    decision.begin_ready()?;
    decision.settle_status();
    Ok(decision.records)
}

/// A decision in progress.
pub(super) struct Decision<'d> {
    pub plan: &'d Plan,
    pub run: &'d mut Run,
    pub world: &'d mut dyn World,
    pub records: Vec<Record>,
    /// Transitions that are still to be made in this decision.
    tasks: VecDeque<Task>,
    /// Outputs and inputs of executions that are not in the store yet.
    pub outputs: BTreeMap<u32, Payload>,
    pub inputs: BTreeMap<u32, Payload>,
    /// Whether admission reported that all slots are in use.
    pub full: bool,
}

/// A pending transition. Transitions are queued, since a long chain of steps can end in one decision and
/// recursion would be unbounded.
#[derive(Debug)]
pub(super) enum Task {
    /// A step ended, and its block continues with the next steps.
    Advance { scope: ScopeKey, step: StepIx, ended: StepRef },
    /// A block continues with the target of a transition.
    GoTo { scope: ScopeKey, to: Target },
    /// A step failed, and its block with it.
    Fail { scope: ScopeKey, error: Failure },
    /// A block ends if it has no steps left to run.
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

/// The result of a transition; its effects are in the [`Decision`].
pub(super) type DecideResult = Result<(), WorldError>;

impl<'d> Decision<'d> {
    fn handle(&mut self, input: Input) -> DecideResult {
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
            // `decide` starts the ready steps after every input.
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
                self.emit(Event::RunInterrupted { restored: None });
                Ok(())
            }
            Input::Restored { incarnation, backup_at } => {
                self.interrupt_restored(incarnation, backup_at);
                Ok(())
            }
            Input::Resolve { n, resolution, by } => self.resolve(n, resolution, by),
            Input::Intervene { intervention, by } => self.intervene(intervention, by),
        }
    }

    fn run_tasks(&mut self) -> DecideResult {
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

    pub(super) fn enqueue(&mut self, task: Task) {
        self.tasks.push_back(task);
    }

    /// Whether transitions of a block are pending.
    pub(super) fn has_tasks(&self, scope: ScopeKey) -> bool {
        self.tasks.iter().any(|task| task.scope() == scope)
    }

    /// Drops the pending transitions of a block that ends.
    pub(super) fn drop_tasks(&mut self, scope: ScopeKey) {
        self.tasks.retain(|task| task.scope() != scope);
    }

    /// Records an event and applies it to the run.
    pub(super) fn emit(&mut self, event: Event) {
        self.record(event, None);
    }

    /// Records an event with the payload that it refers to, and applies it to the run.
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
            had_input_request: live.filter(|_| event.ends_step()).and_then(Live::open_request).cloned(),
            had_child: live.and_then(Live::child).map(Into::into),
            event,
            payload,
        };
        self.run.apply(self.plan, &record.event);
        let entered = || n.and_then(|n| self.run.live.get(&n)).map(|live| live.step);
        record.at = record.at.or_else(entered);
        self.buffer_value(&record);
        self.records.push(record);
    }

    /// Keeps a value for expressions that read it before it is in the store.
    fn buffer_value(&mut self, record: &Record) {
        let (Some(payload), Some(step)) = (&record.payload, record.event.step()) else { return };
        match record.event.changes().value {
            Some(ValueChange::StepOutput(_)) => drop(self.outputs.insert(step.n, payload.clone())),
            Some(ValueChange::StepInput(_)) => drop(self.inputs.insert(step.n, payload.clone())),
            Some(ValueChange::RunInputs(_) | ValueChange::RunOutput(_)) | None => {}
        }
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

    pub(super) fn step_info(&self, scope: ScopeKey, step: StepIx) -> StepInfo {
        let step = self.step(step);
        StepInfo { id: step.id.clone(), kind: step.kind.word().into(), scope }
    }

    pub(super) fn emit_started(&mut self, attempt: &Attempt, what: Started, payload: Option<Payload>) {
        let timeout = self.step(attempt.step).timeout_ms.and_then(|timeout| i64::try_from(timeout).ok());
        let until = timeout.map(|timeout| self.now().saturating_add(timeout));
        let place = self.step_info(attempt.scope, attempt.step);
        self.record(Event::StepStarted { step: attempt.step_ref.clone(), place, what, until }, payload);
    }

    /// Completes a step. Fails it if the output exceeds the limits.
    pub(super) fn complete(&mut self, n: u32, output: Payload, from: Option<&str>) -> DecideResult {
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
        self.enqueue(Task::Advance { scope, step: at, ended: step });
        Ok(())
    }

    /// Fails a step without further attempts. Its `on_error` decides how the block continues.
    #[expect(clippy::unnecessary_wraps, reason = "has the signature of the other transitions")]
    pub(super) fn fail(&mut self, n: u32, error: Failure) -> DecideResult {
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

    /// Skips a step; its block continues.
    pub(super) fn skip(&mut self, n: u32, reason: &str) {
        let Some(step) = self.run.step_ref(n) else { return };
        let Some((scope, at)) = self.run.live.get(&n).map(|live| (live.scope, live.step)) else { return };
        self.cancel_blocks(n);
        self.emit(Event::StepSkipped { step: step.clone(), reason: reason.into() });
        self.enqueue(Task::Advance { scope, step: at, ended: step });
    }

    /// Pauses a run that waits only for humans, and resumes it when that changes.
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
            (true, RunStatus::Paused)
            | (false, RunStatus::Running)
            | (
                _,
                RunStatus::Pending
                | RunStatus::Interrupted
                | RunStatus::Completed
                | RunStatus::Failed
                | RunStatus::Cancelled,
            ) => {}
        }
    }

    pub(super) fn emit_branch_taken(&mut self, step: &StepRef, to: Next) {
        self.emit(Event::BranchTaken { step: step.clone(), to });
    }
}

/// An attempt that is about to start. Its execution may be new or already in [`Run::live`].
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub step_ref: StepRef,
    pub scope: ScopeKey,
    pub step: StepIx,
}

impl Attempt {
    pub(super) fn n(&self) -> u32 {
        self.step_ref.n
    }
}

impl Decision<'_> {
    /// Starts the current attempt of an execution that is in [`Run::live`].
    pub(super) fn begin(&mut self, n: u32) -> DecideResult {
        let Some(live) = self.run.live.get(&n) else { return Ok(()) };
        let step_ref = StepRef { n, path: live.path.clone(), attempt: live.attempt };
        self.begin_attempt(&Attempt { step_ref, scope: live.scope, step: live.step })
    }

    /// Starts the ready steps, until all slots are in use.
    fn begin_ready(&mut self) -> DecideResult {
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
                self.run_tasks()?;
            }
        }
        Ok(())
    }

    pub(super) fn begin_attempt(&mut self, attempt: &Attempt) -> DecideResult {
        let approved = self.run.live.get(&attempt.n()).is_some_and(|live| live.approved);
        let step = self.step(attempt.step);
        if self.run.is_held() {
            self.hold(attempt);
            return Ok(());
        }
        let has_request = self.run.live.get(&attempt.n()).is_some_and(|live| live.input_response.is_some());
        if step.needs_human && !approved && !has_request {
            return self.request_approval(attempt);
        }
        match &step.kind {
            Kind::Call(call) => self.begin_call(attempt, call),
            Kind::Foreach(foreach) => self.begin_foreach(attempt, foreach),
            Kind::Parallel(parallel) => self.begin_parallel(attempt, parallel),
            Kind::Branch(branch) => self.begin_branch(attempt, branch),
            Kind::Approve(_) if approved => self.pass_gate(attempt.n()),
            Kind::Approve(approve) => self.begin_approve(attempt, approve),
            Kind::Sleep(sleep) => self.begin_sleep(attempt, sleep),
            Kind::Wait(wait) => self.begin_wait(attempt, wait),
            Kind::Workflow(workflow) => self.begin_workflow(attempt, workflow),
            Kind::Pass => {
                self.emit_started(attempt, Started::Pass {}, None);
                self.complete(attempt.n(), Payload::default(), None)
            }
        }
    }

    /// Makes a step wait until a slot is free or the run is resumed.
    pub(super) fn hold(&mut self, attempt: &Attempt) {
        let held = self.run.live.get(&attempt.n()).is_some_and(|live| live.phase == Phase::Ready);
        if !held {
            let place = self.step_info(attempt.scope, attempt.step);
            self.emit(Event::StepReady { step: attempt.step_ref.clone(), place });
        }
    }

    /// Fails a step that could not start, for example because its arguments could not be evaluated.
    pub(super) fn fail_before_start(&mut self, attempt: &Attempt, error: Failure) -> DecideResult {
        self.emit_started(attempt, Started::Pass {}, None);
        self.fail(attempt.n(), error)
    }
}
