//! Which calls an approval guards, and which gates an intervention would pass.

use std::collections::{BTreeMap, HashSet};

use super::{BlockIx, Gate, Kind, Next, OnDeny, OnError, Plan, StepIx, Target};
use crate::limits::{GUARD_SEARCH, GUARDED_CALLS};

/// Fills in the calls and sub-workflows that each `approve` step guards.
pub(super) fn find_guarded(plan: &mut Plan) {
    let mut visits = GUARD_SEARCH;
    for at in 0..plan.steps.len() {
        let Ok(step) = u32::try_from(at).map(StepIx) else { return };
        if matches!(plan.step(step).kind, Kind::Approve(_)) {
            let guards = plan.guarded_by(step, &mut visits);
            if let Kind::Approve(approve) = &mut plan.steps[at].kind {
                approve.guards = guards.into();
            }
        }
    }
}

impl Plan {
    /// The calls and sub-workflows that run after a gate and before the next one, in source order. One more than
    /// [`GUARDED_CALLS`] shows that there are more.
    fn guarded_by(&self, gate: StepIx, visits: &mut usize) -> Vec<StepIx> {
        let mut found = Vec::new();
        self.walk_after(gate, &mut |step| {
            *visits = visits.saturating_sub(1);
            match &self.step(step).kind {
                Kind::Approve(_) => return Walk::Stop,
                Kind::Call(_) | Kind::Workflow(_) => found.push(step),
                Kind::Foreach(_)
                | Kind::Parallel(_)
                | Kind::Branch(_)
                | Kind::Sleep(_)
                | Kind::Wait(_)
                | Kind::Let(_)
                | Kind::Pass => {}
            }
            if found.len() > GUARDED_CALLS || *visits == 0 { Walk::End } else { Walk::On }
        });
        found.sort_unstable();
        found
    }

    /// Gates of a step itself: its `needs_human`, and the approval of an `approve` step.
    pub fn gates_of(&self, step: StepIx) -> impl Iterator<Item = &Gate> {
        let step = self.step(step);
        let approve = if let Kind::Approve(approve) = &step.kind { Some(&approve.gate) } else { None };
        step.needs_human.as_deref().into_iter().chain(approve)
    }

    /// Full names of the tools that steps call, and that verify calls with an unknown outcome.
    pub fn tools(&self) -> impl Iterator<Item = &str> {
        let calls = self.steps.iter().filter_map(|step| match &step.kind {
            Kind::Call(call) => Some(call),
            _ => None,
        });
        calls.flat_map(|call| [Some(&*call.name), call.verify.as_ref().map(|verify| &*verify.tool)]).flatten()
    }

    /// Whether the way that a run takes depends on values.
    pub fn has_choices(&self) -> bool {
        let chooses = |step: &super::Step| {
            matches!(step.kind, Kind::Branch(_))
                || matches!(step.next, Next::Choose { .. })
                || step.condition.is_some()
        };
        self.steps.iter().any(chooses)
    }

    /// All steps, in source order.
    pub fn all_steps(&self) -> impl Iterator<Item = StepIx> + use<> {
        (0..u32::try_from(self.steps.len()).unwrap_or(u32::MAX)).map(StepIx)
    }

    /// A step and all steps inside its blocks.
    pub fn within(&self, step: StepIx) -> Vec<StepIx> {
        let mut found = vec![step];
        let mut at = 0;
        while let Some(step) = found.get(at).copied() {
            for block in self.blocks_of(step) {
                found.extend(&self.block(block).steps);
            }
            at += 1;
        }
        found
    }

    /// All steps that can run after a step, in any order.
    pub fn after(&self, step: StepIx) -> Vec<StepIx> {
        let mut found = Vec::new();
        self.walk_after(step, &mut |step| {
            found.push(step);
            Walk::On
        });
        found
    }

    /// All steps after which a step can run. The gates among them have approved what it does.
    pub fn before(&self, target: StepIx) -> Vec<StepIx> {
        let mut predecessors: BTreeMap<StepIx, Vec<StepIx>> = BTreeMap::new();
        for step in self.all_steps() {
            for next in self.successors(step).into_iter().chain(self.entries(step)) {
                predecessors.entry(next).or_default().push(step);
            }
        }
        let (mut seen, mut found) = (HashSet::from([target]), vec![target]);
        let mut at = 0;
        while let Some(step) = found.get(at) {
            let earlier = predecessors.get(step).into_iter().flatten().copied();
            found.extend(earlier.filter(|step| seen.insert(*step)).collect::<Vec<_>>());
            at += 1;
        }
        found.split_off(1)
    }

    /// The steps with which the blocks of a step start.
    fn entries(&self, step: StepIx) -> impl Iterator<Item = StepIx> {
        self.blocks_of(step).into_iter().flat_map(|block| self.block(block).entry.iter().copied())
    }

    /// The blocks that a step owns.
    fn blocks_of(&self, step: StepIx) -> Vec<BlockIx> {
        match &self.step(step).kind {
            Kind::Foreach(foreach) => vec![foreach.body],
            Kind::Parallel(parallel) => parallel.branches.clone(),
            Kind::Branch(branch) => {
                branch.cases.iter().map(|case| case.then).chain(branch.otherwise).collect()
            }
            Kind::Call(_)
            | Kind::Approve(_)
            | Kind::Sleep(_)
            | Kind::Wait(_)
            | Kind::Workflow(_)
            | Kind::Let(_)
            | Kind::Pass => Vec::new(),
        }
    }

    /// Visits the steps that can run after a step, each once. A block that contains the step counts as ended after it.
    fn walk_after(&self, start: StepIx, visit: &mut dyn FnMut(StepIx) -> Walk) {
        let (mut seen, mut open) = (HashSet::new(), self.successors(start));
        while let Some(step) = open.pop() {
            if !seen.insert(step) {
                continue;
            }
            match visit(step) {
                Walk::On => {
                    open.extend(self.entries(step));
                    open.extend(self.successors(step));
                }
                Walk::Stop => {}
                Walk::End => return,
            }
        }
    }

    /// The steps that can directly follow a step, including those after the blocks that contain it.
    fn successors(&self, step: StepIx) -> Vec<StepIx> {
        let mut found = Vec::new();
        let mut at = Some(step);
        while let Some(step) = at {
            self.targets(step, &mut found);
            at = self.block(self.step(step).block).owner;
        }
        found
    }

    fn targets(&self, step: StepIx, found: &mut Vec<StepIx>) {
        let step = self.step(step);
        let mut target = |to: Target| {
            if let Target::Step(step) = to {
                found.push(step);
            }
        };
        match &step.next {
            Next::End => {}
            Next::Step(next) => target(Target::Step(*next)),
            Next::Dependents(dependents) => dependents.iter().for_each(|next| target(Target::Step(*next))),
            Next::Choose { choices, otherwise } => {
                choices.iter().map(|choice| choice.to).chain(*otherwise).for_each(&mut target);
            }
        }
        if let OnError::Goto(to) = step.on_error {
            target(to);
        }
        if let Kind::Approve(approve) = &step.kind {
            if let OnDeny::Goto(to) = approve.on_deny {
                target(to);
            }
            approve.on_timeout.into_iter().for_each(target);
        }
    }
}

/// How a walk continues after a step.
enum Walk {
    /// With the steps that follow it.
    On,
    /// Not beyond it.
    Stop,
    /// Not at all.
    End,
}
