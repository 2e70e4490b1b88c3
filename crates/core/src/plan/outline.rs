//! Finds the steps and blocks of a definition, before their contents are compiled.

use std::collections::HashMap;

use super::{BlockIx, StepIx};
use crate::diagnostic::{Code, Diagnostic, Diagnostics};
use crate::limits;
use crate::source::Span;
use crate::spec::step::{Kind, Step};
use crate::spec::value::Text;
use crate::spec::{Body, Spec};
use crate::steps::Branches;

/// A step and its position in the definition.
#[derive(Debug)]
pub(super) struct StepOutline<'s> {
    pub id: &'s str,
    /// The step as written; `None` for a fork that the compiler adds.
    pub spec: Option<&'s Step>,
    pub block: BlockIx,
    /// Index in its block.
    pub position: usize,
    /// The blocks inside the step, in the order of its fields.
    pub children: Vec<BlockIx>,
    /// The steps that can run directly before it in its block. Unused in sequences, which use `position`.
    pub predecessors: Vec<StepIx>,
}

/// What determines the order of the steps of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Sequence,
    Dag,
    Graph,
}

#[derive(Debug)]
pub(super) struct BlockOutline<'s> {
    pub owner: Option<StepIx>,
    pub name: Option<&'s str>,
    pub flow: Flow,
    pub steps: Vec<StepIx>,
    /// Number of enclosing blocks.
    pub depth: usize,
    /// The first step, if the block is a graph.
    pub start: Option<StepIx>,
}

#[derive(Debug, Default)]
pub(super) struct Outline<'s> {
    pub steps: Vec<StepOutline<'s>>,
    pub blocks: Vec<BlockOutline<'s>>,
    /// Steps by id, and by their keys in the graph form.
    pub ids: HashMap<&'s str, StepIx>,
    /// Steps by declared output.
    pub outputs: HashMap<&'s str, StepIx>,
    pub on_failure: Option<BlockIx>,
    /// The transitions of the steps of graphs.
    pub transitions: HashMap<StepIx, super::graph::GraphNext<'s>>,
}

impl<'s> Outline<'s> {
    pub(super) fn new(spec: &'s Spec, out: &mut Diagnostics) -> Self {
        let mut outline = Self::default();
        match &spec.body {
            Body::List { steps } => {
                if steps.0.is_empty() {
                    out.push(crate::spec::no_steps(spec.span));
                }
                outline.list(&steps.0, None, None, out);
            }
            Body::Graph(graph) => super::graph::outline(graph, spec.span, &mut outline, out),
        }
        if let Some(steps) = &spec.head.on_failure {
            outline.on_failure = Some(outline.list(&steps.0, None, None, out));
        }
        outline
    }

    pub(super) fn step(&self, step: StepIx) -> &StepOutline<'s> {
        &self.steps[step.index()]
    }

    pub(super) fn block(&self, block: BlockIx) -> &BlockOutline<'s> {
        &self.blocks[block.index()]
    }

    pub(super) fn add_block(&mut self, flow: Flow, owner: Option<StepIx>, name: Option<&'s str>) -> BlockIx {
        let depth = owner.map_or(0, |owner| self.block(self.step(owner).block).depth + 1);
        self.blocks.push(BlockOutline { owner, name, flow, steps: Vec::new(), depth, start: None });
        BlockIx(index(self.blocks.len() - 1))
    }

    /// Adds a step to a block and registers its names.
    pub(super) fn add_step(&mut self, spec: &'s Step, block: BlockIx, out: &mut Diagnostics) -> StepIx {
        let step = self.push_step(spec.id(), Some(spec), block);
        if let Some(id) = &spec.common.id {
            self.register(&id.value, id.span, step, out);
        }
        for output in spec.common.outputs.iter().flat_map(|names| &names.0) {
            self.register_output(output, step, out);
        }
        step
    }

    pub(super) fn push_step(&mut self, id: &'s str, spec: Option<&'s Step>, block: BlockIx) -> StepIx {
        let step = StepIx(index(self.steps.len()));
        let position = self.block(block).steps.len();
        self.blocks[block.index()].steps.push(step);
        self.steps.push(StepOutline {
            id,
            spec,
            block,
            position,
            children: Vec::new(),
            predecessors: Vec::new(),
        });
        step
    }

    /// Registers a name of a step. Reports a name that another step has.
    pub(super) fn register(&mut self, id: &'s str, span: Span, step: StepIx, out: &mut Diagnostics) {
        if id.is_empty() {
            return;
        }
        if *self.ids.entry(id).or_insert(step) != step {
            let message = format!("duplicate step id `{id}`");
            let diagnostic = Diagnostic::new(Code::DuplicateStepId, span, message);
            let step = Some(id.to_owned());
            out.push(Diagnostic {
                step,
                ..diagnostic.hint("step ids must be unique in the whole definition, including nested blocks")
            });
        }
    }

    fn register_output(&mut self, output: &'s Text, step: StepIx, out: &mut Diagnostics) {
        let step_id = Some(self.step(step).id.to_owned());
        if !crate::expr::is_word(output) {
            let message = format!("`{}` is not a valid output name", output.value);
            let diagnostic = Diagnostic::new(Code::InvalidValue, output.span, message);
            let diagnostic = diagnostic.hint("use letters, digits and `_`, starting with a letter");
            out.push(Diagnostic { step: step_id, ..diagnostic });
        } else if self.outputs.insert(&output.value, step).is_some() {
            let message = format!("the output `{}` is declared twice", output.value);
            let diagnostic = Diagnostic::new(Code::DuplicateOutput, output.span, message);
            out.push(Diagnostic {
                step: step_id,
                ..diagnostic.hint(format!("`${}` must refer to one value", output.value))
            });
        }
    }

    /// Adds a list of steps: a DAG if one of them has `depends_on`, otherwise a sequence.
    fn list(
        &mut self,
        steps: &'s [Step],
        owner: Option<StepIx>,
        name: Option<&'s str>,
        out: &mut Diagnostics,
    ) -> BlockIx {
        let is_dag = steps.iter().any(|step| step.common.depends_on.is_some());
        let block = self.add_block(if is_dag { Flow::Dag } else { Flow::Sequence }, owner, name);
        for step in steps {
            let added = self.add_step(step, block, out);
            self.children(step, added, out);
        }
        block
    }

    /// Adds the blocks inside a step.
    pub(super) fn children(&mut self, step: &'s Step, at: StepIx, out: &mut Diagnostics) {
        let mut lists: Vec<(Option<&'s str>, &'s [Step])> = Vec::new();
        match &step.kind {
            Kind::Foreach(foreach) => lists.extend(foreach.steps.as_ref().map(|steps| (None, &*steps.0))),
            Kind::Parallel(parallel) => {
                match &parallel.branches {
                    Some(Branches::Named(named)) => {
                        lists.extend(named.iter().map(|(name, steps)| (Some(name.as_str()), &*steps.0)));
                    }
                    Some(Branches::Listed(listed)) => {
                        lists.extend(listed.iter().map(|steps| (None, &*steps.0)));
                    }
                    None => {}
                }
                let single = parallel.steps.iter().flat_map(|steps| &steps.0);
                lists.extend(single.map(|step| (Some(step.id()), std::slice::from_ref(step))));
                if parallel.branches.is_some() || parallel.steps.is_some() {
                    check_branch_count(step, lists.len(), out);
                }
            }
            Kind::Branch(branch) => {
                lists.extend(branch.then.iter().map(|steps| (None, &*steps.0)));
                let cases = branch.cases.iter().flatten();
                lists.extend(cases.map(|case| (None, case.then.as_ref().map_or(&[][..], |steps| &steps.0))));
                lists.extend(branch.r#else.iter().map(|steps| (None, &*steps.0)));
            }
            Kind::Tool(_)
            | Kind::Approve(_)
            | Kind::Sleep(_)
            | Kind::Wait(_)
            | Kind::Workflow(_)
            | Kind::Let(_)
            | Kind::Pass(_) => {}
        }
        for (name, steps) in lists {
            let block = self.list(steps, Some(at), name, out);
            self.steps[at.index()].children.push(block);
        }
    }
}

fn check_branch_count(step: &Step, branches: usize, out: &mut Diagnostics) {
    let (code, message) = match branches {
        0 => (Code::MissingField, "a `parallel` step needs at least one branch".to_owned()),
        1..=limits::BRANCHES => return,
        _ => (Code::LimitExceeded, format!("{branches} branches exceed the limit of {}", limits::BRANCHES)),
    };
    out.push(Diagnostic { step: Some(step.id().to_owned()), ..Diagnostic::new(code, step.span, message) });
}

/// Converts an index to 32 bits. Steps and blocks are far fewer, see [`limits::STEPS`].
pub(super) fn index(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
