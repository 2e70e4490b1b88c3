//! Checks the calls of a definition that does not compile yet: names of tools and required arguments. Everything else is
//! checked when the definition compiles.

use serde_json::Value;
use steprail_core::diagnostic::{Code, Diagnostic, Diagnostics};
use steprail_core::document::{Data, Node, read};
use steprail_core::names::{alias, full_name};
use steprail_core::source::{Source, Span};

use super::{CheckContext, arguments_hint};
use crate::limits::DRAFT_CALLS;
use crate::suggest;

/// Reports unknown tools and missing arguments in the readable parts of the text.
pub(super) fn check_draft(source: &Source, context: &CheckContext<'_>) -> Vec<Diagnostic> {
    let Some(root) = read(source, &mut Diagnostics::default()) else { return Vec::new() };
    calls(&root).iter().flat_map(|step| check_call(step, context)).collect()
}

/// Maps with the key `tool`, in the order of the text.
fn calls(root: &Node) -> Vec<&Node> {
    let mut calls = Vec::new();
    let mut stack = vec![root];
    while let Some(node) = stack.pop() {
        match &node.data {
            Data::List(items) => stack.extend(items.iter().rev()),
            Data::Map(entries) => {
                if node.get("tool").and_then(Node::as_text).is_some() && calls.len() < DRAFT_CALLS {
                    calls.push(node);
                }
                stack.extend(
                    entries.iter().rev().filter(|entry| &*entry.key != "args").map(|entry| &entry.value),
                );
            }
            _ => {}
        }
    }
    calls
}

fn check_call(step: &Node, context: &CheckContext<'_>) -> Vec<Diagnostic> {
    let text = |key: &str| step.get(key).and_then(Node::as_text);
    let Some(tool) = text("tool") else { return Vec::new() };
    let name = match text("server").or(text("dcc")) {
        Some(server) => full_name(&alias(server), tool),
        None => tool.to_owned(),
    };
    let span_of = |key: &str| step.get(key).map(|node| node.span).unwrap_or_default();
    let diagnostic = |code: Code, span: Span, message: String, hint: String| {
        let mut problem = Diagnostic::new(code, span, message).hint(hint);
        problem.step = text("id").map(str::to_owned);
        problem
    };
    if text("missing_tool").is_none() && context.gateway.has_tool(&name) == Some(false) {
        let tools = context.gateway.known_tools();
        let hint = suggest::hint(&name, &tools, &context.aliases(&tools));
        let message = format!("there is no tool `{name}`");
        return vec![diagnostic(Code::UnknownTool, span_of("tool"), message, hint)];
    }
    let Some(info) = context.gateway.tool(&name) else { return Vec::new() };
    let args = step.get("args");
    // A map that one reference computes is checked when the step runs.
    if args.is_some_and(|args| !matches!(args.data, Data::Map(_))) {
        return Vec::new();
    }
    let required = info.input_schema.get("required").and_then(Value::as_array);
    let missing = required.into_iter().flatten().filter_map(Value::as_str).filter(|name| {
        args.is_none_or(|args| args.get(name).is_none()) && text("idempotency_arg") != Some(name)
    });
    let span = if args.is_some() { span_of("args") } else { span_of("tool") };
    let diagnostics = missing.map(|argument| {
        let message = format!("`{name}` needs the argument `{argument}`");
        diagnostic(Code::WrongArguments, span, message, arguments_hint(&info))
    });
    diagnostics.collect()
}
