//! Decides which events follow from an input, and makes the transitions that they cause, up to a limit.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::event::Event;
use super::owed::{Owing, Turn};
use super::parts::{Ending, Next, PauseReason, ScopeKey, Started, StepInfo, StepRef};
use super::phase::Phase;
use super::state::{Live, ReadyKey, Run, RunStatus};
use super::world::{Record, World, WorldError};
use super::{Failure, Input, Millis, Payload, ValueChange};
use crate::budget::Budget;
use crate::expr::StepIx;
use crate::limits::{self, EVALUATION_COST, SLICE_BYTES};
use crate::plan::{Kind, Plan, Step};

/// Returns the events that follow from an input, and applies them to the run. If this fails, or the events
/// cannot be committed, the caller must rebuild the run from the log.
///
/// A decision makes no further transition after it has produced `limit` events or read `limit` results of blocks, or
/// when its evaluations have cost [`EVALUATION_COST`]. The transition that reaches the limit is completed, so the
/// number of events can exceed it by a few. Then the run owes a continuation ([`Run::owes_continuation`]).
pub fn decide(
    plan: &Plan,
    run: &mut Run,
    input: Input,
    limit: usize,
    world: &mut dyn World,
) -> Result<Vec<Record>, WorldError> {
    if !matches!(input, Input::Continue) {
        run.scratch.cost = 0;
    }
    let budget = Budget::decision(run.scratch.cost);
    let mut decision = Decision {
        plan,
        run,
        world,
        records: Vec::new(),
        limit,
        reads: 0,
        bytes: 0,
        is_cut: false,
        outputs: BTreeMap::new(),
        inputs: BTreeMap::new(),
        full: false,
        budget,
    };
    let may_begin = matches!(input, Input::Admitted | Input::Continue);
    decision.handle(input)?;
    // A stale or repeated input must not start steps that wait for a slot.
    if may_begin || !decision.records.is_empty() {
        decision.make_transitions()?;
        decision.begin_ready()?;
        decision.settle_status();
    }
    let Decision { run, records, budget, .. } = decision;
    run.scratch.cost += budget.spent();
    Ok(records)
}

/// A decision in progress.
pub(super) struct Decision<'d> {
    pub plan: &'d Plan,
    pub run: &'d mut Run,
    pub world: &'d mut dyn World,
    pub records: Vec<Record>,
    /// Number of events, and of results of blocks that are read, after which no further transition is made.
    limit: usize,
    /// Number of results of blocks that were read.
    pub reads: usize,
    /// Size of the payloads of the events.
    bytes: usize,
    /// Whether the decision ends before a transition is complete: results of blocks are left to read.
    pub is_cut: bool,
    /// Outputs and inputs of executions that are not in the store yet.
    pub outputs: BTreeMap<u32, Payload>,
    pub inputs: BTreeMap<u32, Payload>,
    /// Whether admission reported that all slots are in use.
    pub full: bool,
    /// The cost that the evaluations of this decision may cause.
    pub budget: Budget,
}

/// The result of a transition; its effects are in the [`Decision`].
pub(super) type DecideResult = Result<(), WorldError>;

impl<'d> Decision<'d> {
    fn handle(&mut self, input: Input) -> DecideResult {
        let status = self.run.status;
        let is_over = status.is_terminal() || self.run.cancelling.is_some();
        let is_doomed = input.execution().is_some_and(|n| self.run.is_doomed(n));
        match input {
            // The execution counts as cancelled: only its event is still to come.
            Input::CallEnded { n, attempt, outcome } if is_doomed => {
                self.doomed_call_ended(n, attempt, outcome.is_ok());
                Ok(())
            }
            Input::AnsweredLate { n, attempt, .. } if is_doomed => {
                self.late_result(n, attempt);
                Ok(())
            }
            Input::TimerFired { n, .. } if is_doomed => {
                self.doomed_timer_fired(n);
                Ok(())
            }
            _ if is_doomed => Ok(()),
            Input::CallEnded { n, attempt, outcome } => self.call_ended(n, attempt, outcome),
            Input::Reported { n, attempt, report } => {
                self.reported(n, attempt, report);
                Ok(())
            }
            Input::AnsweredLate { n, attempt, output } => self.answered_late(n, attempt, output),
            _ if is_over => Ok(()),
            Input::Resume { by, force } => self.resume(&by, &force),
            Input::Cancel { by, reason } => {
                self.cancel_run(by, reason);
                Ok(())
            }
            // `decide` makes transitions and starts ready steps after every input.
            Input::Continue | Input::Admitted => Ok(()),
            Input::TimerFired { n, timer } => self.timer_fired(n, timer),
            Input::Decided { n, decision } => self.decided(n, *decision),
            Input::Signalled { event, payload, keep } => self.signalled(event, payload, keep),
            Input::ChildEnded { n, attempt, outcome } => self.child_ended(n, attempt, outcome),
            Input::KeyFreed { n } => self.key_freed(n),
            Input::Pause { by, agent } => {
                self.pause(by, agent);
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

    /// Whether the decision may make another transition.
    pub(super) fn has_room(&self) -> bool {
        self.records.len() + self.reads < self.limit
            && self.bytes < SLICE_BYTES
            && self.budget.spent() < EVALUATION_COST
    }

    /// Makes the transitions that the run owes, as long as there is room.
    fn make_transitions(&mut self) -> DecideResult {
        while self.has_room() && !self.is_cut && !self.run.status.is_terminal() {
            let before = self.records.len();
            match (self.run.cancelling.clone(), self.run.owed.first().copied()) {
                (Some(cancelling), _) => self.cancel_run(cancelling.by, cancelling.reason),
                (None, Some(Turn { owing: Owing { n, block: None }, .. })) => self.continue_step(n)?,
                (None, Some(Turn { owing: Owing { n, block: Some(index) }, .. })) => {
                    self.continue_block(ScopeKey { n, index })?;
                }
                (None, None) => break,
            }
            // A transition without an event would be repeated forever.
            if self.records.len() == before && !self.is_cut {
                return Err(WorldError("a transition of the run has no events".to_owned()));
            }
        }
        Ok(())
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
            had_deadline: live.and_then(|live| live.deadline),
            had_claim: live.filter(|live| live.claim).and_then(|live| live.key.clone()),
            had_wait: matches!(phase, Some(Phase::Waiting { .. } | Phase::KeyWait)),
            had_gate: matches!(phase, Some(Phase::Gate { .. })),
            had_input_request: live
                .and_then(|live| live.open_request())
                .filter(|_| event.ends_step())
                .cloned(),
            had_child: live.and_then(|live| live.child()).map(Into::into),
            event,
            payload,
        };
        self.run.apply(self.plan, &record.event);
        let entered = || n.and_then(|n| self.run.live.get(&n)).map(|live| live.step);
        record.at = record.at.or_else(entered);
        self.buffer_value(&record);
        self.bytes += record.payload.as_ref().map_or(0, |payload| payload.json().len());
        self.records.push(record);
    }

    /// Keeps a value for expressions that read it before it is in the store.
    fn buffer_value(&mut self, record: &Record) {
        let (Some(payload), Some(step)) = (&record.payload, record.event.step()) else { return };
        match record.event.value() {
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
        StepInfo { id: step.id.clone(), kind: step.kind.name().into(), scope }
    }

    pub(super) fn emit_started(&mut self, attempt: &Attempt, what: Started, payload: Option<Payload>) {
        let timeout = self.step(attempt.step).timeout_ms.and_then(|timeout| i64::try_from(timeout).ok());
        let until = timeout.map(|timeout| self.now().saturating_add(timeout));
        let place = self.step_info(attempt.scope, attempt.step);
        self.record(Event::StepStarted { step: attempt.step_ref.clone(), place, what, until }, payload);
    }

    /// Completes a step whose blocks have ended. Fails it if the output exceeds the limits.
    pub(super) fn complete(&mut self, n: u32, output: Payload, from: Option<&str>) -> DecideResult {
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        if let Err(error) = output.fits() {
            return self.fail(n, error);
        }
        let event = Event::StepCompleted { step, output: output.hash(), from: from.map(Into::into) };
        self.record(event, Some(output));
        Ok(())
    }

    /// Fails a step without further attempts. Its `on_error` decides how the block continues.
    pub(super) fn fail(&mut self, n: u32, error: Failure) -> DecideResult {
        self.end_step(n, Ending::Failed { error })
    }

    /// Skips a step; its block continues.
    pub(super) fn skip(&mut self, n: u32, reason: &str) -> DecideResult {
        self.end_step(n, Ending::Skipped { reason: reason.into() })
    }

    /// Pauses a run that waits only for humans, and resumes it when that changes.
    fn settle_status(&mut self) {
        let run = &self.run;
        let is_over = run.status.is_terminal() || run.cancelling.is_some();
        if is_over || run.status == RunStatus::Interrupted || run.is_held() {
            return;
        }
        let waits = run.attention > 0 && run.moving == 0 && run.owed.is_empty();
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

    /// Starts the ready steps, until all slots are in use or the decision is full.
    fn begin_ready(&mut self) -> DecideResult {
        self.full = false;
        self.run.scratch.has_untried = false;
        let mut after = Bound::Unbounded;
        while !self.full && self.may_begin_ready() {
            let Some(ready) = self.run.ready.range((after, Bound::Unbounded)).next().copied() else { break };
            if !self.has_room() {
                self.run.scratch.has_untried = true;
                break;
            }
            let before = self.records.len();
            self.begin(ready.n)?;
            // Without an event, its server has no free slot or is unavailable, and the same holds for the step's other
            // executions.
            let is_refused = self.records.len() == before;
            after = Bound::Excluded(if is_refused { ReadyKey { n: u32::MAX, ..ready } } else { ready });
            self.make_transitions()?;
        }
        Ok(())
    }

    /// Whether ready steps may start. While transitions are owed, some of them may be about to be cancelled.
    fn may_begin_ready(&self) -> bool {
        !self.is_cut && !self.run.is_held() && !self.run.status.is_terminal() && !self.run.owes_continuation()
    }

    pub(super) fn begin_attempt(&mut self, attempt: &Attempt) -> DecideResult {
        let approved = self.is_approved(attempt.n());
        let step = self.step(attempt.step);
        if self.run.is_held() {
            self.hold(attempt);
            return Ok(());
        }
        if let Some(condition) = step.condition.as_ref().filter(|_| self.is_new(attempt.n())) {
            match self.holds(attempt.scope, &condition.when)? {
                Ok(true) => {}
                Ok(false) => return self.skip_before_start(attempt, &condition.written),
                Err(error) => return self.fail_before_start(attempt, error),
            }
        }
        let has_request = self.run.live.get(&attempt.n()).is_some_and(|live| live.input_response.is_some());
        if let Some(gate) = step.needs_human.as_deref().filter(|_| !approved && !has_request) {
            return self.request_approval(attempt, gate);
        }
        match &step.kind {
            Kind::Call(call) => self.begin_call(attempt, call),
            Kind::Foreach(foreach) => self.begin_foreach(attempt, foreach),
            Kind::Parallel(parallel) => {
                self.begin_parallel(attempt, parallel);
                Ok(())
            }
            Kind::Branch(branch) => self.begin_branch(attempt, branch),
            Kind::Approve(_) if approved => self.pass_gate(attempt.n()),
            Kind::Approve(approve) => self.begin_approve(attempt, approve),
            Kind::Sleep(sleep) => self.begin_sleep(attempt, sleep),
            Kind::Wait(wait) => self.begin_wait(attempt, wait),
            Kind::Workflow(workflow) => self.begin_workflow(attempt, workflow),
            Kind::Let(values) => self.begin_let(attempt, values),
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

    /// Whether an execution has only waited for a slot or for the end of a pause so far. Later attempts, and those after an
    /// approval, do not evaluate the condition of the step again.
    fn is_new(&self, n: u32) -> bool {
        self.run.live.get(&n).is_none_or(|live| {
            let is_untouched = !live.approved && live.input_response.is_none() && live.refusals == 0;
            live.phase == Phase::Ready && live.attempt == 1 && is_untouched
        })
    }

    /// Skips a step whose condition does not hold.
    fn skip_before_start(&mut self, attempt: &Attempt, condition: &str) -> DecideResult {
        self.emit_started(attempt, Started::Pass {}, None);
        let reason = limits::cut(format!("`if` does not hold: {condition}"), limits::FAILURE_BYTES);
        self.skip(attempt.n(), &reason)
    }

    /// Fails a step that could not start, for example because its arguments could not be evaluated.
    pub(super) fn fail_before_start(&mut self, attempt: &Attempt, error: Failure) -> DecideResult {
        self.emit_started(attempt, Started::Pass {}, None);
        self.fail(attempt.n(), error)
    }
}
