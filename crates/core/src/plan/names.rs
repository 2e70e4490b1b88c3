//! Warnings about names: a definition without one, and names that mean two things.

use super::compile::Compiler;
use super::scope::ROOTS;
use crate::diagnostic::{Code, Diagnostic};
use crate::source::Span;
use crate::spec::step::{Kind, Step};
use crate::spec::value::Text;

impl Compiler<'_, '_> {
    pub(super) fn check_names(&mut self, unnamed: bool, place: Span) {
        if unnamed {
            let name = self.source.stem();
            let message = format!("the definition has no `name`; it is called `{name}` after its file");
            self.report(Diagnostic::new(Code::UnnamedDefinition, place, message).hint("add `name: …`"));
        }
        for step in self.outline.steps.iter().filter_map(|place| place.spec) {
            self.check_id(step);
            self.check_item(step);
        }
    }

    /// A step whose bare name means something else.
    fn check_id(&mut self, step: &Step) {
        let Some(id) = &step.common.id else { return };
        let other = match id.as_str() {
            name if self.declared.contains(name) => "an input",
            name if ROOTS.contains(&name) => "a well-known root",
            _ => return,
        };
        let message = format!("`{}` is a step and {other}; the bare name does not mean the step", id.value);
        self.warn_shadowed(step, id, message, format!("read the step as `steps.{}.output`", id.value));
    }

    /// A loop's item whose name means something else outside the loop.
    fn check_item(&mut self, step: &Step) {
        let Kind::Foreach(foreach) = &step.kind else { return };
        let Some(item) = &foreach.r#as else { return };
        let (other, spelling) = match item.as_str() {
            name if self.declared.contains(name) => ("an input", format!("inputs.{name}")),
            name if self.outline.ids.contains_key(name) => ("a step", format!("steps.{name}.output")),
            _ => return,
        };
        let message =
            format!("`{}` is an item and {other}; inside the loop the bare name means the item", item.value);
        self.warn_shadowed(step, item, message, format!("rename the item, or write `{spelling}`"));
    }

    fn warn_shadowed(&mut self, step: &Step, name: &Text, message: String, hint: String) {
        let diagnostic = Diagnostic::new(Code::ShadowedName, name.span, message).hint(hint);
        self.report(Diagnostic { step: Some(step.id().to_owned()), ..diagnostic });
    }
}
