//! The graph form's skeleton: forks become parallel blocks, everything else keeps its jumps.
//!
//! A step with `parallel` is a fork. What can be reached from one of its branches before the `join` is a
//! block of its own, so that a run never has to guess which branches it waits for.

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
use crate::steps::OnDeny;

/// Where a step of a graph leads.
#[derive(Debug)]
pub(super) enum Leads<'s> {
    To(Target),
    Choose { cases: Vec<(&'s Text, Target)>, otherwise: Option<Target> },
}

/// The number of a step in the list that is written.
type Node = usize;

pub(super) fn outline<'s>(graph: &'s Graph, place: Span, outline: &mut Outline<'s>, out: &mut Diagnostics) {
    let mut walk = Walk {
        names: HashMap::new(),
        joins: HashMap::new(),
        steps: vec![None; graph.steps.len()],
        forks: HashMap::new(),
        refused: HashSet::new(),
        searched: 0,
        apart: BTreeSet::new(),
        broken: false,
        graph,
        outline,
        out,
    };
    walk.register_names();
    let root = walk.outline.add_block(Flow::Graph, None, None);
    let Some(start) = walk.start(place) else { return };
    walk.collect(start, &mut Vec::new(), root);
    walk.report_unreachable();
    walk.link();
    let first = walk.steps[start];
    walk.outline.blocks[root.index()].start = first;
}

struct Walk<'s, 'o> {
    graph: &'s Graph,
    names: HashMap<&'s str, Node>,
    /// Where each fork's branches meet.
    joins: HashMap<Node, Option<Node>>,
    /// The step that each node has become.
    steps: Vec<Option<StepIx>>,
    /// The parallel step of each fork: the step itself, or one that follows its tool.
    forks: HashMap<Node, StepIx>,
    /// Nodes that were reported as misplaced.
    refused: HashSet<Node>,
    /// Steps looked at to find joins, against [`limits::FORK_SEARCH`].
    searched: usize,
    /// Joins that were reported as not the one of their fork.
    apart: BTreeSet<Span>,
    /// Whether what cannot be reached is only a consequence of something else.
    broken: bool,
    outline: &'o mut Outline<'s>,
    out: &'o mut Diagnostics,
}

impl<'s> Walk<'s, '_> {
    fn report(&mut self, node: Node, diagnostic: Diagnostic) {
        self.broken = true;
        self.push(Some(node), diagnostic);
    }

    /// Files a problem under a step, or under none.
    fn push(&mut self, node: Option<Node>, diagnostic: Diagnostic) {
        let step = node.map(|node| self.graph.steps[node].step.id().to_owned());
        self.out.push(Diagnostic { step, ..diagnostic });
    }

    fn register_names(&mut self) {
        for (node, step) in self.graph.steps.iter().enumerate() {
            self.names.entry(step.key.value.as_str()).or_insert(node);
        }
        for (node, step) in self.graph.steps.iter().enumerate() {
            // A `name` wins over another step's key only if that key has no step of its own.
            self.names.entry(step.step.id()).or_insert(node);
        }
        for (node, step) in self.graph.steps.iter().enumerate() {
            for name in Self::named_targets(step) {
                self.lookup(name, Some(node));
            }
        }
    }

    /// Every name that a step leads to.
    fn named_targets(step: &'s GraphStep) -> Vec<&'s Text> {
        let transition = &step.transition;
        let mut names: Vec<&Text> = Vec::new();
        names.extend(&transition.next);
        for case in transition.branch.iter().flatten() {
            names.extend(case.then.iter().chain(&case.r#else));
        }
        names.extend(&transition.r#else);
        names.extend(transition.parallel.iter().flat_map(|names| &names.0));
        names.extend(&transition.join);
        names.extend(Self::jumps(step));
        names
    }

    /// Jumps by policy, which lead on like any other transition.
    fn jumps(step: &'s GraphStep) -> impl Iterator<Item = &'s Text> {
        let on_error = match &step.step.policy.on_error {
            Some(OnError::Goto(target)) => Some(target),
            _ => None,
        };
        let on_deny = match &step.step.kind {
            Kind::Approve(approve) => match &approve.on_deny {
                Some(OnDeny::Goto(target)) => Some(target),
                _ => None,
            },
            _ => None,
        };
        on_error.into_iter().chain(on_deny)
    }

    fn find(&self, name: &Text) -> Option<Node> {
        self.names.get(name.as_str()).copied()
    }

    /// Finds a step by a name that stands on a step, or on none; a name that means no step is reported.
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

    /// The step to start at: the one named, or else the one that no other leads to.
    fn start(&mut self, place: Span) -> Option<Node> {
        if let Some(name) = &self.graph.start {
            return self.lookup(name, None);
        }
        let mut led_to: HashSet<Node> = HashSet::new();
        for (node, step) in self.graph.steps.iter().enumerate() {
            let targets = Self::named_targets(step).into_iter().filter_map(|name| self.find(name));
            led_to.extend(targets.filter(|target| *target != node).collect::<Vec<_>>());
        }
        let free: Vec<Node> = (0..self.graph.steps.len()).filter(|node| !led_to.contains(node)).collect();
        match free.as_slice() {
            [only] => Some(*only),
            _ if self.graph.steps.is_empty() => {
                self.out.push(crate::spec::no_steps(place));
                None
            }
            _ => {
                let message = "nothing says at which step a run starts";
                self.out
                    .push(Diagnostic::new(Code::MissingField, place, message).hint("add `start: <step>`"));
                None
            }
        }
    }

    /// The steps that follow a step inside its block. A fork is followed by its join.
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
        names.extend(Self::jumps(step));
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

    /// Where the branches of a fork meet: its own `join`, or the one that its branches name.
    fn join_of(&mut self, fork: Node, depth: usize) -> Option<Node> {
        if let Some(known) = self.joins.get(&fork) {
            return *known;
        }
        self.joins.insert(fork, None);
        let join = match &self.graph.steps[fork].transition.join {
            Some(name) => self.find(name),
            None => self.join_of_branches(fork, depth),
        };
        self.joins.insert(fork, join);
        join
    }

    fn join_of_branches(&mut self, fork: Node, depth: usize) -> Option<Node> {
        let mut queue: VecDeque<Node> = self.branches(fork).into_iter().map(|(_, target)| target).collect();
        let mut seen: HashSet<Node> = queue.iter().copied().collect();
        let mut join: Option<(&'s Text, Node)> = None;
        while let Some(node) = queue.pop_front() {
            self.searched += 1;
            if self.searched > limits::FORK_SEARCH {
                self.report_search(fork);
                return None;
            }
            let transition = &self.graph.steps[node].transition;
            let next = if transition.parallel.is_some() {
                if depth >= limits::BLOCK_DEPTH {
                    Vec::new()
                } else {
                    Vec::from_iter(self.join_of(node, depth + 1))
                }
            } else if let Some(name) = &transition.join {
                let Some(target) = self.find(name) else { continue };
                match join {
                    Some((_, known)) if known != target => {
                        self.apart.insert(name.span);
                        let message = format!(
                            "another branch of this `parallel` joins elsewhere, not at `{}`",
                            name.value
                        );
                        let diagnostic = Diagnostic::new(Code::InvalidFork, name.span, message);
                        self.report(node, diagnostic.hint("all branches of a `parallel` meet in one step"));
                    }
                    _ => join = Some((name, target)),
                }
                continue;
            } else {
                self.successors(node)
            };
            queue.extend(next.into_iter().filter(|node| seen.insert(*node)));
        }
        if join.is_none() {
            let step = &self.graph.steps[fork];
            let message = "the branches of this `parallel` never meet";
            let diagnostic = Diagnostic::new(Code::InvalidFork, step.step.place, message);
            self.report(fork, diagnostic.hint("add `join: <step>` here, or on the last step of each branch"));
        }
        join.map(|(_, node)| node)
    }

    fn report_search(&mut self, fork: Node) {
        if self.searched == limits::FORK_SEARCH + 1 {
            let message = "it takes too long to find where the branches of all `parallel` steps meet";
            let diagnostic = Diagnostic::new(Code::LimitExceeded, self.graph.steps[fork].step.place, message);
            self.report(fork, diagnostic.hint("write `join: <step>` on the steps with `parallel`"));
        }
    }

    /// Adds everything that can be reached from a step, up to the join of the branch that it is in.
    fn collect(&mut self, entry: Node, stops: &mut Vec<Node>, block: BlockIx) {
        let mut queue = VecDeque::from([entry]);
        while let Some(node) = queue.pop_front() {
            if stops.last() == Some(&node) {
                continue;
            }
            if stops.contains(&node) {
                self.refuse(node, "a branch leaves its `parallel` without joining");
                continue;
            }
            if let Some(step) = self.steps[node] {
                if self.outline.place(step).block != block {
                    self.refuse(
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

    fn refuse(&mut self, node: Node, message: &str) {
        if self.refused.insert(node) {
            let place = self.graph.steps[node].step.place;
            let diagnostic = Diagnostic::new(Code::InvalidFork, place, message);
            self.report(
                node,
                diagnostic.hint("branches of a `parallel` share no steps; they meet at its `join`"),
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

    /// Checks that a branch ends at its join, and that joins stand in branches only.
    fn check_end(&mut self, node: Node, stops: &[Node]) {
        let transition = &self.graph.steps[node].transition;
        if stops.is_empty() && !transition.leads_on() {
            let place = self.graph.steps[node].step.place;
            let diagnostic = Diagnostic::new(Code::MissingField, place, "nothing says where this step leads");
            let hint = "give it `next`, `branch`, `parallel`, `join` or `done: true`";
            self.push(Some(node), diagnostic.hint(hint));
        }
        if let (Some(join), None) = (&transition.join, &transition.parallel) {
            let target = self.find(join);
            if stops.is_empty() {
                let message = format!("`join: {}` stands on a step that no `parallel` leads to", join.value);
                let diagnostic = Diagnostic::new(Code::JoinWithoutFork, join.span, message);
                self.report(node, diagnostic.hint("use `next` to lead on to one step"));
            } else if target.is_some() && target != stops.last().copied() && self.apart.insert(join.span) {
                let message = format!("the `parallel` around this step does not join at `{}`", join.value);
                self.report(node, Diagnostic::new(Code::InvalidFork, join.span, message));
            }
        }
        if let Some(done) = transition.done.as_ref().filter(|done| done.value && !stops.is_empty()) {
            let message = "`done` would end the run while other branches still run";
            let diagnostic = Diagnostic::new(Code::InvalidFork, done.span, message);
            self.report(node, diagnostic.hint("lead to the `join`, and put `done` on a step after it"));
        }
    }

    fn fork(&mut self, node: Node, stops: &mut Vec<Node>, block: BlockIx) {
        let Some(step) = self.steps[node] else { return };
        let written = &self.graph.steps[node].step;
        let only_forks = written.kind_name() == KindName::Pass;
        let fork = if only_forks { step } else { self.outline.add_place(written.id(), None, block) };
        self.forks.insert(node, fork);
        let branches = self.branches(node);
        if stops.len() >= limits::BLOCK_DEPTH || branches.len() > limits::BRANCHES {
            let message = format!(
                "`parallel` takes at most {} branches and nests at most {} deep",
                limits::BRANCHES,
                limits::BLOCK_DEPTH
            );
            self.report(node, Diagnostic::new(Code::LimitExceeded, written.place, message));
            return;
        }
        let Some(join) = self.join_of(node, stops.len()) else { return };
        let mut taken = HashSet::from([join]);
        for (name, target) in branches {
            if !taken.insert(target) {
                let message =
                    format!("`{}` is the `join` itself, or stands twice among the branches", name.value);
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
        // Where the graph itself is broken, what cannot be reached is only a consequence.
        if self.broken {
            return;
        }
        for node in 0..self.graph.steps.len() {
            if self.steps[node].is_none() {
                let step = &self.graph.steps[node];
                let message = format!("nothing leads to the step `{}`", step.step.id());
                let diagnostic = Diagnostic::new(Code::UnreachableStep, step.key.span, message);
                self.report(
                    node,
                    diagnostic.hint("name it in a `next`, `branch` or `parallel`, or remove it"),
                );
            }
        }
    }

    /// The step that a name leads to, if it is in the same block; otherwise the block ends.
    fn target(&mut self, name: &Text, block: BlockIx) -> Target {
        let node = self.find(name);
        self.in_block(node, block)
    }

    fn in_block(&self, node: Option<Node>, block: BlockIx) -> Target {
        let step = node.and_then(|node| self.steps[node]);
        step.filter(|step| self.outline.place(*step).block == block).map_or(Target::End, Target::Step)
    }

    /// Records where each step leads and what may come before it.
    fn link(&mut self) {
        for node in 0..self.graph.steps.len() {
            let Some(step) = self.steps[node] else { continue };
            let block = self.outline.place(step).block;
            let leads = self.leads(node, block);
            let last = match self.forks.get(&node) {
                Some(fork) if *fork != step => {
                    self.outline.steps[fork.index()].before.push(step);
                    self.outline.transitions.insert(step, Leads::To(Target::Step(*fork)));
                    *fork
                }
                _ => step,
            };
            self.outline.transitions.insert(last, leads);
            for successor in self.successors(node) {
                if let Some(next) =
                    self.steps[successor].filter(|next| self.outline.place(*next).block == block)
                {
                    self.outline.steps[next.index()].before.push(last);
                }
            }
        }
    }

    fn leads(&mut self, node: Node, block: BlockIx) -> Leads<'s> {
        let transition = &self.graph.steps[node].transition;
        if transition.parallel.is_some() {
            let join = self.join_of(node, 0);
            return Leads::To(self.in_block(join, block));
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
            return Leads::Choose { cases, otherwise };
        }
        Leads::To(transition.next.as_ref().map_or(Target::End, |name| self.target(name, block)))
    }
}
