//! From step to step: entering blocks, transitions, the end of blocks and of the run.

use super::decide::{Decided, Decision, Entry, Task};
use super::event::Event;
use super::parts::{Next, ScopeKey, StepRef};
use super::state::{Phase, StepStatus};
use super::{Failure, FailureKind, Payload};
use crate::expr::StepIx;
use crate::plan::{BlockIx, Kind, Next as Leads, OnError, Plan, Target};

impl Decision<'_> {
    /// The block that is run in a scope.
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

    /// Begins the first steps of a block; a block without steps is over at once.
    pub(super) fn enter_block(&mut self, scope: ScopeKey) -> Decided {
        let Some(block) = self.block_of(scope) else { return Ok(()) };
        let plan = self.plan;
        for step in &plan.block(block).entry {
            self.enter(scope, *step)?;
        }
        if plan.block(block).entry.is_empty() {
            self.later(Task::Settle { scope });
        }
        Ok(())
    }

    /// Begins a step in a block.
    pub(super) fn enter(&mut self, scope: ScopeKey, step: StepIx) -> Decided {
        let limits = &self.plan.settings.limits;
        let visits = self.run.scopes.get(&scope).and_then(|scope| scope.visits.get(&step)).copied();
        let visits = visits.unwrap_or_default();
        let path = self.run.path(self.plan, scope, step);
        let too_many = if self.run.last_n >= limits.step_runs {
            Some(format!("the run has had {} step executions, its limit", limits.step_runs))
        } else if visits >= limits.loop_visits {
            let id = &self.step(step).id;
            Some(format!("`{id}` was entered {visits} times, the limit of a loop"))
        } else {
            None
        };
        if let Some(message) = too_many {
            let error = Failure::limit(message).caused_by(&path);
            self.later(Task::Fail { scope, error });
            return Ok(());
        }
        let step_ref = StepRef { n: self.run.last_n + 1, path: path.into(), attempt: 1 };
        self.begin_entry(&Entry { step_ref, scope, step })
    }

    /// A step ended; its block goes on with what follows.
    pub(super) fn advance(&mut self, scope: ScopeKey, step: StepIx, ended: &StepRef) -> Decided {
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
                    self.taken(ended, self.name_of(to));
                    self.go_to(scope, to)?;
                }
                Err(error) => self.later(Task::Fail { scope, error: error.caused_by(&ended.path) }),
            },
        }
        self.later(Task::Settle { scope });
        Ok(())
    }

    fn name_of(&self, to: Target) -> Next {
        match to {
            Target::Step(step) => Next::Step(self.step(step).id.clone()),
            Target::End => Next::End,
        }
    }

    pub(super) fn go_to(&mut self, scope: ScopeKey, to: Target) -> Decided {
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

    /// Begins the steps of a DAG for which everything that they need has ended.
    fn enter_dependents(&mut self, scope: ScopeKey, waiting: &[StepIx]) -> Decided {
        for step in waiting {
            let Some(state) = self.run.scopes.get(&scope) else { return Ok(()) };
            let ended =
                |need: &StepIx| state.done.get(need).is_some_and(|done| done.status != StepStatus::Cancelled);
            let begun = state.visits.contains_key(step);
            // The last need is the likeliest to be open: from the first, a wide join would be quadratic.
            if !begun && self.step(*step).needs.iter().rev().all(ended) {
                self.enter(scope, *step)?;
            }
        }
        Ok(())
    }

    /// A step failed for good: its `on_error` decides what becomes of its block.
    pub(super) fn after_failure(&mut self, scope: ScopeKey, at: StepIx, step: StepRef, error: Failure) {
        match self.step(at).on_error {
            OnError::Fail => self.later(Task::Fail { scope, error }),
            OnError::Continue => self.later(Task::Advance { scope, step: at, ended: step }),
            OnError::Goto(to) => {
                self.taken(&step, self.name_of(to));
                self.later(Task::GoTo { scope, to });
                self.later(Task::Settle { scope });
            }
        }
    }

    /// Ends a block if nothing in it is left to run.
    pub(super) fn settle_block(&mut self, scope: ScopeKey) -> Decided {
        let state = self.run.scopes.get(&scope);
        if state.is_some_and(|state| !state.live.is_empty()) || self.is_pending(scope) {
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

    /// A step of a block failed: the rest of the block is stopped, and what it belongs to is told.
    pub(super) fn fail_block(&mut self, scope: ScopeKey, error: Failure) -> Decided {
        self.cancel_scope(scope);
        self.forget(scope);
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

    fn complete_run(&mut self, last: Option<u32>) -> Decided {
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

    fn fail_run(&mut self, error: Failure) -> Decided {
        if self.plan.on_failure.is_none() || self.run.failing.is_some() {
            self.emit_failed(Some(error));
            return Ok(());
        }
        self.emit(Event::RunFailing { error });
        self.enter_block(ScopeKey::FAILURE)
    }

    fn emit_failed(&mut self, error: Option<Failure>) {
        let error = error.unwrap_or_else(|| Failure::new(FailureKind::ToolError, "the run failed"));
        self.emit(Event::RunFailed { error });
    }

    /// Stops everything in a block.
    pub(super) fn cancel_scope(&mut self, scope: ScopeKey) {
        let Some(state) = self.run.scopes.get(&scope) else { return };
        for n in state.live.clone() {
            self.cancel_step(n);
        }
    }

    /// Stops everything inside an execution.
    pub(super) fn cancel_blocks(&mut self, n: u32) {
        let Some(Phase::Blocks(progress)) = self.run.live.get(&n).map(|live| &live.phase) else { return };
        for index in progress.open.clone() {
            let scope = ScopeKey { n, index };
            self.cancel_scope(scope);
            self.forget(scope);
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
    Failure::new(FailureKind::Validation, "no condition held, and there is no `else`")
        .code("no_branch_matched")
}
