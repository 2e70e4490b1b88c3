//! Finds the join of each fork of a graph.

use std::collections::{HashSet, VecDeque};

use super::{GraphBuilder, Node};
use crate::diagnostic::{Code, Diagnostic};
use crate::limits;
use crate::spec::value::Text;

impl GraphBuilder<'_, '_> {
    /// Finds the join of a fork: its own `join`, or that of its branches.
    pub(super) fn join_of(&mut self, fork: Node, depth: usize) -> Option<Node> {
        if let Some(known) = self.joins.get(&fork) {
            return *known;
        }
        // A search that reaches this fork again must end.
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
        let mut join: Option<Node> = None;
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
                if *join.get_or_insert(target) != target {
                    self.report_mismatched_join(node, name);
                }
                continue;
            } else {
                self.successors(node)
            };
            queue.extend(next.into_iter().filter(|node| seen.insert(*node)));
        }
        if join.is_none() {
            let message = "the branches of this `parallel` never join";
            let diagnostic = Diagnostic::new(Code::InvalidFork, self.graph.steps[fork].step.span, message);
            self.report(fork, diagnostic.hint("add `join: <step>` here, or on the last step of each branch"));
        }
        join
    }

    fn report_mismatched_join(&mut self, node: Node, name: &Text) {
        self.mismatched_joins.insert(name.span);
        let message = format!(
            "this branch joins at `{}`, but another branch of the same `parallel` joins elsewhere",
            name.value
        );
        let diagnostic = Diagnostic::new(Code::InvalidFork, name.span, message);
        self.report(node, diagnostic.hint("all branches of a `parallel` must join at the same step"));
    }

    fn report_search(&mut self, fork: Node) {
        if self.searched == limits::FORK_SEARCH + 1 {
            let message = "the graph is too large to find the joins of all `parallel` steps";
            let diagnostic = Diagnostic::new(Code::LimitExceeded, self.graph.steps[fork].step.span, message);
            self.report(fork, diagnostic.hint("add `join: <step>` to the steps with `parallel`"));
        }
    }
}
