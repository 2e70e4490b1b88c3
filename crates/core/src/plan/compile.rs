//! [`Spec`] to [`Plan`].

use std::collections::BTreeSet;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::graph::Leads;
use super::order::resolve_dependencies;
use super::outline::{Flow, Outline, index};
use super::scope::{ROOTS, Scope, Undeclared};
use super::{Block, BlockIx, Choice, Hash, Input, Kind, Next, OnError, Plan, Settings, Step, StepIx, Target};
use crate::diagnostic::{Code, Diagnostic, Diagnostics};
use crate::document::{Data, Node};
use crate::expr::{Condition, Problem, Template, ValueTemplate};
use crate::limits::RunLimits;
use crate::source::{Source, Span};
use crate::spec::head::{Head, OnRestart};
use crate::spec::value::{Spanned, Text};
use crate::spec::{Body, Spec, step};
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
        Body::List { .. } if spec.head.name.is_none() && spec.head.inputs.is_none() => Undeclared::Infer,
        Body::List { .. } => Undeclared::Refuse,
    }
}

/// What compiling needs at hand.
pub(super) struct Compiler<'s, 'o> {
    source: &'o Source,
    pub out: &'o mut Diagnostics,
    pub outline: &'o Outline<'s>,
    declared: &'o BTreeSet<&'s str>,
    undeclared: Undeclared,
    /// Inputs that are used but not declared.
    inferred: BTreeSet<String>,
    pub in_graph: bool,
    pub head: &'s Head,
    /// The step being compiled.
    pub at: Option<StepIx>,
}

impl<'s> Compiler<'s, '_> {
    fn plan(mut self, spec: &'s Spec) -> Plan {
        self.check_names(spec);
        let steps = (0..self.outline.steps.len()).map(|at| self.step(StepIx(index(at)))).collect();
        let blocks = self.outline.blocks.iter().map(|block| self.block(block)).collect();
        self.at = None;
        let output = spec.head.output.as_ref().map(|output| self.value(output));
        let canonical = spec.to_canonical_json();
        let mut plan = Plan {
            name: spec.head.name.as_ref().map_or(self.source.stem(), |name| name.as_str()).into(),
            description: boxed(spec.head.description.as_ref()),
            hash: Hash(Sha256::digest(canonical.as_bytes()).into()),
            inputs: self.inputs(),
            output,
            steps,
            blocks,
            on_failure: self.outline.on_failure,
            settings: self.settings(),
        };
        link_dependents(&mut plan);
        plan
    }

    pub(super) fn report(&mut self, diagnostic: Diagnostic) {
        let step = diagnostic.step.clone().or_else(|| self.at.map(|at| self.outline.place(at).id.to_owned()));
        self.out.push(Diagnostic { step, ..diagnostic });
    }

    fn check_names(&mut self, spec: &Spec) {
        if spec.head.name.is_none() && !self.out.has_errors() {
            let message =
                format!("the definition has no `name`; it is called `{}` after its file", self.source.stem());
            self.report(Diagnostic::new(Code::UnnamedDefinition, spec.place, message).hint("add `name: …`"));
        }
        let outline = self.outline;
        for place in &outline.steps {
            let Some(id) = place.spec.and_then(|spec| spec.common.id.as_ref()) else { continue };
            let other = match id.as_str() {
                name if self.declared.contains(name) => "an input",
                name if ROOTS.contains(&name) => "a well-known root",
                _ => continue,
            };
            let message =
                format!("`{}` is a step and {other}; the bare name does not mean the step", id.value);
            let hint = format!("read the step as `steps.{}.output`", id.value);
            let step = Some(id.value.clone());
            self.report(Diagnostic {
                step,
                ..Diagnostic::new(Code::ShadowedName, id.span, message).hint(hint)
            });
        }
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
            limits: self.limits(),
            labels: head
                .labels
                .iter()
                .flatten()
                .map(|(name, text)| (name.clone(), text.value.clone()))
                .collect(),
            publish: head.publish.as_ref().is_some_and(|publish| publish.value),
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

    fn block(&self, place: &super::outline::BlockPlace<'s>) -> Block {
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
                        let when = self.result_condition(text, at)?;
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

    /// A jump to a step of the same block.
    pub(super) fn goto(&mut self, name: &Text) -> Option<StepIx> {
        let at = self.at?;
        let place = self.outline.place(at);
        let block = self.outline.block(place.block);
        let (code, message, hint) = match self.outline.ids.get(name.as_str()).copied() {
            None => (
                Code::UnknownStep,
                format!("there is no step `{}`", name.value),
                "name a step of the same list",
            ),
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
            Some(to) => return Some(to),
        };
        // In the graph form, names that mean no step are reported where the graph is read.
        if !(self.in_graph && code == Code::UnknownStep) {
            self.report(Diagnostic::new(code, name.span, message).hint(hint));
        }
        None
    }

    /// Runs `parse` with what names mean here, and reports its problems at their places.
    fn with_scope<T>(
        &mut self,
        text: &str,
        span: Span,
        result: Option<StepIx>,
        parse: impl FnOnce(&mut Scope, &mut Vec<Problem>) -> T,
    ) -> T {
        let root = self.at.map(|at| self.root_of(at));
        let mut scope = Scope {
            outline: self.outline,
            declared: self.declared,
            undeclared: self.undeclared,
            from: self.at,
            result,
            failed: root.is_some() && root == self.outline.on_failure,
            inferred: Vec::new(),
        };
        let mut problems = Vec::new();
        let parsed = parse(&mut scope, &mut problems);
        for (name, at) in scope.inferred {
            if self.inferred.insert(name.clone()) {
                let message = format!("the input `{name}` is used but not declared");
                let hint = format!("declare it: `inputs: {{ {name}: {{ type: string }} }}`");
                let span = self.locate(text, span, at);
                self.report(Diagnostic::new(Code::UndeclaredInput, span, message).hint(hint));
            }
        }
        for problem in problems {
            let span = self.locate(text, span, problem.at);
            let diagnostic = Diagnostic::new(problem.code, span, problem.message);
            self.report(Diagnostic { hint: problem.hint, ..diagnostic });
        }
        parsed
    }

    fn root_of(&self, step: StepIx) -> BlockIx {
        let mut block = self.outline.place(step).block;
        while let Some(owner) = self.outline.block(block).owner {
            block = self.outline.place(owner).block;
        }
        block
    }

    /// Where a part of a text stands in the source. Quotes, escapes and folded lines make the two differ;
    /// then the part is looked for, or else the whole value is marked.
    fn locate(&self, text: &str, span: Span, at: std::ops::Range<usize>) -> Span {
        let raw = self.source.text().get(span.range()).unwrap_or_default();
        let start = match (raw.find(text), text.get(at.clone())) {
            (Some(offset), _) => Some(offset + at.start),
            (None, Some(part)) if !part.is_empty() => raw.find(part),
            _ => None,
        };
        let Some(start) = start.map(|start| span.start as usize + start) else { return span };
        let marked = at.len().max(1);
        Span::new(start, (start + marked).min(span.end as usize))
    }

    pub(super) fn template(&mut self, text: &str, span: Span) -> Template {
        self.template_as(text, span, Code::InvalidTemplate)
    }

    /// Compiles a template; a malformed one is reported under the given code.
    pub(super) fn template_as(&mut self, text: &str, span: Span, malformed: Code) -> Template {
        if !text.contains(['$', '{']) {
            return Template::Literal(Value::from(text));
        }
        let result = self.previous();
        self.with_scope(text, span, result, |scope, problems| {
            let template = Template::parse(text, scope, problems);
            problems
                .iter_mut()
                .filter(|problem| problem.code == Code::InvalidTemplate)
                .for_each(|problem| problem.code = malformed);
            template
        })
    }

    /// Compiles a value whose texts may hold references.
    pub(super) fn value(&mut self, node: &Node) -> ValueTemplate {
        match &node.data {
            Data::Text(text) => match self.template(text, node.span) {
                Template::Literal(value) => ValueTemplate::Literal(value),
                template => ValueTemplate::Text(template),
            },
            Data::List(items) => {
                let items: Vec<ValueTemplate> = items.iter().map(|item| self.value(item)).collect();
                if items.iter().all(is_literal) {
                    return ValueTemplate::Literal(items.into_iter().filter_map(literal).collect());
                }
                ValueTemplate::List(items)
            }
            Data::Map(entries) => {
                let mut compiled = Vec::with_capacity(entries.len());
                for entry in entries {
                    if entry.key.contains("{{") {
                        let message = "a key is not a template";
                        let diagnostic = Diagnostic::new(Code::InvalidTemplate, entry.key_span, message);
                        self.report(diagnostic.hint("references stand in values only"));
                    }
                    compiled.push((entry.key.clone(), self.value(&entry.value)));
                }
                if compiled.iter().all(|(_, value)| is_literal(value)) {
                    let pairs =
                        compiled.into_iter().filter_map(|(key, value)| Some((key.into(), literal(value)?)));
                    return ValueTemplate::Literal(Value::Object(pairs.collect()));
                }
                ValueTemplate::Map(compiled)
            }
            _ => ValueTemplate::Literal(node.to_value()),
        }
    }

    /// The step before this one in its sequence, whose output `result` means.
    fn previous(&self) -> Option<StepIx> {
        let place = self.outline.place(self.at?);
        let block = self.outline.block(place.block);
        let is_sequence = block.flow == Flow::Sequence;
        place
            .position
            .checked_sub(1)
            .filter(|_| is_sequence)
            .and_then(|before| block.steps.get(before).copied())
    }

    pub(super) fn condition(&mut self, text: &Text) -> Option<Condition> {
        let result = self.previous();
        self.parse_condition(text, result, Condition::parse)
    }

    pub(super) fn jsonpath_condition(&mut self, text: &Text) -> Option<Condition> {
        self.parse_condition(text, None, Condition::parse_jsonpath)
    }

    /// A condition on the step's own result.
    pub(super) fn result_condition(&mut self, text: &Text, step: StepIx) -> Option<Condition> {
        let has_result =
            !matches!(self.outline.place(step).spec.map(|spec| &spec.kind), Some(step::Kind::Pass(_)));
        self.parse_condition(text, has_result.then_some(step), Condition::parse_result)
    }

    fn parse_condition(
        &mut self,
        text: &Text,
        result: Option<StepIx>,
        parse: fn(&str, &mut dyn crate::expr::Resolve) -> Result<Condition, Problem>,
    ) -> Option<Condition> {
        self.with_scope(text, text.span, result, |scope, problems| {
            parse(text, scope).map_err(|problem| problems.push(problem)).ok()
        })
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

fn is_literal(value: &ValueTemplate) -> bool {
    matches!(value, ValueTemplate::Literal(_))
}

fn literal(value: ValueTemplate) -> Option<Value> {
    if let ValueTemplate::Literal(value) = value { Some(value) } else { None }
}
