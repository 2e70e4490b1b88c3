//! Control flow: entering blocks, transitions between steps, and the end of blocks and of the run.

use super::decide::{Attempt, DecideResult, Decision, Task};
use super::event::Event;
use super::parts::{Next, ScopeKey, StepRef};
use super::phase::Phase;
use super::state::StepStatus;
use super::{Failure, FailureKind, Payload};
use crate::budget::Budget;
use crate::expr::StepIx;
use crate::plan::{BlockIx, Kind, Next as Leads, OnError, Plan, Target};

impl Decision<'_> {
    /// Returns the block of the plan that a scope executes.
    pub(super) fn block_of(&self, scope: ScopeKey) -> Option<BlockIx> {
        match scope {
            ScopeKey::ROOT => Some(Plan::ROOT),
            ScopeKey::FAILURE => self.plan.on_failure,
            ScopeKey { n, index } => {
                let at = index as usize;
                match &self.live(n)?.1.kind {
                    Kind::Foreach(foreach) => Some(foreach.body),
                    Kind::Parallel(parallel) => parallel.branches.get(at).copied(),
                    Kind::Branch(branch) => branch.cases.get(at).map(|case| case.then).or(branch.otherwise),
                    _ => None,
                }
            }
        }
    }

    /// Starts the entry steps of a block. A block without steps ends at once.
    pub(super) fn enter_block(&mut self, scope: ScopeKey) -> DecideResult {
        let Some(block) = self.block_of(scope) else { return Ok(()) };
        let plan = self.plan;
        for step in &plan.block(block).entry {
            self.enter(scope, *step)?;
        }
        if plan.block(block).entry.is_empty() {
            self.enqueue(Task::Settle { scope });
        }
        Ok(())
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
            let error = Failure::limit(message).caused_by(&path);
            self.enqueue(Task::Fail { scope, error });
            return Ok(());
        }
        let step_ref = StepRef { n: self.run.last_n + 1, path: path.into(), attempt: 1 };
        self.begin_attempt(&Attempt { step_ref, scope, step })
    }

    /// Continues a block after a step ended.
    pub(super) fn advance(&mut self, scope: ScopeKey, step: StepIx, ended: &StepRef) -> DecideResult {
        if !self.run.scopes.contains_key(&scope) {
            return Ok(());
        }
        let plan = self.plan;
        match &plan.step(step).next {
            Leads::End => {}
            Leads::Step(next) => self.enter(scope, *next)?,
            Leads::Dependents(waiting) => self.enter_dependents(scope, waiting)?,
            Leads::Choose { choices, otherwise } => match self.choose(scope, choices, *otherwise)? {
                Ok(to) => {
                    self.emit_branch_taken(ended, self.name_of(to));
                    self.go_to(scope, to)?;
                }
                Err(error) => self.enqueue(Task::Fail { scope, error: error.caused_by(&ended.path) }),
            },
        }
        self.enqueue(Task::Settle { scope });
        Ok(())
    }

    fn name_of(&self, to: Target) -> Next {
        match to {
            Target::Step(step) => Next::Step(self.step(step).id.clone()),
            Target::End => Next::End,
        }
    }

    pub(super) fn go_to(&mut self, scope: ScopeKey, to: Target) -> DecideResult {
        match to {
            Target::Step(step) => self.enter(scope, step),
            Target::End => Ok(()),
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

    /// Starts the steps of a DAG whose dependencies have all ended.
    fn enter_dependents(&mut self, scope: ScopeKey, waiting: &[StepIx]) -> DecideResult {
        for step in waiting {
            let Some(state) = self.run.scopes.get(&scope) else { return Ok(()) };
            let ended =
                |need: &StepIx| state.done.get(need).is_some_and(|done| done.status != StepStatus::Cancelled);
            let begun = state.visits.contains_key(step);
            // The last dependency is the most likely to be open. Checked in order, a wide join would be quadratic.
            if !begun && self.step(*step).needs.iter().rev().all(ended) {
                self.enter(scope, *step)?;
            }
        }
        Ok(())
    }

    /// Continues or fails a block after a step failed, as the step's `on_error` says.
    pub(super) fn after_failure(&mut self, scope: ScopeKey, at: StepIx, step: StepRef, error: Failure) {
        match self.step(at).on_error {
            OnError::Fail => self.enqueue(Task::Fail { scope, error }),
            OnError::Continue => self.enqueue(Task::Advance { scope, step: at, ended: step }),
            OnError::Goto(to) => {
                self.emit_branch_taken(&step, self.name_of(to));
                self.enqueue(Task::GoTo { scope, to });
                self.enqueue(Task::Settle { scope });
            }
        }
    }

    /// Ends a block if it has no steps left to run.
    pub(super) fn settle_block(&mut self, scope: ScopeKey) -> DecideResult {
        let state = self.run.scopes.get(&scope);
        if state.is_some_and(|state| !state.live.is_empty()) || self.has_tasks(scope) {
            return Ok(());
        }
        let last = state.and_then(|state| state.last);
        match scope {
            ScopeKey::ROOT => self.complete_run(last),
            ScopeKey::FAILURE => {
                let error = self.run.failing.clone();
                self.emit_failed(error);
                Ok(())
            }
            _ => self.block_ended(scope, last, None),
        }
    }

    /// Fails a block: cancels its other steps and ends the enclosing step or the run.
    pub(super) fn fail_block(&mut self, scope: ScopeKey, error: Failure) -> DecideResult {
        self.cancel_scope(scope);
        self.drop_tasks(scope);
        match scope {
            ScopeKey::ROOT => self.fail_run(error),
            ScopeKey::FAILURE => {
                let first = self.run.failing.clone();
                self.emit_failed(first.or(Some(error)));
                Ok(())
            }
            _ => self.block_ended(scope, None, Some(error)),
        }
    }

    fn complete_run(&mut self, last: Option<u32>) -> DecideResult {
        let plan = self.plan;
        let output = match &plan.output {
            Some(template) => match self.eval(ScopeKey::ROOT, template)? {
                Ok(value) => Payload::new(value),
                Err(error) => return self.fail_run(error),
            },
            None => match last {
                Some(n) => self.output(n)?,
                None => Payload::default(),
            },
        };
        if let Err(error) = output.fits() {
            return self.fail_run(error);
        }
        self.record(Event::RunCompleted { output: output.hash() }, Some(output));
        Ok(())
    }

    fn fail_run(&mut self, error: Failure) -> DecideResult {
        if self.plan.on_failure.is_none() || self.run.failing.is_some() {
            self.emit_failed(Some(error));
            return Ok(());
        }
        self.emit(Event::RunFailing { error });
        // The run may have failed because the budget is exhausted. Its cleanup can still be evaluated.
        self.budget = Budget::decision();
        self.enter_block(ScopeKey::FAILURE)
    }

    fn emit_failed(&mut self, error: Option<Failure>) {
        let error = error.unwrap_or_else(|| Failure::new(FailureKind::ToolError, "the run failed"));
        self.emit(Event::RunFailed { error });
    }

    /// Cancels all steps in a scope.
    pub(super) fn cancel_scope(&mut self, scope: ScopeKey) {
        let Some(state) = self.run.scopes.get(&scope) else { return };
        for n in state.live.clone() {
            self.cancel_step(n);
        }
    }

    /// Cancels all steps in the blocks of an execution.
    pub(super) fn cancel_blocks(&mut self, n: u32) {
        let Some(Phase::Blocks(progress)) = self.run.live.get(&n).map(|live| &live.phase) else { return };
        for index in progress.open.clone() {
            let scope = ScopeKey { n, index };
            self.cancel_scope(scope);
            self.drop_tasks(scope);
        }
    }

    fn cancel_step(&mut self, n: u32) {
        self.cancel_blocks(n);
        let Some(step) = self.run.step_ref(n) else { return };
        let in_flight = self.run.live.get(&n).is_some_and(|live| live.phase.is_call());
        self.emit(Event::StepCancelled { step, in_flight });
    }
}

pub(super) fn no_branch_matched() -> Failure {
    Failure::new(FailureKind::Validation, "no condition matched, and there is no `else`")
        .code("no_branch_matched")
}
