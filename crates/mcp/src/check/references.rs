//! References to outputs of tools and to inputs, compared with what their schemas say is there.

use serde_json::Value;
use steprail_core::diagnostic::{Code, Diagnostic, quoted};
use steprail_core::expr::{Expr, Function, Part, Ref, Template, ValueTemplate};
use steprail_core::plan::Kind;
use steprail_core::source::Span;

use super::Check;
use super::shape::{Key, Shape};
use crate::limits::SUGGESTIONS;

/// A reference that leads nowhere.
struct Nowhere {
    code: Code,
    message: String,
    hint: Option<String>,
}

impl Check<'_> {
    /// Every reference of the definition that must lead to something.
    pub(super) fn references(&mut self) {
        let plan = self.plan;
        for step in &plan.steps {
            let (template, fields): (_, &[&str]) = match &step.kind {
                Kind::Call(call) => (&call.args, &["args"]),
                Kind::Foreach(foreach) => (&foreach.items, &["items"]),
                Kind::Workflow(workflow) => (&workflow.inputs, &["inputs"]),
                _ => continue,
            };
            let place = self.field(step, fields);
            self.template(template, place, Some(&step.id));
        }
        if let Some(output) = &plan.output {
            self.template(output, self.output_place, None);
        }
    }

    fn template(&mut self, template: &ValueTemplate, place: Span, step: Option<&str>) {
        let mut found = Vec::new();
        in_value(template, &mut |reference| found.extend(self.nowhere(reference)));
        for Nowhere { code, message, hint } in found {
            let mut diagnostic = Diagnostic::new(code, place, message);
            (diagnostic.hint, diagnostic.step) = (hint, step.map(str::to_owned));
            self.found.push(diagnostic);
        }
    }

    /// Why a reference leads nowhere, and what there is instead.
    fn nowhere(&self, reference: &Ref) -> Option<Nowhere> {
        let schema = self.schema_of(&reference.root)?;
        match Shape::new(&schema).follow(&reference.path) {
            Err((Key::Unnamed, shape)) => Some(Nowhere::new(Code::DoubtfulArgument, reference, shape)),
            Err((Key::Refused, shape)) => Some(Nowhere::new(Code::UnknownOutput, reference, shape)),
            _ => None,
        }
    }
}

impl Nowhere {
    fn new(code: Code, reference: &Ref, shape: Shape<'_>) -> Self {
        let keys = shape.schema.get("properties").and_then(Value::as_object);
        let keys = keys.into_iter().flat_map(|all| all.keys().map(String::as_str));
        let keys: Vec<&str> = keys.take(SUGGESTIONS).collect();
        let hint = Some(format!("there is {}", quoted(&keys))).filter(|_| !keys.is_empty());
        let message = match code {
            Code::UnknownOutput => format!("`{}` does not exist: the schema rules it out", reference.written),
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

/// References that fail if they lead nowhere: not the first argument of `has` and `default`.
fn in_expr(expr: &Expr, visit: &mut dyn FnMut(&Ref)) {
    match expr {
        Expr::Literal(_) => {}
        Expr::Ref(reference) => visit(reference),
        Expr::Query(query) => visit(&query.base),
        Expr::Call(Function::Has | Function::Default, items) => {
            items.iter().skip(1).for_each(|item| in_expr(item, visit));
        }
        Expr::List(items) | Expr::Call(_, items) => items.iter().for_each(|item| in_expr(item, visit)),
        Expr::Not(inner) | Expr::Negate(inner) | Expr::Matches(inner, _) => in_expr(inner, visit),
        Expr::Binary(_, sides) | Expr::Get(sides) => {
            in_expr(&sides.0, visit);
            in_expr(&sides.1, visit);
        }
        Expr::Choose(parts) => {
            in_expr(&parts.0, visit);
            in_expr(&parts.1, visit);
            in_expr(&parts.2, visit);
        }
    }
}
