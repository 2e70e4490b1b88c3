//! The order of steps: resolves `depends_on`, finds cycles, and checks that references read earlier steps.

use std::collections::{HashSet, VecDeque};

use super::outline::{Flow, Outline};
use super::{BlockIx, StepIx};
use crate::diagnostic::{Code, Diagnostic, Diagnostics, nearest};
use crate::spec::step::Kind;
use crate::spec::value::Text;

/// Resolves `depends_on` of all steps. Reports unknown steps and dependency cycles.
pub(super) fn resolve_dependencies(outline: &mut Outline, out: &mut Diagnostics) {
    for step in (0..outline.steps.len()).map(|at| StepIx(super::outline::index(at))) {
        let own = outline.step(step);
        if outline.block(own.block).flow != Flow::Dag {
            continue;
        }
        let names = own.spec.and_then(|spec| spec.common.depends_on.as_ref());
        let mut dependencies = Vec::new();
        for name in names.iter().flat_map(|names| &names.0) {
            match dependency(outline, step, name, !out.is_full()) {
                Ok(dependency) if dependencies.contains(&dependency) => {}
                Ok(dependency) => dependencies.push(dependency),
                Err(diagnostic) => out.push(Diagnostic { step: Some(own.id.to_owned()), ..diagnostic }),
            }
        }
        outline.steps[step.index()].predecessors = dependencies;
    }
    for block in &outline.blocks {
        if block.flow == Flow::Dag {
            report_cycles(outline, &block.steps, out);
        }
    }
}

fn dependency(outline: &Outline, step: StepIx, name: &Text, hints: bool) -> Result<StepIx, Diagnostic> {
    let block = outline.block(outline.step(step).block);
    let siblings = || block.steps.iter().map(|step| outline.step(*step).id);
    match outline.ids.get(name.as_str()) {
        None => {
            let diagnostic =
                Diagnostic::new(Code::UnknownStep, name.span, format!("there is no step `{}`", name.value));
            let near = if hints { nearest(name, siblings()) } else { None };
            Err(match near {
                Some(near) => diagnostic.hint(format!("did you mean `{near}`?")),
                None => diagnostic,
            })
        }
        Some(found) if outline.step(*found).block != outline.step(step).block => {
            let message = format!("`{}` is not in the same list of steps", name.value);
            let diagnostic = Diagnostic::new(Code::UnknownStep, name.span, message);
            Err(diagnostic.hint("depend on the block that contains it"))
        }
        Some(found) => Ok(*found),
    }
}

/// Reports dependency cycles: removes steps without dependencies until none is left (Kahn's algorithm); each
/// remaining step is in a cycle or depends on one.
fn report_cycles(outline: &Outline, steps: &[StepIx], out: &mut Diagnostics) {
    let at = |step: StepIx| outline.step(step).position;
    let mut waits: Vec<usize> = steps.iter().map(|step| outline.step(*step).predecessors.len()).collect();
    let mut dependents: Vec<Vec<StepIx>> = vec![Vec::new(); steps.len()];
    for step in steps {
        outline
            .step(*step)
            .predecessors
            .iter()
            .for_each(|dependency| dependents[at(*dependency)].push(*step));
    }
    let mut queue: VecDeque<StepIx> = steps.iter().copied().filter(|step| waits[at(*step)] == 0).collect();
    while let Some(step) = queue.pop_front() {
        for dependent in &dependents[at(step)] {
            waits[at(*dependent)] -= 1;
            if waits[at(*dependent)] == 0 {
                queue.push_back(*dependent);
            }
        }
    }
    let mut seen = HashSet::new();
    for stuck in steps.iter().copied().filter(|step| waits[at(*step)] > 0) {
        if let Some(cycle) = find_cycle(outline, stuck, &waits, &mut seen) {
            report_cycle(outline, &cycle, out);
        }
    }
}

fn report_cycle(outline: &Outline, cycle: &[StepIx], out: &mut Diagnostics) {
    let path: Vec<&str> = cycle.iter().chain(cycle.first()).map(|step| outline.step(*step).id).collect();
    let Some(first) = cycle.first().map(|step| outline.step(*step)) else { return };
    let span = first.spec.map_or_else(Default::default, |spec| {
        spec.common.depends_on.as_ref().and_then(|names| names.0.first()).map_or(spec.span, |name| name.span)
    });
    let message = format!("dependency cycle: {}", path.join(" → "));
    let diagnostic = Diagnostic::new(Code::DependencyCycle, span, message);
    let step = Some(first.id.to_owned());
    out.push(Diagnostic { step, ..diagnostic.hint("remove one of the dependencies") });
}

/// Follows remaining dependencies until a step repeats. Returns `None` if an earlier search visited the cycle.
fn find_cycle(
    outline: &Outline,
    start: StepIx,
    waits: &[usize],
    seen: &mut HashSet<StepIx>,
) -> Option<Vec<StepIx>> {
    let mut path = vec![start];
    let mut here = start;
    while seen.insert(here) {
        let unmet = |step: &&StepIx| waits[outline.step(**step).position] > 0;
        here = *outline.step(here).predecessors.iter().find(unmet)?;
        path.push(here);
    }
    let from = path[..path.len() - 1].iter().position(|step| *step == here)?;
    path.pop();
    Some(path.split_off(from))
}

/// Why a reference to a step can never have a value.
pub(super) enum Unavailable {
    /// The step never runs before the reference is evaluated, for this reason.
    Never(&'static str),
    /// The step is inside this loop, and the reference outside.
    InsideLoop(StepIx),
}

/// Checks that the step `target` can have run before the step `from`, or before the end of the run if `from`
/// is `None`.
pub(super) fn availability(
    outline: &Outline,
    from: Option<StepIx>,
    target: StepIx,
    reachability: &mut Reachability,
) -> Result<(), Unavailable> {
    let Some(from) = from else {
        let (root, _) = leave_blocks(outline, target, None)?;
        let only_on_failure = outline.on_failure == Some(root);
        return if only_on_failure { Err(Unavailable::Never(ON_FAILURE)) } else { Ok(()) };
    };
    let own = outline.step(from);
    if own.predecessors.contains(&target) {
        return Ok(());
    }
    let mut enclosing: Vec<(BlockIx, StepIx)> = vec![(own.block, from)];
    while let Some(owner) = enclosing.last().and_then(|(block, _)| outline.block(*block).owner) {
        enclosing.push((outline.step(owner).block, owner));
    }
    let (block, target_there) = leave_blocks(outline, target, Some(&enclosing))?;
    let Some((_, from_there)) = enclosing.iter().find(|(shared, _)| *shared == block) else {
        // Different roots: `on_failure` runs after the steps of the definition.
        let from_failure = enclosing.last().is_some_and(|(root, _)| outline.on_failure == Some(*root));
        return if from_failure { Ok(()) } else { Err(Unavailable::Never(ON_FAILURE)) };
    };
    let contained = target_there != target || *from_there != from;
    if target == from && outline.block(block).flow != Flow::Graph {
        return Err(Unavailable::Never("it is this step itself"));
    }
    if target_there == *from_there && contained {
        return Err(Unavailable::Never(never_reason(outline, target, from, target_there)));
    }
    if reachability.precedes(outline, block, target_there, *from_there) {
        return Ok(());
    }
    Err(Unavailable::Never(match outline.block(block).flow {
        Flow::Sequence => "it comes later",
        Flow::Dag => "this step does not depend on it",
        Flow::Graph => "no transition leads from it to this step",
    }))
}

/// Moves outwards from a step to the first block that also encloses the reference, or to the root.
fn leave_blocks(
    outline: &Outline,
    target: StepIx,
    enclosing: Option<&[(BlockIx, StepIx)]>,
) -> Result<(BlockIx, StepIx), Unavailable> {
    let mut step = target;
    loop {
        let block = outline.step(step).block;
        let shared = enclosing.is_some_and(|enclosing| enclosing.iter().any(|(other, _)| *other == block));
        let Some(owner) = outline.block(block).owner.filter(|_| !shared) else { return Ok((block, step)) };
        if matches!(outline.step(owner).spec.map(|spec| &spec.kind), Some(Kind::Foreach(_))) {
            return Err(Unavailable::InsideLoop(owner));
        }
        step = owner;
    }
}

fn never_reason(outline: &Outline, target: StepIx, from: StepIx, shared: StepIx) -> &'static str {
    match outline.step(shared).spec.map(|spec| &spec.kind) {
        _ if shared == target => "it contains this step, so it has not completed",
        _ if shared == from => "it runs inside this step",
        Some(Kind::Branch(_)) => "it is in another arm of the same branch",
        _ => "it runs in parallel, in another branch",
    }
}

const ON_FAILURE: &str = "it runs only when the run fails";

/// Searches backwards through a block. Reuses its buffers, because a definition can have many references.
#[derive(Default)]
pub(super) struct Reachability {
    /// The number of the last search that visited each step.
    seen: Vec<u32>,
    search: u32,
    open: Vec<StepIx>,
}

impl Reachability {
    /// Whether a step of a DAG can depend on another without a cycle.
    pub(super) fn can_depend(&mut self, outline: &Outline, step: StepIx, other: StepIx) -> bool {
        let block = outline.step(step).block;
        let in_dag = outline.block(block).flow == Flow::Dag && outline.step(other).block == block;
        in_dag && step != other && !self.precedes(outline, block, step, other)
    }

    /// Whether `earlier` can run before `later` in a block.
    fn precedes(&mut self, outline: &Outline, block: BlockIx, earlier: StepIx, later: StepIx) -> bool {
        if outline.block(block).flow == Flow::Sequence {
            return outline.step(earlier).position < outline.step(later).position;
        }
        self.seen.resize(outline.steps.len(), 0);
        self.search += 1;
        self.open.clear();
        self.open.extend(&outline.step(later).predecessors);
        while let Some(step) = self.open.pop() {
            if step == earlier {
                return true;
            }
            if self.seen[step.index()] != self.search {
                self.seen[step.index()] = self.search;
                self.open.extend(&outline.step(step).predecessors);
            }
        }
        false
    }
}
