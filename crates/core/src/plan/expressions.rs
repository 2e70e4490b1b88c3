//! Templates and conditions of a definition: compiled where they stand, their problems shown there.

use serde_json::Value;

use super::compile::Compiler;
use super::outline::Flow;
use super::scope::Scope;
use super::{BlockIx, StepIx};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, Node};
use crate::expr::{Condition, Problem, Resolve, Template, ValueTemplate};
use crate::source::Span;
use crate::spec::step::Kind;
use crate::spec::value::Text;

impl Compiler<'_, '_> {
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
        let has_result = !matches!(self.outline.place(step).spec.map(|spec| &spec.kind), Some(Kind::Pass(_)));
        self.parse_condition(text, has_result.then_some(step), Condition::parse_result)
    }

    fn parse_condition(
        &mut self,
        text: &Text,
        result: Option<StepIx>,
        parse: fn(&str, &mut dyn Resolve) -> Result<Condition, Problem>,
    ) -> Option<Condition> {
        self.with_scope(text, text.span, result, |scope, problems| {
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
