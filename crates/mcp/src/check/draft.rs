//! Tools of a definition that does not compile yet: their names and the arguments that they need. The rest is compared
//! when the definition is sound.

use serde_json::Value;
use steprail_core::diagnostic::{Code, Diagnostic, Diagnostics};
use steprail_core::document::{Data, Node, read};
use steprail_core::names::{alias, full_name};
use steprail_core::source::{Source, Span};

use super::{Known, takes};
use crate::limits::DRAFT_CALLS;
use crate::suggest;

/// Unknown tools and missing arguments, as far as the text can be read.
pub(super) fn draft(source: &Source, known: &Known<'_>) -> Vec<Diagnostic> {
    let Some(root) = read(source, &mut Diagnostics::default()) else { return Vec::new() };
    calls(&root).iter().flat_map(|step| of_call(step, known)).collect()
}

/// Maps with a `tool`, in the order of the text.
fn calls(root: &Node) -> Vec<&Node> {
    let mut found = Vec::new();
    let mut left = vec![root];
    while let Some(node) = left.pop() {
        match &node.data {
            Data::List(items) => left.extend(items.iter().rev()),
            Data::Map(entries) => {
                if node.get("tool").and_then(Node::as_text).is_some() && found.len() < DRAFT_CALLS {
                    found.push(node);
                }
                left.extend(
                    entries.iter().rev().filter(|entry| &*entry.key != "args").map(|entry| &entry.value),
                );
            }
            _ => {}
        }
    }
    found
}

fn of_call(step: &Node, known: &Known<'_>) -> Vec<Diagnostic> {
    let text = |key: &str| step.get(key).and_then(Node::as_text);
    let Some(tool) = text("tool") else { return Vec::new() };
    let name = match text("server").or(text("dcc")) {
        Some(server) => full_name(&alias(server), tool),
        None => tool.to_owned(),
    };
    let place = |key: &str| step.get(key).map(|node| node.span).unwrap_or_default();
    let tell = |code: Code, span: Span, message: String, hint: String| {
        let mut problem = Diagnostic::new(code, span, message).hint(hint);
        problem.step = text("id").map(str::to_owned);
        problem
    };
    if text("missing_tool").is_none() && known.gateway.has_tool(&name) == Some(false) {
        let tools = known.gateway.known_tools();
        let hint = suggest::hint(&name, &tools, &known.aliases(&tools));
        return vec![tell(Code::UnknownTool, place("tool"), format!("there is no tool `{name}`"), hint)];
    }
    let Some(info) = known.gateway.tool(&name) else { return Vec::new() };
    let args = step.get("args");
    // Arguments that are one reference are a map only when the step runs.
    if args.is_some_and(|args| !matches!(args.data, Data::Map(_))) {
        return Vec::new();
    }
    let required = info.input_schema.get("required").and_then(Value::as_array);
    let missing = required.into_iter().flatten().filter_map(Value::as_str).filter(|name| {
        args.is_none_or(|args| args.get(name).is_none()) && text("idempotency_arg") != Some(name)
    });
    let span = if args.is_some() { place("args") } else { place("tool") };
    let told = missing.map(|argument| {
        let message = format!("`{name}` needs the argument `{argument}`");
        tell(Code::WrongArguments, span, message, takes(&info))
    });
    told.collect()
}
