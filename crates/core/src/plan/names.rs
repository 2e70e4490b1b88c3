//! Warns about unnamed definitions and ambiguous names.

use super::compile::Compiler;
use super::scope::ROOTS;
use crate::diagnostic::{Code, Diagnostic};
use crate::source::Span;
use crate::spec::step::{Kind, Step};
use crate::spec::value::Text;
use crate::steps::LetValues;

impl Compiler<'_, '_> {
    pub(super) fn check_names(&mut self, unnamed: bool, span: Span) {
        if unnamed {
            let name = self.source.stem();
            let message = format!("the definition has no `name`; it is named `{name}` after its file");
            self.report(Diagnostic::new(Code::UnnamedDefinition, span, message).hint("add `name: …`"));
        }
        for step in self.outline.steps.iter().filter_map(|step| step.spec) {
            self.check_id(step);
            self.check_loop_variable(step);
            self.check_let_names(step);
        }
    }

    /// Warns about a step whose bare id refers to something else.
    fn check_id(&mut self, step: &Step) {
        let Some(id) = &step.common.id else { return };
        let other = match id.as_str() {
            name if self.declared.contains(name) => "an input",
            name if ROOTS.contains(&name) => "a reserved name",
            _ => return,
        };
        let message =
            format!("`{}` is both a step and {other}; the bare name does not refer to the step", id.value);
        self.warn_shadowed(step, id, message, format!("refer to the step as `steps.{}.output`", id.value));
    }

    /// Warns about a loop variable whose name refers to something else outside the loop.
    fn check_loop_variable(&mut self, step: &Step) {
        let Kind::Foreach(foreach) = &step.kind else { return };
        let Some(item) = &foreach.r#as else { return };
        let (other, reference) = match item.as_str() {
            name if self.declared.contains(name) => ("an input", format!("inputs.{name}")),
            name if self.outline.ids.contains_key(name) => ("a step", format!("steps.{name}.output")),
            _ => return,
        };
        let message = format!(
            "`{}` is both a loop variable and {other}; inside the loop the bare name refers to the loop variable",
            item.value
        );
        self.warn_shadowed(step, item, message, format!("rename the loop variable, or write `{reference}`"));
    }

    /// Warns about names of a `let` step that refer to something else in other steps.
    fn check_let_names(&mut self, step: &Step) {
        let Kind::Let(values) = &step.kind else { return };
        for entry in values.r#let.iter().flat_map(LetValues::sorted) {
            let (other, reference) = match &*entry.key {
                name if self.declared.contains(name) => ("an input", format!("inputs.{name}")),
                name if self.outline.ids.contains_key(name) => ("a step", format!("steps.{name}.output")),
                _ => continue,
            };
            let message = format!(
                "`{}` is both a name of this `let` and {other}; inside the `let` the bare name refers to its value",
                entry.key
            );
            let name = Text { value: entry.key.to_string(), span: entry.key_span };
            self.warn_shadowed(step, &name, message, format!("choose another name, or write `{reference}`"));
        }
    }

    fn warn_shadowed(&mut self, step: &Step, name: &Text, message: String, hint: String) {
        let diagnostic = Diagnostic::new(Code::ShadowedName, name.span, message).hint(hint);
        self.report(Diagnostic { step: Some(step.id().to_owned()), ..diagnostic });
    }
}
