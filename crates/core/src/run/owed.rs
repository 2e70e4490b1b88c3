//! Transitions that a run owes: they follow from its events and are not in the log yet. They are derived from the
//! events alone, so a decision can end after any transition, and a later one continues.

use serde_json::Value;

use super::Failure;
use super::parts::{Next, ScopeKey, StepRef};
use super::phase::{Phase, Progress};
use super::state::{BlockState, Live, Run, StepStatus};
use crate::expr::StepIx;
use crate::plan::{BlockIx, Kind, Next as Leads, OnDeny, OnError, Plan, Target};
use crate::steps::OnFail;

/// A step or block that has a transition to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owing {
    /// The step execution.
    pub n: u32,
    /// The number of its block; `None` for the step itself.
    pub block: Option<u32>,
}

impl Owing {
    fn step(n: u32) -> Self {
        Self { n, block: None }
    }

    fn block(scope: ScopeKey) -> Self {
        Self { n: scope.n, block: Some(scope.index) }
    }
}

/// The order of transitions. Those that end a step or block early come first, outer ones before inner ones, so that no
/// step continues in a block that is about to be cancelled. The others follow in the order in which they became due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub urgency: Urgency,
    /// Sequence number of the event that made it due; 0 for early ends.
    pub since: u64,
    pub owing: Owing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// A step or block ends early.
    Ends,
    Continues,
}

/// A transition of a block.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Transition {
    /// A step starts.
    Enter(StepIx),
    /// A step ended, and a condition decides which one follows.
    Choose {
        /// The step in the plan.
        step: StepIx,
        /// The attempt that ended.
        ended: StepRef,
    },
}

/// The state that a decision at its limit leaves for the next one. It can be lost: a run that is rebuilt from its log
/// reads and tries again from the start.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    /// Results of the blocks of a step, as far as they were read.
    pub collected: Collected,
    /// Whether ready steps are left that were not tried.
    pub has_untried: bool,
    /// Cost of the evaluations that followed from the last input, in units.
    pub cost: u64,
}

/// Results of the blocks of a step.
#[derive(Debug, Clone, Default)]
pub(super) struct Collected {
    /// The step execution.
    pub n: u32,
    /// The results in the order of the blocks.
    pub values: Vec<Value>,
    /// Size of the results as JSON.
    pub bytes: usize,
}

impl PartialEq for Scratch {
    /// The scratch state is not compared.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Run {
    /// Returns the block of the plan that a scope executes.
    pub(super) fn block_of(&self, plan: &Plan, scope: ScopeKey) -> Option<BlockIx> {
        match scope {
            ScopeKey::ROOT => Some(Plan::ROOT),
            ScopeKey::FAILURE => plan.on_failure,
            ScopeKey { n, index } => {
                let at = index as usize;
                match &plan.step(self.live.get(&n)?.step).kind {
                    Kind::Foreach(foreach) => Some(foreach.body),
                    Kind::Parallel(parallel) => parallel.branches.get(at).copied(),
                    Kind::Branch(branch) => branch.cases.get(at).map(|case| case.then).or(branch.otherwise),
                    _ => None,
                }
            }
        }
    }

    /// The executions in the blocks of an execution, without those in blocks further inside.
    pub(super) fn members_of(&self, n: u32) -> impl Iterator<Item = u32> + '_ {
        let first = (ScopeKey { n, index: 0 }, 0);
        let last = (ScopeKey { n, index: u32::MAX }, u32::MAX);
        self.members.range(first..=last).map(|(_, member)| *member)
    }

    /// The first execution in a block.
    pub(super) fn first_in(&self, scope: ScopeKey) -> Option<u32> {
        self.members.range((scope, 0)..=(scope, u32::MAX)).next().map(|(_, member)| *member)
    }

    /// Whether an execution is about to be cancelled, because its run, an enclosing step or a block ends early.
    pub(super) fn is_doomed(&self, n: u32) -> bool {
        let mut at = n;
        while let Some(live) = self.live.get(&at) {
            let fails = self.scopes.get(&live.scope).is_some_and(|scope| scope.failing.is_some());
            if self.cancelling.is_some() || live.ending.is_some() || fails {
                return true;
            }
            at = live.scope.n;
        }
        false
    }

    /// Opens a block: its entry steps start, except `entered`, which has started.
    pub(super) fn open_block(&mut self, plan: &Plan, scope: ScopeKey, entered: Option<StepIx>) {
        let entry = self.block_of(plan, scope).map(|block| &plan.block(block).entry);
        let steps = entry.into_iter().flatten().filter(|step| Some(**step) != entered);
        let state = self.scopes.entry(scope).or_default();
        state.owed.extend(steps.map(|step| Transition::Enter(*step)));
        self.block_changed(scope);
    }

    /// A step of a block started: its transition is made.
    pub(super) fn entered(&mut self, scope: ScopeKey, step: StepIx) {
        if let Some(state) = self.scopes.get_mut(&scope)
            && let Some(at) = state.owed.iter().position(|owed| *owed == Transition::Enter(step))
        {
            state.owed.remove(at);
        }
        self.block_changed(scope);
    }

    /// The target of a conditional transition was chosen.
    pub(super) fn choice_taken(&mut self, plan: &Plan, n: u32, to: &Next) {
        let Some(scope) = self.choices.remove(&n) else { return };
        let Some(state) = self.scopes.get_mut(&scope) else { return };
        state.owed.retain(|owed| !matches!(owed, Transition::Choose { ended, .. } if ended.n == n));
        if let Next::Step(id) = to {
            state.owed.extend(plan.find(id).map(Transition::Enter));
        }
        self.block_changed(scope);
    }

    /// A step of a block ended: notes the transitions that follow.
    pub(super) fn step_ended(
        &mut self,
        plan: &Plan,
        (live, step): (&Live, &StepRef),
        status: StepStatus,
        error: Option<&Failure>,
    ) {
        let Some(state) = self.scopes.get_mut(&live.scope) else { return };
        match status {
            StepStatus::Failed => match plan.step(live.step).on_error {
                OnError::Fail => {
                    let error = error.cloned().map(|error| Box::new(error.caused_by(&step.path)));
                    state.failing = state.failing.take().or(error);
                }
                OnError::Continue => self.advance(plan, live, step),
                OnError::Goto(to) => state.go_to(to),
            },
            StepStatus::Done => match &plan.step(live.step).kind {
                Kind::Approve(approve) if live.denied => match approve.after_denial(live.goes_elsewhere) {
                    OnDeny::Goto(to) => state.go_to(to),
                    OnDeny::Cancel | OnDeny::Fail | OnDeny::Continue => self.advance(plan, live, step),
                },
                _ => self.advance(plan, live, step),
            },
            StepStatus::Skipped => self.advance(plan, live, step),
            StepStatus::Cancelled
            | StepStatus::Pending
            | StepStatus::Ready
            | StepStatus::Running
            | StepStatus::Waiting
            | StepStatus::Uncertain => {}
        }
        self.block_changed(live.scope);
    }

    /// Notes the transitions to the steps after one that ended.
    fn advance(&mut self, plan: &Plan, live: &Live, ended: &StepRef) {
        let Some(state) = self.scopes.get_mut(&live.scope) else { return };
        match &plan.step(live.step).next {
            Leads::End => {}
            Leads::Step(next) => state.owed.push_back(Transition::Enter(*next)),
            Leads::Dependents(waiting) => state.enter_dependents(plan, waiting),
            Leads::Choose { .. } => {
                state.owed.push_back(Transition::Choose { step: live.step, ended: ended.clone() });
                self.choices.insert(ended.n, live.scope);
            }
        }
    }

    /// Notes whether a block has a transition to make.
    pub(super) fn block_changed(&mut self, scope: ScopeKey) {
        // The steps of the definition are over when those of `on_failure` run.
        let is_over = scope == ScopeKey::ROOT && self.failing.is_some();
        let state = self.scopes.get(&scope).filter(|_| !is_over);
        let urgency = state.and_then(|state| {
            let continues = !state.owed.is_empty() || self.first_in(scope).is_none();
            let ends = state.failing.as_ref().map(|_| Urgency::Ends);
            ends.or(continues.then_some(Urgency::Continues))
        });
        self.set_owed(Owing::block(scope), urgency);
    }

    /// Notes whether a step has to enter blocks, or ends because its blocks have.
    pub(super) fn blocks_changed(&mut self, plan: &Plan, n: u32) {
        let urgency = self.live.get(&n).and_then(|live| match &live.phase {
            Phase::Blocks(_) if live.ending.is_some() => Some(Urgency::Ends),
            Phase::Blocks(progress) => {
                let continues = progress.is_complete() || progress.may_enter(plan, live.step);
                continues.then_some(Urgency::Continues)
            }
            _ => None,
        });
        self.set_owed(Owing::step(n), urgency);
    }

    /// Sets the turn of a step or block. One that has a turn of the same urgency keeps it.
    fn set_owed(&mut self, owing: Owing, urgency: Option<Urgency>) {
        let before = self.turns.get(&owing).map(|turn| turn.urgency);
        if before == urgency {
            return;
        }
        if let Some(turn) = self.turns.remove(&owing) {
            self.owed.remove(&turn);
        }
        if let Some(urgency) = urgency {
            let since = if urgency == Urgency::Ends { 0 } else { self.seq };
            let turn = Turn { urgency, since, owing };
            self.owed.insert(turn);
            self.turns.insert(owing, turn);
        }
    }

    /// Forgets the transitions of a block that ends.
    pub(super) fn drop_transitions(&mut self, scope: ScopeKey, state: &BlockState) {
        self.set_owed(Owing::block(scope), None);
        for owed in &state.owed {
            if let Transition::Choose { ended, .. } = owed {
                self.choices.remove(&ended.n);
            }
        }
    }

    /// Forgets the transitions of a step that ended.
    pub(super) fn drop_step(&mut self, n: u32) {
        self.set_owed(Owing::step(n), None);
    }
}

impl BlockState {
    fn go_to(&mut self, to: Target) {
        if let Target::Step(step) = to {
            self.owed.push_back(Transition::Enter(step));
        }
    }

    /// Notes the steps of a DAG whose dependencies have all ended. The last dependency ends once, so none is noted twice.
    fn enter_dependents(&mut self, plan: &Plan, waiting: &[StepIx]) {
        for step in waiting {
            let ended =
                |need: &StepIx| self.done.get(need).is_some_and(|done| done.status != StepStatus::Cancelled);
            let begun = self.visits.contains_key(step);
            // The last dependency is the most likely to be open. Checked in order, a wide join would be quadratic.
            if !begun && plan.step(*step).needs.iter().rev().all(ended) {
                self.owed.push_back(Transition::Enter(*step));
            }
        }
    }
}

impl Progress {
    /// Whether all blocks have ended.
    pub(super) fn is_complete(&self) -> bool {
        self.ended >= self.total
    }

    /// Whether another block can be entered: there is one, and the concurrency of the step allows it.
    pub(super) fn may_enter(&self, plan: &Plan, step: StepIx) -> bool {
        let concurrency = match &plan.step(step).kind {
            Kind::Foreach(foreach) => foreach.concurrency,
            Kind::Parallel(parallel) => parallel.concurrency.unwrap_or(u32::MAX),
            _ => 1,
        };
        self.next < self.total && self.open.len() < concurrency as usize
    }
}

/// Whether a step continues after one of its blocks failed.
pub(super) fn tolerates_failures(plan: &Plan, step: StepIx) -> bool {
    let on_fail = match &plan.step(step).kind {
        Kind::Foreach(foreach) => foreach.on_item_fail,
        Kind::Parallel(parallel) => parallel.on_any_fail,
        _ => OnFail::Abort,
    };
    on_fail == OnFail::Continue
}
