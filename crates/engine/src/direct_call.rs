//! The arguments of a direct call as a template of its one-step definition.
//!
//! A definition resolves only the references to secrets that it contains literally. The arguments of a direct call are
//! inputs, so references are moved into the definition. An agent may copy text of others into an argument, so a reference
//! counts only if it is the whole text, or follows an authentication scheme (`Bearer ${secret:NAME}`).

use serde_json::{Map, Value};
use steprail_core::expr;

/// The template of `args`. Without references to secrets it is a single reference to the input.
pub(crate) fn template(args: &Value) -> Value {
    let Value::Object(map) = args else { return whole() };
    if !map.values().any(has_reference) {
        return whole();
    }
    let entry = |(key, value): (&String, &Value)| (key.clone(), argument(key, value));
    Value::Object(map.iter().map(entry).collect::<Map<_, _>>())
}

fn whole() -> Value {
    Value::from("{{inputs.args}}")
}

/// An argument without references stays an input, except where its name cannot be part of a reference.
fn argument(key: &str, value: &Value) -> Value {
    let is_name = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let starts_with_digit = key.starts_with(|first: char| first.is_ascii_digit());
    if is_name && !starts_with_digit && !has_reference(value) {
        return Value::from(format!("{{{{inputs.args.{key}}}}}"));
    }
    literal(value)
}

/// The template whose value is `value`, with its references to secrets.
fn literal(value: &Value) -> Value {
    match value {
        Value::String(text) if is_reference(text) => value.clone(),
        Value::String(text) => Value::from(text.replace('$', "$$").replace("{{", "{{{{")),
        Value::Array(items) => items.iter().map(literal).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), literal(value))).collect(),
        other => other.clone(),
    }
}

fn has_reference(value: &Value) -> bool {
    match value {
        Value::String(text) => is_reference(text),
        Value::Array(items) => items.iter().any(has_reference),
        Value::Object(map) => map.values().any(has_reference),
        _ => false,
    }
}

/// Whether a text is a reference, alone or after an authentication scheme.
fn is_reference(text: &str) -> bool {
    let mut found = expr::secret_references(text);
    let (Some((at, _)), None) = (found.next(), found.next()) else { return false };
    let before = text[..at.start].strip_suffix(' ').unwrap_or(&text[..at.start]);
    let is_scheme = at.start == 0 || (before.len() < at.start && !before.is_empty());
    at.end == text.len()
        && is_scheme
        && before.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::template;

    #[test]
    fn references_become_literals_of_the_definition() {
        assert_eq!(template(&json!({ "body": "costs $5 {{x}}" })), json!("{{inputs.args}}"));
        let args = json!({ "token": "${secret:gh}", "h": { "auth": "Bearer ${secret:gh}", "x": "$5 {{y}}" }, "body": "$a", "a b": "{{" });
        let expected = json!({
            "token": "${secret:gh}",
            "h": { "auth": "Bearer ${secret:gh}", "x": "$$5 {{{{y}}" },
            "body": "{{inputs.args.body}}",
            "a b": "{{{{",
        });
        assert_eq!(template(&args), expected);
    }

    #[test]
    fn text_that_only_contains_a_reference_is_data() {
        for text in [
            "see ${secret:gh}!",
            "read: ${secret:gh}",
            "${secret:a}${secret:b}",
            " ${secret:gh}",
            "${secret:}",
        ] {
            assert_eq!(template(&json!({ "body": text })), json!("{{inputs.args}}"), "{text}");
        }
    }
}
