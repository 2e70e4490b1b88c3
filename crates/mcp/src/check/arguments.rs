//! Arguments of calls, compared with the input schemas of their tools.

use serde_json::{Value, json};
use steprail_core::diagnostic::{Code, nearest};
use steprail_core::document::{Data, Node};
use steprail_core::expr::{Expr, Template, ValueTemplate};
use steprail_core::plan::{Call, Step};

use super::schema::{Property, SchemaNode};
use super::{Check, arguments_hint};
use crate::gateway::ToolInfo;

/// An argument of a step, or a part of one.
struct Argument<'s> {
    step: &'s Step,
    tool: &'s ToolInfo,
    /// Path from the arguments of the step; empty for all arguments.
    path: String,
    node: Option<&'s Node>,
}

impl Argument<'_> {
    fn key(&self, key: &str) -> Self {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Self { path, node: self.node.and_then(|node| node.get(key)), ..*self }
    }

    fn item(&self, index: usize) -> Self {
        let node = self.node.and_then(|node| match &node.data {
            Data::List(nodes) => nodes.get(index),
            _ => None,
        });
        Self { path: format!("{}[{index}]", self.path), node, ..*self }
    }
}

impl Check<'_> {
    pub(super) fn arguments(&mut self, step: &Step, call: &Call, tool: &ToolInfo) {
        let given: Vec<&str> = match &call.args {
            ValueTemplate::Map(entries) => entries.iter().map(|(key, _)| &**key).collect(),
            ValueTemplate::Literal(Value::Object(map)) => map.keys().map(String::as_str).collect(),
            // A map that one reference computes is checked when the step runs.
            ValueTemplate::Literal(_) | ValueTemplate::Text(_) | ValueTemplate::List(_) => return,
        };
        let required = tool.input_schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !given.contains(&name) && call.idempotency_arg.as_deref() != Some(name) {
                let span = self.field(step, &["args", "tool", "action"]);
                let message = format!("`{}` needs the argument `{name}`", tool.name);
                self.report(Code::WrongArguments, step, span, message, Some(arguments_hint(tool)));
            }
        }
        let node = self.nodes.get(&*step.id).and_then(|node| node.get("args"));
        let arguments = Argument { step, tool, path: String::new(), node };
        self.value(&arguments, &call.args, SchemaNode::new(tool.checked_schema()));
    }

    fn value(&mut self, argument: &Argument<'_>, value: &ValueTemplate, schema: SchemaNode<'_>) {
        match value {
            ValueTemplate::Literal(Value::Object(map)) => {
                for (key, value) in map {
                    self.property(argument, key, &ValueTemplate::Literal(value.clone()), schema);
                }
            }
            ValueTemplate::Map(entries) => {
                entries.iter().for_each(|(key, value)| self.property(argument, key, value, schema));
            }
            ValueTemplate::List(items) => {
                let Some(schema) = schema.items() else { return };
                for (index, item) in items.iter().enumerate() {
                    self.value(&argument.item(index), item, schema);
                }
            }
            ValueTemplate::Text(Template::Whole(expr)) => self.reference(argument, expr, schema),
            ValueTemplate::Text(Template::Mixed(_)) => {
                let text = json!({ "type": "string" });
                self.types(argument, SchemaNode::new(&text), schema, "this");
            }
            ValueTemplate::Literal(value) | ValueTemplate::Text(Template::Literal(value)) => {
                self.literal(argument, value, schema);
            }
        }
    }

    fn property(&mut self, parent: &Argument<'_>, key: &str, value: &ValueTemplate, schema: SchemaNode<'_>) {
        let argument = parent.key(key);
        let (code, message) = match schema.property(key) {
            Property::Declared(schema) => return self.value(&argument, value, schema),
            Property::Allowed => return,
            Property::Undeclared => {
                let message = format!(
                    "`{}` does not declare the argument `{}` and may ignore it",
                    parent.tool.name, argument.path
                );
                (Code::UnknownArgument, message)
            }
            Property::Forbidden => {
                (Code::WrongArguments, format!("`{}` has no argument `{}`", parent.tool.name, argument.path))
            }
        };
        let all = schema.json.get("properties").and_then(Value::as_object);
        let near = all.and_then(|all| nearest(key, all.keys().map(String::as_str)));
        let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        let hint =
            if parent.path.is_empty() { format!("{near}{}", arguments_hint(parent.tool)) } else { near };
        let hint = Some(hint.trim_end().to_owned()).filter(|hint| !hint.is_empty());
        self.report(code, parent.step, self.span(parent.step, argument.node), message, hint);
    }

    fn literal(&mut self, argument: &Argument<'_>, value: &Value, schema: SchemaNode<'_>) {
        if let Some(problem) = argument.tool.problem_of(schema.json, value) {
            let message = format!("`{}` of `{}`: {problem}", argument.path, argument.tool.name);
            let span = self.span(argument.step, argument.node);
            self.report(Code::WrongArguments, argument.step, span, message, None);
        }
    }

    /// Compares the types of a reference and an argument, if the schema of the referenced value is known.
    fn reference(&mut self, argument: &Argument<'_>, expr: &Expr, schema: SchemaNode<'_>) {
        let Expr::Ref(reference) = expr else { return };
        let Some(root) = self.schema_of(&reference.root) else { return };
        if let Ok(referenced) = SchemaNode::new(&root).follow(&reference.path) {
            self.types(argument, referenced, schema, &format!("`{}`", reference.written));
        }
    }

    fn types(
        &mut self,
        argument: &Argument<'_>,
        given: SchemaNode<'_>,
        expected: SchemaNode<'_>,
        source: &str,
    ) {
        let (Some(given), Some(expected)) = (given.types(), expected.types()) else { return };
        let is_accepted =
            |given: &&str| expected.contains(given) || (*given == "integer" && expected.contains(&"number"));
        // A `number` may turn out to be an integer.
        let may_be_accepted = |given: &&str| *given == "number" && expected.contains(&"integer");
        if given.iter().any(|name| is_accepted(name) || may_be_accepted(name)) {
            return;
        }
        let (expected, given) = (expected.join(" or "), given.join(" or "));
        let message = format!(
            "`{}` of `{}` must be {expected}, but {source} is {given}",
            argument.path, argument.tool.name
        );
        let span = self.span(argument.step, argument.node);
        self.report(Code::UnverifiedArgument, argument.step, span, message, None);
    }
}
