//! Compiles templates and conditions, and maps their problems to source positions.

use std::ops::Range;

use serde_json::Value;

use super::compile::Compiler;
use super::outline::Flow;
use super::scope::Scope;
use super::{BlockIx, StepCondition, StepIx};
use crate::diagnostic::{Code, Diagnostic, nearest};
use crate::document::{Data, Node};
use crate::expr::{Condition, Problem, Resolve, Root, Template, ValueTemplate};
use crate::source::{Source, Span};
use crate::spec::step::Kind;
use crate::spec::value::Text;

/// The scope of an expression beyond the names of the definition.
struct Bindings {
    /// The value of `result`, if it is defined.
    result: Option<Root>,
    /// Whether the step of the expression has completed.
    done: bool,
}

/// A text and its position in the source.
pub(crate) struct SourceText<'t> {
    text: &'t str,
    span: Span,
    /// The source text at that position, with quotes, escapes and indentation.
    raw: &'t str,
    /// Offset of the text in `raw`, if it contains the text verbatim.
    offset: Option<usize>,
}

impl<'t> SourceText<'t> {
    pub(crate) fn new(text: &'t str, span: Span, source: &'t Source) -> Self {
        let raw = source.text().get(span.range()).unwrap_or_default();
        Self { text, span, raw, offset: raw.find(text) }
    }

    /// Returns the position of a part of the text. If the text is escaped or folded, the n-th occurrence of the
    /// part in the text is mapped to its n-th occurrence in the source. If that fails, returns the whole value.
    pub(crate) fn locate(&self, at: &Range<usize>) -> Span {
        let part = self.text.get(at.clone()).filter(|part| !part.is_empty());
        let start = match (self.offset, part) {
            (Some(offset), _) => Some(offset + at.start),
            (None, Some(part)) => {
                let before = self.text[..at.start].matches(part).count();
                self.raw.match_indices(part).nth(before).map(|(start, _)| start)
            }
            (None, None) => None,
        };
        let Some(start) = start.map(|start| self.span.start as usize + start) else { return self.span };
        Span::new(start, (start + at.len().max(1)).min(self.span.end as usize))
    }
}

impl Compiler<'_, '_> {
    /// Runs `parse` with the scope of the current step, and reports its problems at their positions.
    fn with_scope<T>(
        &mut self,
        text: &str,
        span: Span,
        bindings: Bindings,
        parse: impl FnOnce(&mut Scope, &mut Vec<Problem>) -> T,
    ) -> T {
        let root = self.at.map(|at| self.root_of(at));
        let mut scope = Scope {
            outline: self.outline,
            declared: self.declared,
            undeclared: self.undeclared,
            from: self.at,
            result: bindings.result,
            let_names: self.let_names.as_deref(),
            done: bindings.done,
            failed: root.is_some() && root == self.outline.on_failure,
            hints: !self.out.is_full(),
            reachability: &mut self.reachability,
            regexes: &mut self.regexes,
            problems: Vec::new(),
            inferred: Vec::new(),
        };
        let mut problems = Vec::new();
        let parsed = parse(&mut scope, &mut problems);
        let inferred = scope.inferred;
        problems.extend(scope.problems);
        if !inferred.is_empty() || !problems.is_empty() {
            let source_text = SourceText::new(text, span, self.source);
            self.report_inferred(inferred, &source_text);
            for problem in problems {
                let diagnostic =
                    Diagnostic::new(problem.code, source_text.locate(&problem.at), problem.message);
                self.report(Diagnostic { hint: problem.hint, ..diagnostic });
            }
        }
        parsed
    }

    fn report_inferred(&mut self, inferred: Vec<(String, Range<usize>)>, source_text: &SourceText) {
        for (name, at) in inferred {
            if !self.inferred.insert(name.clone()) {
                continue;
            }
            let message = format!("the input `{name}` is used but not declared");
            let hint = match nearest(&name, self.declared.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("declare it: `inputs: {{ {name}: {{ type: string }} }}`"),
            };
            self.report(Diagnostic::new(Code::UndeclaredInput, source_text.locate(&at), message).hint(hint));
        }
    }

    fn root_of(&self, step: StepIx) -> BlockIx {
        let mut block = self.outline.step(step).block;
        while let Some(owner) = self.outline.block(block).owner {
            block = self.outline.step(owner).block;
        }
        block
    }

    pub(super) fn template(&mut self, text: &str, span: Span) -> Template {
        self.template_as(text, span, Code::InvalidTemplate)
    }

    /// Compiles a template. Reports syntax errors with the given code.
    pub(super) fn template_as(&mut self, text: &str, span: Span, malformed: Code) -> Template {
        if !text.contains(['$', '{']) {
            return Template::Literal(Value::from(text));
        }
        let bindings = self.bindings_before();
        self.with_scope(text, span, bindings, |scope, problems| {
            let template = Template::parse(text, scope, problems);
            problems
                .iter_mut()
                .filter(|problem| problem.code == Code::InvalidTemplate)
                .for_each(|problem| problem.code = malformed);
            template
        })
    }

    /// Compiles a value whose strings can contain references.
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
                        let message = "keys cannot contain references";
                        let diagnostic = Diagnostic::new(Code::InvalidTemplate, entry.key_span, message);
                        self.report(diagnostic.hint("use references in values only"));
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

    /// The bindings before the step runs: `result` is the output of the previous step of a sequence.
    fn bindings_before(&self) -> Bindings {
        let previous = self.at.and_then(|at| {
            let step = self.outline.step(at);
            let block = self.outline.block(step.block);
            let previous = step.position.checked_sub(1).filter(|_| block.flow == Flow::Sequence)?;
            block.steps.get(previous).copied()
        });
        Bindings { result: previous.map(Root::Output), done: false }
    }

    pub(super) fn condition(&mut self, text: &Text) -> Option<Condition> {
        let bindings = self.bindings_before();
        self.parse_condition(text, bindings, Condition::parse_result)
    }

    /// Compiles the condition under which a step runs.
    pub(super) fn step_condition(&mut self, text: &Text) -> Option<StepCondition> {
        let when = self.condition(text)?;
        Some(StepCondition { when, written: text.value.as_str().into() })
    }

    pub(super) fn jsonpath_condition(&mut self, text: &Text) -> Option<Condition> {
        let bindings = self.bindings_before();
        self.parse_condition(text, bindings, Condition::parse_jsonpath)
    }

    /// Compiles a condition of a transition: `result` is the output of the step itself.
    pub(super) fn transition_condition(&mut self, text: &Text, step: StepIx) -> Option<Condition> {
        let has_result = !matches!(self.outline.step(step).spec.map(|spec| &spec.kind), Some(Kind::Pass(_)));
        let result = has_result.then_some(Root::Output(step));
        self.parse_condition(text, Bindings { result, done: true }, Condition::parse_result)
    }

    /// Compiles a condition on the output of a `verify` call.
    pub(super) fn probe_condition(&mut self, text: &Text) -> Option<Condition> {
        self.parse_condition(
            text,
            Bindings { result: Some(Root::Probe), done: false },
            Condition::parse_result,
        )
    }

    /// Compiles a template that can read the result of the call of its step as `result`.
    pub(super) fn result_template(&mut self, text: &Text) -> Template {
        let bindings = Bindings { result: Some(Root::Probe), done: false };
        self.with_scope(text, text.span, bindings, |scope, problems| Template::parse(text, scope, problems))
    }

    fn parse_condition(
        &mut self,
        text: &Text,
        bindings: Bindings,
        parse: fn(&str, &mut dyn Resolve) -> Result<Condition, Problem>,
    ) -> Option<Condition> {
        self.with_scope(text, text.span, bindings, |scope, problems| {
            parse(text, scope).map_err(|problem| problems.push(problem)).ok()
        })
    }
}

fn is_literal(value: &ValueTemplate) -> bool {
    matches!(value, ValueTemplate::Literal(_))
}

fn literal(value: ValueTemplate) -> Option<Value> {
    if let ValueTemplate::Literal(value) = value { Some(value) } else { None }
}
