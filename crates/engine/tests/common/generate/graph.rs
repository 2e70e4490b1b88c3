//! The graph form: chains of steps with choices, jumps back, forks and joins.

use serde_json::{Map, Value, json};

use super::steps::{GeneratedStep, StepContext, jumps};
use super::{OutputType, Readable, Writer};

type Steps = Map<String, Value>;

/// A chain of steps that belong to one block.
struct Chain<'c> {
    ids: Vec<String>,
    /// The join of the branch; `None` for the root.
    join: Option<&'c str>,
    /// Whether the last step of a branch needs `join`. Otherwise the step that forks names the join.
    needs_join: bool,
    depth: u32,
}

impl Writer<'_> {
    /// Returns the start, the steps, and the steps that can be referenced after them.
    pub(super) fn graph(&mut self) -> (String, Steps, Vec<Readable>) {
        let mut steps = Steps::new();
        let mut seen = Vec::new();
        let max_steps = self.left.clamp(1, 6);
        let count = self.rng.usize(1..=max_steps).max(self.rng.usize(1..=max_steps));
        let chain = self.chain(count, None, true, 2);
        let start = chain.ids[0].clone();
        self.write_chain(&chain, &mut seen, &mut steps);
        (start, steps, seen)
    }

    fn chain<'c>(&mut self, count: usize, join: Option<&'c str>, needs_join: bool, depth: u32) -> Chain<'c> {
        self.left = self.left.saturating_sub(count);
        Chain { ids: (0..count).map(|_| self.id()).collect(), join, needs_join, depth }
    }

    fn write_chain(&mut self, chain: &Chain<'_>, seen: &mut Vec<Readable>, steps: &mut Steps) {
        // Steps before this one may be skipped by a jump.
        let mut skipped_until = 0;
        for at in 0..chain.ids.len() {
            let id = &chain.ids[at];
            let context = StepContext { depth: 1, seen, later: &chain.ids[at + 1..], result: false };
            let GeneratedStep { mut step, seen: mut own, inner } = self.graph_step(id, context);
            own.always_set &= at >= skipped_until;
            seen.push(own.clone());
            seen.extend(inner);
            let furthest = self.add_transitions(chain, at, &own, (&mut step, steps), seen);
            skipped_until = skipped_until.max(furthest);
            steps.insert(id.clone(), Value::Object(step));
        }
    }

    /// Generates a step, including gates in the syntax of the graph form.
    fn graph_step(&mut self, id: &str, context: StepContext<'_>) -> GeneratedStep {
        if self.options.gates && self.chance(5) {
            let mut step = Map::new();
            self.approve(&mut step, context);
            step.remove("kind");
            step.insert("tool".into(), Value::Null);
            let seen =
                Readable { id: id.to_owned(), output: OutputType::Answer, always_set: true, declares: false };
            return GeneratedStep { step, seen, inner: Vec::new() };
        }
        self.step(id, context)
    }

    /// Adds the transitions of a step. Returns the furthest target.
    fn add_transitions(
        &mut self,
        chain: &Chain<'_>,
        at: usize,
        own: &Readable,
        (step, steps): (&mut Map<String, Value>, &mut Steps),
        seen: &mut Vec<Readable>,
    ) -> usize {
        let is_block = step
            .get("kind")
            .is_some_and(|kind| ["foreach", "parallel", "branch"].iter().any(|block| kind == block));
        let mut furthest =
            jumps(step).filter_map(|to| chain.ids.iter().position(|id| id == to)).max().unwrap_or_default();
        let has_next = at + 1 < chain.ids.len();
        if has_next && !is_block && self.left > 1 && chain.depth > 0 && self.chance(30) {
            self.fork(chain, at, step, steps, seen);
        } else if has_next && !is_block && self.chance(35) {
            furthest = furthest.max(self.choose(chain, at, own, step, seen));
        } else if has_next {
            step.insert("next".into(), chain.ids[at + 1].as_str().into());
        } else if let Some(join) = chain.join {
            if chain.needs_join || self.chance(30) {
                step.insert("join".into(), join.into());
            }
        } else {
            step.insert("done".into(), true.into());
        }
        furthest
    }

    /// Adds conditional transitions, some of them backwards.
    fn choose(
        &mut self,
        chain: &Chain<'_>,
        at: usize,
        own: &Readable,
        step: &mut Map<String, Value>,
        seen: &[Readable],
    ) -> usize {
        let has_result = step.get("kind").is_none_or(|kind| kind != "pass");
        let mut furthest = at + 1;
        let mut cases = Vec::new();
        for _ in 0..self.rng.u32(1..3) {
            let back = self.chance(30);
            let to = self.rng.usize(if back { 0..at + 1 } else { at + 1..chain.ids.len() });
            furthest = furthest.max(to);
            let ends_by_itself = has_result && own.output == OutputType::Flag;
            self.endless |= back && !ends_by_itself;
            let again = "result == again".to_owned();
            let condition = if back && ends_by_itself { again } else { self.condition(seen, has_result) };
            cases.push(json!({ "if": condition, "then": chain.ids[to] }));
        }
        // The next step must be reachable independently of the conditions.
        match self.rng.u32(0..10) {
            0 => cases.push(json!({ "if": "inputs.n != 77", "then": chain.ids[at + 1] })),
            1..6 => cases.push(json!({ "else": chain.ids[at + 1] })),
            _ => drop(step.insert("else".into(), chain.ids[at + 1].as_str().into())),
        }
        step.insert("branch".into(), cases.into());
        furthest
    }

    /// Adds concurrent branches that join at the next step of the chain.
    fn fork(
        &mut self,
        chain: &Chain<'_>,
        at: usize,
        step: &mut Map<String, Value>,
        steps: &mut Steps,
        seen: &mut Vec<Readable>,
    ) {
        let join = &chain.ids[at + 1];
        let fork_names_join = self.chance(50);
        let before = seen.clone();
        let mut entries = Vec::new();
        for _ in 0..self.rng.u32(2..4) {
            let count = self.rng.usize(1..=2);
            let branch = self.chain(count, Some(join), !fork_names_join, chain.depth - 1);
            let mut inside = before.clone();
            self.write_chain(&branch, &mut inside, steps);
            let new = inside.split_off(before.len());
            seen.extend(new.into_iter().map(|seen| Readable { always_set: false, ..seen }));
            entries.push(branch.ids[0].clone());
        }
        step.insert("parallel".into(), entries.into());
        if fork_names_join {
            step.insert("join".into(), join.as_str().into());
        }
    }
}
