//! [`Spec`] to [`Plan`].

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::Value;

use super::graph::Leads;
use super::order::{Reach, resolve_dependencies};
use super::outline::{BlockPlace, Flow, Outline, index};
use super::scope::Undeclared;
use super::{Block, Choice, Hash, Input, Kind, Next, OnError, Plan, Settings, Step, StepIx, Target};
use crate::diagnostic::{Code, Diagnostic, Diagnostics};
use crate::document::Node;
use crate::limits::RunLimits;
use crate::source::{Source, Span};
use crate::spec::head::{Head, OnRestart, OnToolChange};
use crate::spec::publish::Publish;
use crate::spec::value::{Spanned, Text};
use crate::spec::{Body, Spec};
use crate::steps::OnFail;

/// Compiles a definition. `None` if it has errors, which are in `out`.
pub(crate) fn compile(spec: &Spec, source: &Source, out: &mut Diagnostics) -> Option<Plan> {
    let mut outline = Outline::new(spec, out);
    resolve_dependencies(&mut outline, out);
    let declared = spec.head.inputs.iter().flatten().map(|(name, _)| name.as_str()).collect();
    let compiler = Compiler {
        source,
        out,
        declared: &declared,
        undeclared: undeclared(spec),
        outline: &outline,
        inferred: BTreeSet::new(),
        reach: Reach::default(),
        regexes: BTreeMap::new(),
        in_graph: matches!(spec.body, Body::Graph(_)),
        head: &spec.head,
        at: None,
    };
    let plan = compiler.plan(spec);
    (!out.has_errors()).then_some(plan)
}

fn undeclared(spec: &Spec) -> Undeclared {
    match &spec.body {
        Body::Graph(_) => Undeclared::Empty,
        Body::List { .. } if spec.unnamed && spec.head.inputs.is_none() => Undeclared::Infer,
        Body::List { .. } => Undeclared::Refuse,
    }
}

/// What compiling needs at hand.
pub(super) struct Compiler<'s, 'o> {
    pub source: &'o Source,
    pub out: &'o mut Diagnostics,
    pub outline: &'o Outline<'s>,
    pub declared: &'o BTreeSet<&'s str>,
    pub undeclared: Undeclared,
    /// Inputs that are used but not declared.
    pub inferred: BTreeSet<String>,
    pub reach: Reach,
    /// The regular expressions of the definition by their text.
    pub regexes: BTreeMap<String, Regex>,
    pub in_graph: bool,
    pub head: &'s Head,
    /// The step being compiled.
    pub at: Option<StepIx>,
}

impl<'s> Compiler<'s, '_> {
    fn plan(mut self, spec: &'s Spec) -> Plan {
        self.check_names(spec.unnamed, spec.place);
        let steps: Vec<Step> = (0..self.outline.steps.len()).map(|at| self.step(StepIx(index(at)))).collect();
        let blocks = self.outline.blocks.iter().map(|block| self.block(block)).collect();
        self.at = None;
        let output = spec.head.output.as_ref().map(|output| self.value(output));
        let canonical = spec.to_canonical_json();
        let mut plan = Plan {
            name: spec.head.name.as_ref().map_or(self.source.stem(), |name| name.as_str()).into(),
            description: boxed(spec.head.description.as_ref()),
            hash: Hash::of(canonical.as_bytes()),
            inputs: self.inputs(),
            output,
            steps,
            blocks,
            on_failure: self.outline.on_failure,
            settings: self.settings(),
            ids: BTreeMap::new(),
        };
        plan.ids = (0..).zip(&plan.steps).map(|(at, step)| (step.id.clone(), StepIx(at))).collect();
        link_dependents(&mut plan);
        plan
    }

    pub(super) fn report(&mut self, diagnostic: Diagnostic) {
        let step = diagnostic.step.clone().or_else(|| self.at.map(|at| self.outline.place(at).id.to_owned()));
        self.out.push(Diagnostic { step, ..diagnostic });
    }

    fn inputs(&self) -> Vec<Input> {
        let declared = self.head.inputs.iter().flatten().map(|(name, input)| {
            let default = input.default().map(Node::to_value);
            let required = !input.optional && default.is_none();
            Input { name: name.as_str().into(), schema: input.schema.to_value(), default, required }
        });
        let required = self.undeclared == Undeclared::Infer;
        let inferred = self.inferred.iter().map(|name| Input {
            name: name.as_str().into(),
            schema: Value::Object(serde_json::Map::new()),
            default: None,
            required,
        });
        declared.chain(inferred).collect()
    }

    fn settings(&mut self) -> Settings {
        let head = self.head;
        let patterns = head.allowed_tools.as_ref();
        Settings {
            allowed_tools: patterns
                .map(|list| list.iter().map(|pattern| pattern.value.as_str().into()).collect()),
            on_restart: head.on_restart.unwrap_or(OnRestart::Resume),
            on_tool_change: head.on_tool_change.unwrap_or(OnToolChange::Warn),
            limits: self.limits(),
            labels: head
                .labels
                .iter()
                .flatten()
                .map(|(name, text)| (name.clone(), text.value.clone()))
                .collect(),
            publish: head.publish.clone().filter(Publish::is_on),
        }
    }

    fn limits(&mut self) -> RunLimits {
        let max = RunLimits::MAX;
        let Some(limits) = &self.head.limits else { return max };
        RunLimits {
            step_runs: self.limit(limits.step_runs.as_ref(), max.step_runs),
            foreach_items: self.limit(limits.foreach_items.as_ref(), max.foreach_items),
            loop_visits: self.limit(limits.loop_visits.as_ref(), max.loop_visits),
            concurrency: self.limit(limits.concurrency.as_ref(), max.concurrency),
        }
    }

    /// A number from 1 to `max`; `max` where none is given.
    pub(super) fn limit(&mut self, written: Option<&Spanned<u32>>, max: u32) -> u32 {
        let Some(written) = written else { return max };
        if !(1..=max).contains(&written.value) {
            let message = format!("{} is outside 1 to {max}", written.value);
            self.report(Diagnostic::new(Code::InvalidValue, written.span, message));
        }
        written.value
    }

    fn block(&self, place: &BlockPlace<'s>) -> Block {
        let no_needs = |step: &&StepIx| self.outline.place(**step).before.is_empty();
        let entry = match place.flow {
            Flow::Sequence => place.steps.first().copied().into_iter().collect(),
            Flow::Dag => place.steps.iter().filter(no_needs).copied().collect(),
            Flow::Graph => place.start.into_iter().collect(),
        };
        Block { owner: place.owner, name: place.name.map(Into::into), steps: place.steps.clone(), entry }
    }

    fn step(&mut self, at: StepIx) -> Step {
        self.at = Some(at);
        let place = self.outline.place(at);
        let next = self.next(at);
        let needs = match self.outline.block(place.block).flow {
            Flow::Dag => place.before.clone(),
            Flow::Sequence | Flow::Graph => Vec::new(),
        };
        let Some(spec) = place.spec else { return self.fork(at, next) };
        let kind = self.kind(spec, at);
        if let Some(retry) = &spec.policy.retry {
            self.check_retry(retry);
        }
        Step {
            id: spec.id().into(),
            description: boxed(spec.common.description.as_ref()),
            block: place.block,
            needs,
            next,
            outputs: names(spec.common.outputs.iter().flat_map(|names| &names.0)),
            timeout_ms: self.timeout(&spec.policy),
            retry: if repeats(&kind) { self.retry(spec, at) } else { None },
            on_error: self.on_error(spec.policy.on_error.as_ref()),
            needs_human: spec.policy.needs_human.as_ref().is_some_and(|needs| needs.value),
            kind,
        }
    }

    /// The parallel step that follows the tool of a step with both.
    fn fork(&mut self, at: StepIx, next: Next) -> Step {
        let place = self.outline.place(at);
        Step {
            id: format!("{}.fork", place.id).into(),
            description: None,
            block: place.block,
            kind: self.forked(at),
            needs: Vec::new(),
            next,
            outputs: Box::default(),
            timeout_ms: None,
            retry: None,
            on_error: OnError::Fail,
            needs_human: false,
        }
    }

    pub(super) fn forked(&self, at: StepIx) -> Kind {
        let branches = self.outline.place(at).children.clone();
        Kind::Parallel(super::Parallel { branches, concurrency: None, on_any_fail: OnFail::Abort })
    }

    fn next(&mut self, at: StepIx) -> Next {
        let place = self.outline.place(at);
        let block = self.outline.block(place.block);
        match block.flow {
            Flow::Sequence => block.steps.get(place.position + 1).map_or(Next::End, |step| Next::Step(*step)),
            Flow::Dag => Next::Dependents(Vec::new()),
            Flow::Graph => match self.outline.transitions.get(&at) {
                None | Some(Leads::To(Target::End)) => Next::End,
                Some(Leads::To(Target::Step(step))) => Next::Step(*step),
                Some(Leads::Choose { cases, otherwise }) => {
                    if otherwise.is_none() {
                        self.warn_no_else(place.spec.map_or_else(Span::default, |spec| spec.place));
                    }
                    let choices = cases.iter().filter_map(|(text, to)| {
                        let when = self.transition_condition(text, at)?;
                        Some(Choice { when, written: text.value.as_str().into(), to: *to })
                    });
                    Next::Choose { choices: choices.collect(), otherwise: *otherwise }
                }
            },
        }
    }

    pub(super) fn warn_no_else(&mut self, span: Span) {
        let message = "this branch has no `else`";
        self.report(
            Diagnostic::new(Code::BranchWithoutElse, span, message).hint(
                "when no condition holds, the run fails with `no_branch_matched`; add an `else` to go on",
            ),
        );
    }

    /// Whether a block is a branch of a fork that joins at a step.
    fn joins_at(&self, block: &BlockPlace<'s>, step: StepIx) -> bool {
        let leads = block.owner.and_then(|fork| self.outline.transitions.get(&fork));
        block.flow == Flow::Graph && matches!(leads, Some(Leads::To(Target::Step(join))) if *join == step)
    }

    /// A jump to a step of the same block, or from a branch to the join.
    pub(super) fn goto(&mut self, name: &Text) -> Option<Target> {
        let at = self.at?;
        let place = self.outline.place(at);
        let block = self.outline.block(place.block);
        let (code, message, hint) = match self.outline.ids.get(name.as_str()).copied() {
            None => (
                Code::UnknownStep,
                format!("there is no step `{}`", name.value),
                "name a step of the same list",
            ),
            Some(to) if self.joins_at(block, to) => return Some(Target::End),
            Some(to) if self.outline.place(to).block != place.block => {
                let message = format!("`{}` is not in the same list of steps", name.value);
                (Code::InvalidGoto, message, "a jump stays in its own list")
            }
            Some(_) if block.flow == Flow::Dag => {
                let message = "a DAG has no order to jump in".to_owned();
                (Code::InvalidGoto, message, "use `on_error: continue` and a `branch` on `steps.<id>.status`")
            }
            Some(to) if block.flow == Flow::Sequence && self.outline.place(to).position <= place.position => {
                let message = format!("`{}` does not come later", name.value);
                (Code::InvalidGoto, message, "a sequence jumps forwards only; the graph form has loops")
            }
            Some(to) => return Some(Target::Step(to)),
        };
        // Among the steps of a graph, names that mean no step are reported where the graph is read.
        if !(block.flow == Flow::Graph && code == Code::UnknownStep) {
            self.report(Diagnostic::new(code, name.span, message).hint(hint));
        }
        None
    }
}

/// Fills in which steps of a DAG wait for which.
fn link_dependents(plan: &mut Plan) {
    for at in 0..plan.steps.len() {
        let waiting = StepIx(index(at));
        for need in plan.steps[at].needs.clone() {
            if let Next::Dependents(dependents) = &mut plan.steps[need.index()].next {
                dependents.push(waiting);
            }
        }
    }
}

/// Kinds that are attempted, and can be attempted again.
fn repeats(kind: &Kind) -> bool {
    matches!(kind, Kind::Call(_) | Kind::Workflow(_))
}

pub(super) fn boxed(text: Option<&Text>) -> Option<Box<str>> {
    text.map(|text| text.value.as_str().into())
}

pub(super) fn names<'t>(texts: impl IntoIterator<Item = &'t Text>) -> Box<[Box<str>]> {
    texts.into_iter().map(|text| text.value.as_str().into()).collect()
}
