//! What must run before what: `depends_on`, cycles, and whether a reference can have a value.

use std::collections::{HashSet, VecDeque};

use super::outline::{Flow, Outline};
use super::{BlockIx, StepIx};
use crate::diagnostic::{Code, Diagnostic, Diagnostics, nearest};
use crate::spec::step::Kind;
use crate::spec::value::Text;

/// Resolves every `depends_on`, and reports names that mean no step and steps that wait for one another.
pub(super) fn resolve_dependencies(outline: &mut Outline, out: &mut Diagnostics) {
    for step in (0..outline.steps.len()).map(|at| StepIx(super::outline::index(at))) {
        let place = outline.place(step);
        if outline.block(place.block).flow != Flow::Dag {
            continue;
        }
        let names = place.spec.and_then(|spec| spec.common.depends_on.as_ref());
        let mut before = Vec::new();
        for name in names.iter().flat_map(|names| &names.0) {
            match dependency(outline, step, name, !out.is_full()) {
                Ok(dependency) if before.contains(&dependency) => {}
                Ok(dependency) => before.push(dependency),
                Err(diagnostic) => out.push(Diagnostic { step: Some(place.id.to_owned()), ..diagnostic }),
            }
        }
        outline.steps[step.index()].before = before;
    }
    for block in &outline.blocks {
        if block.flow == Flow::Dag {
            report_cycles(outline, &block.steps, out);
        }
    }
}

fn dependency(outline: &Outline, step: StepIx, name: &Text, hints: bool) -> Result<StepIx, Diagnostic> {
    let block = outline.block(outline.place(step).block);
    let siblings = || block.steps.iter().map(|step| outline.place(*step).id);
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
        Some(found) if outline.place(*found).block != outline.place(step).block => {
            let message = format!("`{}` is not in the same list of steps", name.value);
            let diagnostic = Diagnostic::new(Code::UnknownStep, name.span, message);
            Err(diagnostic.hint("depend on the block that contains it"))
        }
        Some(found) => Ok(*found),
    }
}

/// Takes away steps whose dependencies are met until none is left; what remains waits for itself.
fn report_cycles(outline: &Outline, steps: &[StepIx], out: &mut Diagnostics) {
    let at = |step: StepIx| outline.place(step).position;
    let mut waits: Vec<usize> = steps.iter().map(|step| outline.place(*step).before.len()).collect();
    let mut dependents: Vec<Vec<StepIx>> = vec![Vec::new(); steps.len()];
    for step in steps {
        outline.place(*step).before.iter().for_each(|dependency| dependents[at(*dependency)].push(*step));
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
    let path: Vec<&str> = cycle.iter().chain(cycle.first()).map(|step| outline.place(*step).id).collect();
    let Some(first) = cycle.first().map(|step| outline.place(*step)) else { return };
    let span = first.spec.map_or_else(Default::default, |spec| {
        spec.common.depends_on.as_ref().and_then(|names| names.0.first()).map_or(spec.place, |name| name.span)
    });
    let message = format!("these steps wait for one another: {}", path.join(" → "));
    let diagnostic = Diagnostic::new(Code::DependencyCycle, span, message);
    let step = Some(first.id.to_owned());
    out.push(Diagnostic { step, ..diagnostic.hint("remove one of the dependencies") });
}

/// Follows unmet dependencies until a step comes up again; none if an earlier search was there.
fn find_cycle(
    outline: &Outline,
    start: StepIx,
    waits: &[usize],
    seen: &mut HashSet<StepIx>,
) -> Option<Vec<StepIx>> {
    let mut path = vec![start];
    let mut here = start;
    while seen.insert(here) {
        let unmet = |step: &&StepIx| waits[outline.place(**step).position] > 0;
        here = *outline.place(here).before.iter().find(unmet)?;
        path.push(here);
    }
    let from = path[..path.len() - 1].iter().position(|step| *step == here)?;
    path.pop();
    Some(path.split_off(from))
}

/// Why a reference to a step can have no value.
pub(super) enum Unavailable {
    /// The step runs later, or never in the same run as the reference.
    Never(&'static str),
    /// The step is inside a loop, and the reference outside.
    InsideLoop(StepIx),
}

/// Whether the step `target` can have run before the step `from` does; `from` is none for what is
/// evaluated at the end of the run.
pub(super) fn availability(
    outline: &Outline,
    from: Option<StepIx>,
    target: StepIx,
    reach: &mut Reach,
) -> Result<(), Unavailable> {
    let Some(from) = from else {
        let (root, _) = leave_blocks(outline, target, None)?;
        let only_on_failure = outline.on_failure == Some(root);
        return if only_on_failure { Err(Unavailable::Never(ON_FAILURE)) } else { Ok(()) };
    };
    let own = outline.place(from);
    if own.before.contains(&target) {
        return Ok(());
    }
    let mut around: Vec<(BlockIx, StepIx)> = vec![(own.block, from)];
    while let Some(owner) = around.last().and_then(|(block, _)| outline.block(*block).owner) {
        around.push((outline.place(owner).block, owner));
    }
    let (block, target_there) = leave_blocks(outline, target, Some(&around))?;
    let Some((_, from_there)) = around.iter().find(|(shared, _)| *shared == block) else {
        // Different roots: `on_failure` runs after everything else.
        let from_failure = around.last().is_some_and(|(root, _)| outline.on_failure == Some(*root));
        return if from_failure { Ok(()) } else { Err(Unavailable::Never(ON_FAILURE)) };
    };
    let contained = target_there != target || *from_there != from;
    if target == from && outline.block(block).flow != Flow::Graph {
        return Err(Unavailable::Never("it is this step itself"));
    }
    if target_there == *from_there && contained {
        return Err(Unavailable::Never(beside(outline, target, from, target_there)));
    }
    if reach.precedes(outline, block, target_there, *from_there) {
        return Ok(());
    }
    Err(Unavailable::Never(match outline.block(block).flow {
        Flow::Sequence => "it comes later",
        Flow::Dag => "nothing makes this step wait for it",
        Flow::Graph => "no way leads from it to here",
    }))
}

/// Goes outwards from a step to the first block that is also around the reference, or to the root.
fn leave_blocks(
    outline: &Outline,
    target: StepIx,
    around: Option<&[(BlockIx, StepIx)]>,
) -> Result<(BlockIx, StepIx), Unavailable> {
    let mut step = target;
    loop {
        let block = outline.place(step).block;
        let shared = around.is_some_and(|around| around.iter().any(|(other, _)| *other == block));
        let Some(owner) = outline.block(block).owner.filter(|_| !shared) else { return Ok((block, step)) };
        if matches!(outline.place(owner).spec.map(|spec| &spec.kind), Some(Kind::Foreach(_))) {
            return Err(Unavailable::InsideLoop(owner));
        }
        step = owner;
    }
}

fn beside(outline: &Outline, target: StepIx, from: StepIx, shared: StepIx) -> &'static str {
    match outline.place(shared).spec.map(|spec| &spec.kind) {
        _ if shared == target => "it contains this step, so it is not done yet",
        _ if shared == from => "it runs inside this step",
        Some(Kind::Branch(_)) => "it is in another arm of the same branch",
        _ => "it runs beside this step, in another branch",
    }
}

const ON_FAILURE: &str = "it runs only when the run fails";

/// Searches backwards through a block. It keeps its memory from search to search: a long definition has many
/// references.
#[derive(Default)]
pub(super) struct Reach {
    /// The number of the search that saw each step last.
    seen: Vec<u32>,
    search: u32,
    open: Vec<StepIx>,
}

impl Reach {
    /// Whether a step of a DAG could be made to wait for another without a cycle.
    pub(super) fn can_wait(&mut self, outline: &Outline, step: StepIx, other: StepIx) -> bool {
        let block = outline.place(step).block;
        let in_dag = outline.block(block).flow == Flow::Dag && outline.place(other).block == block;
        in_dag && step != other && !self.precedes(outline, block, step, other)
    }

    /// Whether a way leads from one step of a block to another.
    fn precedes(&mut self, outline: &Outline, block: BlockIx, earlier: StepIx, later: StepIx) -> bool {
        if outline.block(block).flow == Flow::Sequence {
            return outline.place(earlier).position < outline.place(later).position;
        }
        self.seen.resize(outline.steps.len(), 0);
        self.search += 1;
        self.open.clear();
        self.open.extend(&outline.place(later).before);
        while let Some(step) = self.open.pop() {
            if step == earlier {
                return true;
            }
            if self.seen[step.index()] != self.search {
                self.seen[step.index()] = self.search;
                self.open.extend(&outline.place(step).before);
            }
        }
        false
    }
}
