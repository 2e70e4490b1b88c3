//! Outlines the graph form: forks become `parallel` steps with blocks, other transitions stay as they are.
//!
//! A step with `parallel` is a fork. The steps that can be reached from one of its branches before the `join`
//! form a block, so that the branches which a join waits for are known in advance.

mod joins;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::outline::{Flow, Outline};
use super::{BlockIx, StepIx, Target};
use crate::diagnostic::{Code, Diagnostic, Diagnostics, nearest};
use crate::limits;
use crate::source::Span;
use crate::spec::graph::{Graph, GraphStep};
use crate::spec::policy::OnError;
use crate::spec::step::{Kind, KindName};
use crate::spec::value::Text;
use crate::steps::{ApproveTimeout, OnDeny};

/// The transition of a step, with resolved targets.
#[derive(Debug)]
pub(super) enum GraphNext<'s> {
    To(Target),
    Choose { cases: Vec<(&'s Text, Target)>, otherwise: Option<Target> },
}

/// Index of a step in [`Graph::steps`].
type Node = usize;

pub(super) fn outline<'s>(graph: &'s Graph, span: Span, outline: &mut Outline<'s>, out: &mut Diagnostics) {
    let mut builder = GraphBuilder {
        names: HashMap::new(),
        joins: HashMap::new(),
        steps: vec![None; graph.steps.len()],
        forks: HashMap::new(),
        misplaced: HashSet::new(),
        searched: 0,
        mismatched_joins: BTreeSet::new(),
        broken: false,
        graph,
        outline,
        out,
    };
    builder.register_names();
    let root = builder.outline.add_block(Flow::Graph, None, None);
    let Some(start) = builder.start(span) else { return };
    builder.collect(start, &mut Vec::new(), root);
    builder.report_unreachable();
    builder.link();
    let first = builder.steps[start];
    builder.outline.blocks[root.index()].start = first;
}

struct GraphBuilder<'s, 'o> {
    graph: &'s Graph,
    names: HashMap<&'s str, Node>,
    /// The join of each fork.
    joins: HashMap<Node, Option<Node>>,
    /// The outlined step of each node.
    steps: Vec<Option<StepIx>>,
    /// The `parallel` step of each fork: the step itself, or one added after its tool.
    forks: HashMap<Node, StepIx>,
    /// Nodes that were reported as reachable from several blocks.
    misplaced: HashSet<Node>,
    /// Number of steps visited to find joins, against [`limits::FORK_SEARCH`].
    searched: usize,
    /// Positions of joins that were reported as different from the join of their fork.
    mismatched_joins: BTreeSet<Span>,
    /// Whether a transition is invalid, so that unreachable steps are a consequence and not reported.
    broken: bool,
    outline: &'o mut Outline<'s>,
    out: &'o mut Diagnostics,
}

impl<'s> GraphBuilder<'s, '_> {
    fn report(&mut self, node: Node, diagnostic: Diagnostic) {
        self.broken = true;
        self.push(Some(node), diagnostic);
    }

    /// Reports a problem of a step, or of the graph.
    fn push(&mut self, node: Option<Node>, diagnostic: Diagnostic) {
        let step = node.map(|node| self.graph.steps[node].step.id().to_owned());
        self.out.push(Diagnostic { step, ..diagnostic });
    }

    fn register_names(&mut self) {
        for (node, step) in self.graph.steps.iter().enumerate() {
            self.names.entry(step.key.value.as_str()).or_insert(node);
        }
        for (node, step) in self.graph.steps.iter().enumerate() {
            // Keys take precedence over names of other steps.
            self.names.entry(step.step.id()).or_insert(node);
        }
        for (node, step) in self.graph.steps.iter().enumerate() {
            for name in Self::targets(step) {
                self.lookup(name, Some(node));
            }
        }
    }

    /// All targets of a step.
    fn targets(step: &'s GraphStep) -> Vec<&'s Text> {
        let transition = &step.transition;
        let mut names: Vec<&Text> = Vec::new();
        names.extend(&transition.next);
        for case in transition.branch.iter().flatten() {
            names.extend(case.then.iter().chain(&case.r#else));
        }
        names.extend(&transition.r#else);
        names.extend(transition.parallel.iter().flat_map(|names| &names.0));
        names.extend(&transition.join);
        names.extend(Self::goto_targets(step));
        names
    }

    /// The targets of `goto` in policies.
    fn goto_targets(step: &'s GraphStep) -> impl Iterator<Item = &'s Text> {
        let on_error = match &step.step.policy.on_error {
            Some(OnError::Goto(target)) => Some(target),
            _ => None,
        };
        let approve = match &step.step.kind {
            Kind::Approve(approve) => Some(approve),
            _ => None,
        };
        let on_deny = approve.and_then(|approve| match &approve.on_deny {
            Some(OnDeny::Goto(target)) => Some(target),
            _ => None,
        });
        let on_timeout = approve.and_then(|approve| match approve.on_timeout.as_deref() {
            Some(ApproveTimeout::Goto(target)) => Some(target),
            _ => None,
        });
        on_error.into_iter().chain(on_deny).chain(on_timeout)
    }

    fn find(&self, name: &Text) -> Option<Node> {
        self.names.get(name.as_str()).copied()
    }

    /// Finds a step by name. Reports an unknown name on the step `on`, or on the graph.
    fn lookup(&mut self, name: &Text, on: Option<Node>) -> Option<Node> {
        let found = self.find(name);
        if found.is_none() {
            self.broken = true;
            let message = format!("there is no step `{}`", name.value);
            let keys = self.graph.steps.iter().map(|step| step.key.as_str());
            let near = if self.out.is_full() { None } else { nearest(name, keys) };
            let hint = near.map(|near| format!("did you mean `{near}`?"));
            self.push(on, Diagnostic { hint, ..Diagnostic::new(Code::UnknownStep, name.span, message) });
        }
        found
    }

    /// The first step: `start`, or the only step without an incoming transition.
    fn start(&mut self, span: Span) -> Option<Node> {
        if let Some(name) = &self.graph.start {
            return self.lookup(name, None);
        }
        let mut incoming: HashSet<Node> = HashSet::new();
        for (node, step) in self.graph.steps.iter().enumerate() {
            let targets = Self::targets(step).into_iter().filter_map(|name| self.find(name));
            incoming.extend(targets.filter(|target| *target != node).collect::<Vec<_>>());
        }
        let starts: Vec<Node> = (0..self.graph.steps.len()).filter(|node| !incoming.contains(node)).collect();
        match starts.as_slice() {
            [only] => Some(*only),
            _ if self.graph.steps.is_empty() => {
                self.out.push(crate::spec::no_steps(span));
                None
            }
            _ => {
                let message = "the first step of the graph is ambiguous";
                self.out.push(Diagnostic::new(Code::MissingField, span, message).hint("add `start: <step>`"));
                None
            }
        }
    }

    /// The successors of a step in its block. The successor of a fork is its join.
    fn successors(&mut self, node: Node) -> Vec<Node> {
        let step = &self.graph.steps[node];
        let transition = &step.transition;
        let mut names: Vec<&Text> = Vec::new();
        if transition.parallel.is_none() {
            names.extend(transition.next.iter().chain(&transition.join));
            for case in transition.branch.iter().flatten() {
                names.extend(case.then.iter().chain(&case.r#else));
            }
            names.extend(&transition.r#else);
        }
        names.extend(Self::goto_targets(step));
        let mut nodes: Vec<Node> = names.into_iter().filter_map(|name| self.find(name)).collect();
        if transition.parallel.is_some() {
            nodes.extend(self.join_of(node, 0));
        }
        nodes
    }

    fn branches(&mut self, node: Node) -> Vec<(&'s Text, Node)> {
        let names = self.graph.steps[node].transition.parallel.iter().flat_map(|names| &names.0);
        names.filter_map(|name| self.find(name).map(|target| (name, target))).collect()
    }

    /// Adds all steps that can be reached from `entry` to a block, up to the join of the branch. `stops` are the joins
    /// of the enclosing forks, outermost first.
    fn collect(&mut self, entry: Node, stops: &mut Vec<Node>, block: BlockIx) {
        let mut queue = VecDeque::from([entry]);
        while let Some(node) = queue.pop_front() {
            if stops.last() == Some(&node) {
                continue;
            }
            if stops.contains(&node) {
                self.report_misplaced(node, "a branch leaves its `parallel` without joining");
                continue;
            }
            if let Some(step) = self.steps[node] {
                if self.outline.step(step).block != block {
                    self.report_misplaced(
                        node,
                        "this step can be reached from inside a `parallel` branch and from outside it",
                    );
                }
                continue;
            }
            self.add(node, block);
            self.check_end(node, stops);
            if self.graph.steps[node].transition.parallel.is_some() {
                self.fork(node, stops, block);
            }
            queue.extend(self.successors(node));
        }
    }

    fn report_misplaced(&mut self, node: Node, message: &str) {
        if self.misplaced.insert(node) {
            let span = self.graph.steps[node].step.span;
            let diagnostic = Diagnostic::new(Code::InvalidFork, span, message);
            self.report(
                node,
                diagnostic.hint("branches of a `parallel` cannot share steps; they meet at its `join`"),
            );
        }
    }

    fn add(&mut self, node: Node, block: BlockIx) {
        let written: &'s GraphStep = &self.graph.steps[node];
        let step = self.outline.add_step(&written.step, block, self.out);
        self.outline.register(&written.key, written.key.span, step, self.out);
        self.outline.children(&written.step, step, self.out);
        self.steps[node] = Some(step);
    }

    /// Checks that branches end at their join, and that steps with `join` are in branches.
    fn check_end(&mut self, node: Node, stops: &[Node]) {
        let transition = &self.graph.steps[node].transition;
        if stops.is_empty() && !transition.is_specified() {
            let span = self.graph.steps[node].step.span;
            let diagnostic = Diagnostic::new(Code::MissingField, span, "this step has no transition");
            let hint = "add `next`, `branch`, `parallel`, `join` or `done: true`";
            self.push(Some(node), diagnostic.hint(hint));
        }
        if let (Some(join), None) = (&transition.join, &transition.parallel) {
            let target = self.find(join);
            if stops.is_empty() {
                let message =
                    format!("`join: {}` is on a step outside the branches of a `parallel`", join.value);
                let diagnostic = Diagnostic::new(Code::JoinWithoutFork, join.span, message);
                self.report(node, diagnostic.hint("use `next` to continue with one step"));
            } else if target.is_some()
                && target != stops.last().copied()
                && self.mismatched_joins.insert(join.span)
            {
                let message = format!("the enclosing `parallel` does not join at `{}`", join.value);
                self.report(node, Diagnostic::new(Code::InvalidFork, join.span, message));
            }
        }
        if let Some(done) = transition.done.as_ref().filter(|done| done.value && !stops.is_empty()) {
            let message = "`done` would end the run while other branches still run";
            let diagnostic = Diagnostic::new(Code::InvalidFork, done.span, message);
            self.report(node, diagnostic.hint("continue at the `join`, and move `done` to a step after it"));
        }
    }

    fn fork(&mut self, node: Node, stops: &mut Vec<Node>, block: BlockIx) {
        let Some(step) = self.steps[node] else { return };
        let written = &self.graph.steps[node].step;
        let only_forks = written.kind_name() == KindName::Pass;
        let fork = if only_forks { step } else { self.outline.push_step(written.id(), None, block) };
        self.forks.insert(node, fork);
        let branches = self.branches(node);
        if stops.len() >= limits::BLOCK_DEPTH || branches.len() > limits::BRANCHES {
            let message = format!(
                "`parallel` can have at most {} branches and be nested at most {} levels deep",
                limits::BRANCHES,
                limits::BLOCK_DEPTH
            );
            self.report(node, Diagnostic::new(Code::LimitExceeded, written.span, message));
            return;
        }
        let Some(join) = self.join_of(node, stops.len()) else { return };
        let mut seen = HashSet::from([join]);
        for (name, target) in branches {
            if !seen.insert(target) {
                let message = format!("`{}` is the `join` step or a duplicate branch", name.value);
                self.report(node, Diagnostic::new(Code::InvalidFork, name.span, message));
                continue;
            }
            let branch = self.outline.add_block(Flow::Graph, Some(fork), Some(name.as_str()));
            stops.push(join);
            self.collect(target, stops, branch);
            stops.pop();
            self.outline.blocks[branch.index()].start = self.steps[target];
            self.outline.steps[fork.index()].children.push(branch);
        }
    }

    fn report_unreachable(&mut self) {
        if self.broken {
            return;
        }
        for node in 0..self.graph.steps.len() {
            if self.steps[node].is_none() {
                let step = &self.graph.steps[node];
                let message = format!("the step `{}` is unreachable", step.step.id());
                let diagnostic = Diagnostic::new(Code::UnreachableStep, step.key.span, message);
                self.report(
                    node,
                    diagnostic.hint("name it in a `next`, `branch` or `parallel`, or remove it"),
                );
            }
        }
    }

    /// Resolves a target in the same block. A target outside of it ends the block.
    fn target(&mut self, name: &Text, block: BlockIx) -> Target {
        let node = self.find(name);
        self.in_block(node, block)
    }

    fn in_block(&self, node: Option<Node>, block: BlockIx) -> Target {
        let step = node.and_then(|node| self.steps[node]);
        step.filter(|step| self.outline.step(*step).block == block).map_or(Target::End, Target::Step)
    }

    /// Records the transitions and predecessors of all steps.
    fn link(&mut self) {
        for node in 0..self.graph.steps.len() {
            let Some(step) = self.steps[node] else { continue };
            let block = self.outline.step(step).block;
            let next = self.next_of(node, block);
            let last = match self.forks.get(&node) {
                Some(fork) if *fork != step => {
                    self.outline.steps[fork.index()].predecessors.push(step);
                    self.outline.transitions.insert(step, GraphNext::To(Target::Step(*fork)));
                    *fork
                }
                _ => step,
            };
            self.outline.transitions.insert(last, next);
            for successor in self.successors(node) {
                if let Some(next) =
                    self.steps[successor].filter(|next| self.outline.step(*next).block == block)
                {
                    self.outline.steps[next.index()].predecessors.push(last);
                }
            }
        }
    }

    fn next_of(&mut self, node: Node, block: BlockIx) -> GraphNext<'s> {
        let transition = &self.graph.steps[node].transition;
        if transition.parallel.is_some() {
            let join = self.join_of(node, 0);
            return GraphNext::To(self.in_block(join, block));
        }
        if let Some(written) = &transition.branch {
            let mut cases = Vec::new();
            let mut otherwise = None;
            for case in written {
                match (&case.r#if, &case.then, &case.r#else) {
                    (_, _, Some(name)) => otherwise = Some(self.target(name, block)),
                    (Some(condition), Some(name), None) => cases.push((condition, self.target(name, block))),
                    _ => {}
                }
            }
            if let Some(name) = &transition.r#else {
                otherwise = Some(self.target(name, block));
            }
            return GraphNext::Choose { cases, otherwise };
        }
        GraphNext::To(transition.next.as_ref().map_or(Target::End, |name| self.target(name, block)))
    }
}
