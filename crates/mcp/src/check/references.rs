//! References to outputs of tools and to inputs, checked against the schemas of these values.

use serde_json::Value;
use steprail_core::diagnostic::{Code, Diagnostic, quoted};
use steprail_core::expr::{Expr, Part, Ref, Template, ValueTemplate};
use steprail_core::plan::Kind;
use steprail_core::source::Span;

use super::Check;
use super::schema::{Property, SchemaNode};
use crate::limits::SUGGESTIONS;

/// A reference to a value that does not exist, or may not exist.
struct DanglingReference {
    code: Code,
    message: String,
    hint: Option<String>,
}

impl Check<'_> {
    /// Checks the references of arguments, loop items, workflow inputs, computed values and the output.
    pub(super) fn references(&mut self) {
        let plan = self.plan;
        for step in &plan.steps {
            let (template, fields): (_, &[&str]) = match &step.kind {
                Kind::Call(call) => (&call.args, &["args"]),
                Kind::Foreach(foreach) => (&foreach.items, &["items"]),
                Kind::Workflow(workflow) => (&workflow.inputs, &["inputs"]),
                Kind::Let(values) => {
                    let span = self.field(step, &["let"]);
                    values.values.iter().for_each(|value| self.template(&value.value, span, Some(&step.id)));
                    continue;
                }
                _ => continue,
            };
            let span = self.field(step, fields);
            self.template(template, span, Some(&step.id));
        }
        if let Some(output) = &plan.output {
            self.template(output, self.output_span, None);
        }
    }

    fn template(&mut self, template: &ValueTemplate, span: Span, step: Option<&str>) {
        let mut dangling = Vec::new();
        in_value(template, &mut |reference| dangling.extend(self.dangling(reference)));
        for DanglingReference { code, message, hint } in dangling {
            let mut diagnostic = Diagnostic::new(code, span, message);
            (diagnostic.hint, diagnostic.step) = (hint, step.map(str::to_owned));
            self.diagnostics.push(diagnostic);
        }
    }

    fn dangling(&self, reference: &Ref) -> Option<DanglingReference> {
        if let Some(name) = self.unlisted_variable(reference) {
            let message =
                format!("`{}`: definitions cannot read the environment variable {name}", reference.written);
            let hint = format!("an operator can add \"{name}\" to the setting `definitions.env`");
            return Some(DanglingReference { code: Code::UnlistedVariable, message, hint: Some(hint) });
        }
        let schema = self.schema_of(&reference.root)?;
        let (code, parent) = match SchemaNode::new(&schema).follow(&reference.path) {
            Err((Property::Undeclared, parent)) => (Code::UnverifiedArgument, parent),
            Err((Property::Forbidden, parent)) => (Code::UnknownOutput, parent),
            _ => return None,
        };
        Some(DanglingReference::new(code, reference, parent))
    }
}

impl DanglingReference {
    fn new(code: Code, reference: &Ref, parent: SchemaNode<'_>) -> Self {
        let keys = parent.json.get("properties").and_then(Value::as_object);
        let keys = keys.into_iter().flat_map(|all| all.keys().map(String::as_str));
        let keys: Vec<&str> = keys.take(SUGGESTIONS).collect();
        let hint = Some(format!("the schema has {}", quoted(&keys))).filter(|_| !keys.is_empty());
        let message = match code {
            Code::UnknownOutput => {
                format!("`{}` does not exist: the schema does not allow it", reference.written)
            }
            _ => format!("`{}` is not in the schema and may not exist", reference.written),
        };
        Self { code, message, hint }
    }
}

fn in_value(template: &ValueTemplate, visit: &mut dyn FnMut(&Ref)) {
    match template {
        ValueTemplate::Literal(_) => {}
        ValueTemplate::Text(text) => in_text(text, visit),
        ValueTemplate::List(items) => items.iter().for_each(|item| in_value(item, visit)),
        ValueTemplate::Map(entries) => entries.iter().for_each(|(_, value)| in_value(value, visit)),
    }
}

fn in_text(text: &Template, visit: &mut dyn FnMut(&Ref)) {
    match text {
        Template::Literal(_) => {}
        Template::Whole(expr) => in_expr(expr, visit),
        Template::Mixed(parts) => parts.iter().for_each(|part| {
            if let Part::Expr(expr) = part {
                in_expr(expr, visit);
            }
        }),
    }
}

/// Visits references that fail a run if the value is missing: not the first argument of `has` and `default`.
fn in_expr(expr: &Expr, visit: &mut dyn FnMut(&Ref)) {
    match expr {
        Expr::Ref(reference) => visit(reference),
        Expr::Query(query) => visit(&query.base),
        Expr::Call(function, items) if function.accepts_missing() => {
            items.iter().skip(1).for_each(|item| in_expr(item, visit));
        }
        other => other.for_each_part(&mut |part| in_expr(part, visit)),
    }
}
