//! Compiles a [`Spec`] into a [`Plan`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::graph::GraphNext;
use super::order::{Reachability, resolve_dependencies};
use super::outline::{BlockOutline, Flow, Outline, index};
use super::scope::Undeclared;
use super::{
    Block, Choice, Hash, Input, Kind, NamedPrincipal, Next, OnError, Plan, Settings, Step, StepIx, Target,
};
use crate::bounded_regex::RegexSet;
use crate::diagnostic::{Code, Diagnostic, Diagnostics};
use crate::document::Node;
use crate::limits::RunLimits;
use crate::schema::Schema;
use crate::source::{Source, Span};
use crate::spec::head::{Head, OnRestart, OnToolChange};
use crate::spec::publish::Publish;
use crate::spec::value::{Spanned, Text};
use crate::spec::{Body, Spec};
use crate::steps::OnFail;

/// Compiles a definition. Returns `None` if it has errors, which are in `out`.
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
        principals: Vec::new(),
        reachability: Reachability::default(),
        regexes: RegexSet::default(),
        in_graph: matches!(spec.body, Body::Graph(_)),
        head: &spec.head,
        at: None,
        let_names: None,
    };
    let plan = compiler.plan(spec);
    (!out.has_errors()).then_some(plan)
}

fn undeclared(spec: &Spec) -> Undeclared {
    match &spec.body {
        Body::Graph(_) => Undeclared::Empty,
        Body::List { .. } if spec.unnamed && spec.head.inputs.is_none() => Undeclared::Infer,
        Body::List { .. } => Undeclared::Error,
    }
}

/// The state of a compilation.
pub(super) struct Compiler<'s, 'o> {
    pub source: &'o Source,
    pub out: &'o mut Diagnostics,
    pub outline: &'o Outline<'s>,
    pub declared: &'o BTreeSet<&'s str>,
    pub undeclared: Undeclared,
    /// Inputs that are used but not declared, as far as the form allows that.
    pub inferred: BTreeSet<String>,
    /// The users and groups that gates name.
    pub principals: Vec<NamedPrincipal>,
    pub reachability: Reachability,
    /// The regular expressions of the definition's expressions.
    pub regexes: RegexSet,
    pub in_graph: bool,
    pub head: &'s Head,
    /// The step that is being compiled; `None` for fields of the definition.
    pub at: Option<StepIx>,
    /// The names of the `let` step whose values are being compiled.
    pub let_names: Option<Vec<Box<str>>>,
}

impl<'s> Compiler<'s, '_> {
    fn plan(mut self, spec: &'s Spec) -> Plan {
        self.check_names(spec.unnamed, spec.span);
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
            principals: std::mem::take(&mut self.principals).into(),
            ids: BTreeMap::new(),
        };
        plan.ids = (0..).zip(&plan.steps).map(|(at, step)| (step.id.clone(), StepIx(at))).collect();
        link_dependents(&mut plan);
        super::guards::find_guarded(&mut plan);
        plan
    }

    pub(super) fn report(&mut self, diagnostic: Diagnostic) {
        let step = diagnostic.step.clone().or_else(|| self.at.map(|at| self.outline.step(at).id.to_owned()));
        self.out.push(Diagnostic { step, ..diagnostic });
    }

    fn inputs(&self) -> Vec<Input> {
        // An input without a schema has been reported as an error, so that there will be no plan.
        let declared = self.head.inputs.iter().flatten().filter_map(|(name, input)| {
            let default = input.default().map(Node::to_value);
            let required = !input.optional && default.is_none();
            let schema = input.compiled.clone()?;
            Some(Input { name: name.as_str().into(), schema, default, required })
        });
        let required = self.undeclared == Undeclared::Infer;
        let inferred = self.inferred.iter().map(|name| Input {
            name: name.as_str().into(),
            schema: Arc::new(Schema::any()),
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

    /// Checks that a number is between 1 and `max`, which is also the default.
    pub(super) fn limit(&mut self, written: Option<&Spanned<u32>>, max: u32) -> u32 {
        let Some(written) = written else { return max };
        if !(1..=max).contains(&written.value) {
            let message = format!("{} is out of range: expected 1 to {max}", written.value);
            self.report(Diagnostic::new(Code::InvalidValue, written.span, message));
        }
        written.value
    }

    fn block(&self, block: &BlockOutline<'s>) -> Block {
        let no_needs = |step: &&StepIx| self.outline.step(**step).predecessors.is_empty();
        let entry = match block.flow {
            Flow::Sequence => block.steps.first().copied().into_iter().collect(),
            Flow::Dag => block.steps.iter().filter(no_needs).copied().collect(),
            Flow::Graph => block.start.into_iter().collect(),
        };
        Block { owner: block.owner, name: block.name.map(Into::into), steps: block.steps.clone(), entry }
    }

    fn step(&mut self, at: StepIx) -> Step {
        self.at = Some(at);
        let step = self.outline.step(at);
        let next = self.next(at);
        let needs = match self.outline.block(step.block).flow {
            Flow::Dag => step.predecessors.clone(),
            Flow::Sequence | Flow::Graph => Vec::new(),
        };
        let Some(spec) = step.spec else { return self.fork(at, next) };
        let condition = spec.policy.r#if.as_ref().and_then(|text| self.step_condition(text));
        let kind = self.kind(spec, at);
        if let Some(retry) = &spec.policy.retry {
            self.check_retry(retry);
        }
        Step {
            id: spec.id().into(),
            description: boxed(spec.common.description.as_ref()),
            block: step.block,
            condition,
            needs,
            next,
            outputs: names(spec.common.outputs.iter().flat_map(|names| &names.0)),
            timeout_ms: self.timeout(&spec.policy),
            retry: if can_retry(&kind) { self.retry(spec, at) } else { None },
            on_error: self.on_error(spec.policy.on_error.as_ref()),
            needs_human: self.needs_human(spec),
            kind,
        }
    }

    /// Creates the `parallel` step that follows the tool of a step with both.
    fn fork(&mut self, at: StepIx, next: Next) -> Step {
        let step = self.outline.step(at);
        Step {
            id: format!("{}.fork", step.id).into(),
            description: None,
            block: step.block,
            condition: None,
            kind: self.forked(at),
            needs: Vec::new(),
            next,
            outputs: Box::default(),
            timeout_ms: None,
            retry: None,
            on_error: OnError::Fail,
            needs_human: None,
        }
    }

    pub(super) fn forked(&self, at: StepIx) -> Kind {
        let branches = self.outline.step(at).children.clone();
        Kind::Parallel(super::Parallel { branches, concurrency: None, on_any_fail: OnFail::Abort })
    }

    fn next(&mut self, at: StepIx) -> Next {
        let step = self.outline.step(at);
        let block = self.outline.block(step.block);
        match block.flow {
            Flow::Sequence => block.steps.get(step.position + 1).map_or(Next::End, |step| Next::Step(*step)),
            Flow::Dag => Next::Dependents(Vec::new()),
            Flow::Graph => match self.outline.transitions.get(&at) {
                None | Some(GraphNext::To(Target::End)) => Next::End,
                Some(GraphNext::To(Target::Step(step))) => Next::Step(*step),
                Some(GraphNext::Choose { cases, otherwise }) => {
                    if otherwise.is_none() {
                        self.warn_no_else(step.spec.map_or_else(Span::default, |spec| spec.span));
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
        self.report(Diagnostic::new(Code::BranchWithoutElse, span, message).hint(
            "if no condition holds, the run fails with `no_branch_matched`; add an `else` to continue",
        ));
    }

    /// Whether a block is a branch of a fork that joins at `step`.
    fn joins_at(&self, block: &BlockOutline<'s>, step: StepIx) -> bool {
        let next = block.owner.and_then(|fork| self.outline.transitions.get(&fork));
        block.flow == Flow::Graph && matches!(next, Some(GraphNext::To(Target::Step(join))) if *join == step)
    }

    /// Resolves a `goto` to a step of the same block, or from a parallel branch to its join.
    pub(super) fn goto(&mut self, name: &Text) -> Option<Target> {
        let at = self.at?;
        let step = self.outline.step(at);
        let block = self.outline.block(step.block);
        let (code, message, hint) = match self.outline.ids.get(name.as_str()).copied() {
            None => (
                Code::UnknownStep,
                format!("there is no step `{}`", name.value),
                "use the id of a step of the same list",
            ),
            Some(to) if self.joins_at(block, to) => return Some(Target::End),
            Some(to) if self.outline.step(to).block != step.block => {
                let message = format!("`{}` is not in the same list of steps", name.value);
                (Code::InvalidGoto, message, "`goto` cannot leave its list of steps")
            }
            Some(_) if block.flow == Flow::Dag => {
                let message = "`goto` is not allowed in a DAG".to_owned();
                (Code::InvalidGoto, message, "use `on_error: continue` and a `branch` on `steps.<id>.status`")
            }
            Some(to) if block.flow == Flow::Sequence && self.outline.step(to).position <= step.position => {
                let message = format!("`{}` is not a later step", name.value);
                (
                    Code::InvalidGoto,
                    message,
                    "in a list, `goto` only jumps forwards; use the graph form for loops",
                )
            }
            Some(to) => return Some(Target::Step(to)),
        };
        // Unknown steps in a graph are reported when the graph is outlined.
        if !(block.flow == Flow::Graph && code == Code::UnknownStep) {
            self.report(Diagnostic::new(code, name.span, message).hint(hint));
        }
        None
    }
}

/// Fills in the dependents of each step of a DAG.
fn link_dependents(plan: &mut Plan) {
    for at in 0..plan.steps.len() {
        let dependent = StepIx(index(at));
        for need in plan.steps[at].needs.clone() {
            if let Next::Dependents(dependents) = &mut plan.steps[need.index()].next {
                dependents.push(dependent);
            }
        }
    }
}

/// Whether steps of a kind have attempts that can be retried.
fn can_retry(kind: &Kind) -> bool {
    matches!(kind, Kind::Call(_) | Kind::Workflow(_))
}

pub(super) fn boxed(text: Option<&Text>) -> Option<Box<str>> {
    text.map(|text| text.value.as_str().into())
}

pub(super) fn names<'t>(texts: impl IntoIterator<Item = &'t Text>) -> Box<[Box<str>]> {
    texts.into_iter().map(|text| text.value.as_str().into()).collect()
}
