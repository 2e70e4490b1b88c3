//! Control flow: transitions between steps, and the end of blocks and of the run.

use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::owed::Transition;
use super::parts::{Ending, Next, ScopeKey, StepRef};
use super::phase::Phase;
use super::{Failure, FailureKind, Payload};
use crate::budget::Budget;
use crate::expr::StepIx;
use crate::plan::{Next as Leads, OnError, Target};

impl Decision<'_> {
    /// Makes the next transition of a block.
    pub(super) fn continue_block(&mut self, scope: ScopeKey) -> DecideResult {
        let Some(state) = self.run.scopes.get(&scope) else { return Ok(()) };
        if let Some(error) = &state.failing {
            let error = (**error).clone();
            self.fail_block(scope, error);
            return Ok(());
        }
        match state.owed.front().cloned() {
            Some(Transition::Enter(step)) => self.enter(scope, step),
            Some(Transition::Choose { step, ended }) => self.choose_next(scope, step, &ended),
            None => self.settle_block(scope),
        }
    }

    /// Starts a new execution of a step in a block, unless a limit of the run is reached.
    pub(super) fn enter(&mut self, scope: ScopeKey, step: StepIx) -> DecideResult {
        let limits = &self.plan.settings.limits;
        let visits = self.run.scopes.get(&scope).and_then(|scope| scope.visits.get(&step)).copied();
        let visits = visits.unwrap_or_default();
        let path = self.run.path(self.plan, scope, step);
        let exceeded = if self.run.last_n >= limits.step_runs {
            Some(format!("the run reached its limit of {} step executions", limits.step_runs))
        } else if visits >= limits.loop_visits {
            let id = &self.step(step).id;
            Some(format!("`{id}` reached the limit of {visits} loop visits"))
        } else {
            None
        };
        if let Some(message) = exceeded {
            // The limit stays exceeded, so the block fails also if its steps are cancelled in several decisions.
            self.fail_block(scope, Failure::limit(message).caused_by(&path));
            return Ok(());
        }
        let step_ref = StepRef { n: self.run.last_n + 1, path: path.into(), attempt: 1 };
        self.begin_attempt(&Attempt { step_ref, scope, step })
    }

    /// Takes the conditional transition of a step that ended.
    fn choose_next(&mut self, scope: ScopeKey, step: StepIx, ended: &StepRef) -> DecideResult {
        let plan = self.plan;
        let Leads::Choose { choices, otherwise } = &plan.step(step).next else { return Ok(()) };
        match self.choose(scope, choices, *otherwise)? {
            Ok(to) => self.emit_branch_taken(ended, self.name_of(to)),
            Err(error) => self.fail_block(scope, error.caused_by(&ended.path)),
        }
        Ok(())
    }

    fn name_of(&self, to: Target) -> Next {
        match to {
            Target::Step(step) => Next::Step(self.step(step).id.clone()),
            Target::End => Next::End,
        }
    }

    fn choose(
        &mut self,
        scope: ScopeKey,
        choices: &[crate::plan::Choice],
        otherwise: Option<Target>,
    ) -> Result<Result<Target, Failure>, super::WorldError> {
        for choice in choices {
            match self.holds(scope, &choice.when)? {
                Ok(true) => return Ok(Ok(choice.to)),
                Ok(false) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(otherwise.ok_or_else(no_branch_matched))
    }

    /// Ends a step after the executions in its blocks are cancelled. If they are too many for this decision, the next
    /// one continues.
    pub(super) fn end_step(&mut self, n: u32, ending: Ending) -> DecideResult {
        let is_over = self.cancel_inside(n);
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        if !is_over {
            if self.run.live.get(&n).is_some_and(|live| live.ending.is_none()) {
                self.emit(Event::StepEnding { step, how: ending });
            }
            return Ok(());
        }
        match ending {
            Ending::Failed { error } => {
                let at = self.run.live.get(&n).map(|live| self.step(live.step).on_error);
                self.emit(Event::StepFailed { step: step.clone(), error });
                if let Some(OnError::Goto(to)) = at {
                    self.emit_branch_taken(&step, self.name_of(to));
                }
                Ok(())
            }
            Ending::Skipped { reason } => {
                self.emit(Event::StepSkipped { step, reason });
                Ok(())
            }
            Ending::Completed { output, by } => self.complete(n, Payload::new(output), Some(&by)),
        }
    }

    /// Ends a block that has no steps left to run.
    fn settle_block(&mut self, scope: ScopeKey) -> DecideResult {
        let last = self.run.scopes.get(&scope).and_then(|state| state.last);
        match scope {
            ScopeKey::ROOT => self.complete_run(last),
            ScopeKey::FAILURE => {
                let error = self.run.failing.clone();
                self.emit_failed(error);
                Ok(())
            }
            _ => {
                self.block_ended(scope, last, None);
                Ok(())
            }
        }
    }

    /// Fails a block: cancels its other steps, then ends it or the run.
    fn fail_block(&mut self, scope: ScopeKey, error: Failure) {
        while let Some(n) = self.run.first_in(scope) {
            if !self.has_room() {
                return;
            }
            self.cancel_innermost(n);
        }
        match scope {
            ScopeKey::ROOT => self.fail_run(error),
            ScopeKey::FAILURE => {
                let first = self.run.failing.clone();
                self.emit_failed(first.or(Some(error)));
            }
            _ => self.block_ended(scope, None, Some(error)),
        }
    }

    fn complete_run(&mut self, last: Option<u32>) -> DecideResult {
        let plan = self.plan;
        let output = match &plan.output {
            Some(template) => match self.eval(ScopeKey::ROOT, template)? {
                Ok(value) => Payload::new(value),
                Err(error) => {
                    self.fail_run(error);
                    return Ok(());
                }
            },
            None => match last {
                Some(n) => self.output(n)?,
                None => Payload::default(),
            },
        };
        if let Err(error) = output.fits() {
            self.fail_run(error);
            return Ok(());
        }
        self.record(Event::RunCompleted { output: output.hash() }, Some(output));
        Ok(())
    }

    fn fail_run(&mut self, error: Failure) {
        if self.plan.on_failure.is_none() || self.run.failing.is_some() {
            self.emit_failed(Some(error));
        } else {
            self.emit(Event::RunFailing { error });
            // The run may have failed because the budget is exhausted. Its cleanup can still be evaluated.
            self.run.scratch.cost = 0;
            self.budget = Budget::decision(0);
        }
    }

    fn emit_failed(&mut self, error: Option<Failure>) {
        let error = error.unwrap_or_else(|| Failure::new(FailureKind::ToolError, "the run failed"));
        self.emit(Event::RunFailed { error });
    }

    /// Cancels the run and all of its steps. Later results are logged and change nothing. If the steps are too many for
    /// this decision, the next one continues.
    pub(super) fn cancel_run(&mut self, by: Option<Box<str>>, reason: Box<str>) {
        let is_over = self.cancel_inside(ScopeKey::ROOT.n);
        if is_over {
            self.emit(Event::RunCancelled { reason, by });
        } else if self.run.cancelling.is_none() {
            self.emit(Event::RunCancelling { reason, by });
        }
    }

    /// Cancels the executions in the blocks of an execution, as long as there is room. Returns whether none is left.
    fn cancel_inside(&mut self, n: u32) -> bool {
        loop {
            let Some(inner) = self.run.members_of(n).next() else { return true };
            if !self.has_room() {
                return false;
            }
            self.cancel_innermost(inner);
        }
    }

    /// Cancels an execution, or the first one in its blocks that has none inside.
    fn cancel_innermost(&mut self, n: u32) {
        let mut innermost = n;
        while let Some(inner) = self.run.members_of(innermost).next() {
            innermost = inner;
        }
        self.cancel_step(innermost);
    }

    fn cancel_step(&mut self, n: u32) {
        let Some(step) = self.run.step_ref(n) else { return };
        let in_flight = self.run.live.get(&n).is_some_and(|live| live.phase.is_call());
        self.emit(Event::StepCancelled { step, in_flight });
    }

    /// Handles a timer of a step that is about to be cancelled: without the timer, the step is cancelled now.
    pub(super) fn doomed_timer_fired(&mut self, n: u32) {
        if self.run.live.get(&n).is_some_and(|live| !live.phase.is_blocks()) {
            self.cancel_step(n);
        }
    }

    /// Handles the end of a call whose step is about to be cancelled: the step is cancelled first.
    pub(super) fn doomed_call_ended(&mut self, n: u32, attempt: u32, is_result: bool) {
        let Some(live) = self.run.live.get(&n).filter(|live| live.attempt == attempt) else { return };
        let is_call = matches!(live.phase, Phase::Calling | Phase::Stopping);
        if !live.phase.is_call() {
            return;
        }
        self.cancel_step(n);
        if is_result && is_call {
            self.late_result(n, attempt);
        }
    }
}

pub(super) fn no_branch_matched() -> Failure {
    Failure::new(FailureKind::Validation, "no condition matched, and there is no `else`")
        .code("no_branch_matched")
}
