//! Templates and conditions of a definition: compiled where they stand, their problems shown there.

use std::ops::Range;

use serde_json::Value;

use super::compile::Compiler;
use super::outline::Flow;
use super::scope::Scope;
use super::{BlockIx, StepIx};
use crate::diagnostic::{Code, Diagnostic, nearest};
use crate::document::{Data, Node};
use crate::expr::{Condition, Problem, Resolve, Root, Template, ValueTemplate};
use crate::source::{Source, Span};
use crate::spec::step::Kind;
use crate::spec::value::Text;

/// What `result` and the step itself mean to an expression.
struct Meaning {
    result: Option<Root>,
    /// Whether the step that the expression stands on is done.
    done: bool,
}

/// A text and where it stands in the source.
struct Written<'t> {
    text: &'t str,
    span: Span,
    /// The source at that place, with quotes, escapes and indentation.
    raw: &'t str,
    /// Where the text starts in it, if it stands there as it is.
    offset: Option<usize>,
}

impl<'t> Written<'t> {
    fn new(text: &'t str, span: Span, source: &'t Source) -> Self {
        let raw = source.text().get(span.range()).unwrap_or_default();
        Self { text, span, raw, offset: raw.find(text) }
    }

    /// Where a part of the text stands. Where the text is escaped or folded, the part is looked for: the
    /// n-th in the text is the n-th in the source. Failing that, the whole value is marked.
    fn locate(&self, at: &Range<usize>) -> Span {
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
    /// Runs `parse` with what names mean here, and reports its problems at their places.
    fn with_scope<T>(
        &mut self,
        text: &str,
        span: Span,
        meaning: Meaning,
        parse: impl FnOnce(&mut Scope, &mut Vec<Problem>) -> T,
    ) -> T {
        let root = self.at.map(|at| self.root_of(at));
        let mut scope = Scope {
            outline: self.outline,
            declared: self.declared,
            undeclared: self.undeclared,
            from: self.at,
            result: meaning.result,
            done: meaning.done,
            failed: root.is_some() && root == self.outline.on_failure,
            hints: !self.out.is_full(),
            reach: &mut self.reach,
            regexes: &mut self.regexes,
            problems: Vec::new(),
            inferred: Vec::new(),
        };
        let mut problems = Vec::new();
        let parsed = parse(&mut scope, &mut problems);
        let inferred = scope.inferred;
        problems.extend(scope.problems);
        if !inferred.is_empty() || !problems.is_empty() {
            let written = Written::new(text, span, self.source);
            self.report_inferred(inferred, &written);
            for problem in problems {
                let diagnostic = Diagnostic::new(problem.code, written.locate(&problem.at), problem.message);
                self.report(Diagnostic { hint: problem.hint, ..diagnostic });
            }
        }
        parsed
    }

    fn report_inferred(&mut self, inferred: Vec<(String, Range<usize>)>, written: &Written) {
        for (name, at) in inferred {
            if !self.inferred.insert(name.clone()) {
                continue;
            }
            let message = format!("the input `{name}` is used but not declared");
            let hint = match nearest(&name, self.declared.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("declare it: `inputs: {{ {name}: {{ type: string }} }}`"),
            };
            self.report(Diagnostic::new(Code::UndeclaredInput, written.locate(&at), message).hint(hint));
        }
    }

    fn root_of(&self, step: StepIx) -> BlockIx {
        let mut block = self.outline.place(step).block;
        while let Some(owner) = self.outline.block(block).owner {
            block = self.outline.place(owner).block;
        }
        block
    }

    pub(super) fn template(&mut self, text: &str, span: Span) -> Template {
        self.template_as(text, span, Code::InvalidTemplate)
    }

    /// Compiles a template; a malformed one is reported under the given code.
    pub(super) fn template_as(&mut self, text: &str, span: Span, malformed: Code) -> Template {
        if !text.contains(['$', '{']) {
            return Template::Literal(Value::from(text));
        }
        let meaning = self.before();
        self.with_scope(text, span, meaning, |scope, problems| {
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

    /// Before the step runs: `result` is the output of the step before it in its sequence.
    fn before(&self) -> Meaning {
        let previous = self.at.and_then(|at| {
            let place = self.outline.place(at);
            let block = self.outline.block(place.block);
            let before = place.position.checked_sub(1).filter(|_| block.flow == Flow::Sequence)?;
            block.steps.get(before).copied()
        });
        Meaning { result: previous.map(Root::Output), done: false }
    }

    pub(super) fn condition(&mut self, text: &Text) -> Option<Condition> {
        let meaning = self.before();
        self.parse_condition(text, meaning, Condition::parse_result)
    }

    pub(super) fn jsonpath_condition(&mut self, text: &Text) -> Option<Condition> {
        let meaning = self.before();
        self.parse_condition(text, meaning, Condition::parse_jsonpath)
    }

    /// A condition on where a step leads: `result` is its own output.
    pub(super) fn transition_condition(&mut self, text: &Text, step: StepIx) -> Option<Condition> {
        let has_result = !matches!(self.outline.place(step).spec.map(|spec| &spec.kind), Some(Kind::Pass(_)));
        let result = has_result.then_some(Root::Output(step));
        self.parse_condition(text, Meaning { result, done: true }, Condition::parse_result)
    }

    /// A condition on the answer of a `verify` call.
    pub(super) fn probe_condition(&mut self, text: &Text) -> Option<Condition> {
        self.parse_condition(
            text,
            Meaning { result: Some(Root::Probe), done: false },
            Condition::parse_result,
        )
    }

    fn parse_condition(
        &mut self,
        text: &Text,
        meaning: Meaning,
        parse: fn(&str, &mut dyn Resolve) -> Result<Condition, Problem>,
    ) -> Option<Condition> {
        self.with_scope(text, text.span, meaning, |scope, problems| {
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
