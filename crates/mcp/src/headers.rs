//! `x-mcp-header`: arguments of tools that clients also send as headers of the request.
//!
//! A client of 2026-07-28 refuses a tool whose annotations break the rules, so such a tool is not offered. That a header
//! and its argument are the same is checked by rmcp, against the schemas of the tools that are offered.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The keyword of a schema.
const KEYWORD: &str = "x-mcp-header";

/// The rule that the annotations of a schema break, if any.
pub(crate) fn problem(schema: &Map<String, Value>) -> Option<String> {
    if schema.contains_key(KEYWORD) {
        return Some(format!("`{KEYWORD}` is for properties, not for the whole schema"));
    }
    let mut found = Found::default();
    found.properties(schema);
    found.problem.or_else(|| {
        let all = count(&Value::Object(schema.clone()));
        (all != found.annotations)
            .then(|| format!("`{KEYWORD}` is for properties of the root and of objects in it"))
    })
}

/// Annotations on properties that are reached through `properties` alone.
#[derive(Default)]
struct Found {
    names: BTreeSet<String>,
    annotations: usize,
    problem: Option<String>,
}

impl Found {
    fn properties(&mut self, schema: &Map<String, Value>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for (property, schema) in properties.into_iter().flatten() {
            let Some(schema) = schema.as_object() else { continue };
            if let Some(header) = schema.get(KEYWORD) {
                self.annotations += 1;
                if let Some(rule) = self.broken_rule(header, schema) {
                    self.problem.get_or_insert_with(|| format!("`{KEYWORD}` of `{property}` {rule}"));
                }
            }
            self.properties(schema);
        }
    }

    fn broken_rule(&mut self, header: &Value, schema: &Map<String, Value>) -> Option<&'static str> {
        let is_token = |name: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            !name.is_empty() && name.bytes().all(is_allowed)
        };
        let kind = schema.get("type").and_then(Value::as_str);
        match header.as_str() {
            None => Some("is not a text"),
            Some(name) if !is_token(name) => Some("is not a name that a header can have"),
            Some(name) if !self.names.insert(name.to_ascii_lowercase()) => Some("is used twice"),
            Some(_) if !matches!(kind, Some("string" | "integer" | "boolean")) => {
                Some("is on a property that is no string, integer or boolean")
            }
            Some(_) => None,
        }
    }
}

/// How many annotations there are anywhere in a schema.
fn count(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => {
            let data = ["default", "const", "enum", "examples"];
            let inner = fields.iter().filter(|(key, _)| !data.contains(&key.as_str()));
            usize::from(fields.contains_key(KEYWORD)) + inner.map(|(_, value)| count(value)).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::problem;

    fn of(schema: &Value) -> Option<String> {
        problem(schema.as_object().expect("a map"))
    }

    #[test]
    fn annotations_that_follow_the_rules_are_taken() {
        let region = json!({ "type": "string", "x-mcp-header": "Region" });
        let nested =
            json!({ "type": "object", "properties": { "n": { "type": "integer", "x-mcp-header": "N" } } });
        assert_eq!(of(&json!({ "properties": { "region": region, "nested": nested } })), None);
        assert_eq!(
            of(&json!({ "properties": { "a": { "default": { "x-mcp-header": "no schema" } } } })),
            None
        );
    }

    #[test]
    fn annotations_that_break_a_rule_are_named() {
        let with = |property: Value| of(&json!({ "properties": { "a": property } })).expect("a problem");
        assert!(with(json!({ "type": "number", "x-mcp-header": "A" })).contains("no string"));
        assert!(with(json!({ "type": "string", "x-mcp-header": "a:b" })).contains("a header can have"));
        assert!(with(json!({ "type": "string", "x-mcp-header": "" })).contains("a header can have"));
        assert!(with(json!({ "type": "string", "x-mcp-header": 1 })).contains("not a text"));
        let item = json!({ "type": "string", "x-mcp-header": "A" });
        assert!(with(json!({ "type": "array", "items": item })).contains("properties of the root"));
        let twice = json!({ "properties": { "a": item, "b": { "type": "string", "x-mcp-header": "a" } } });
        assert!(of(&twice).expect("a problem").contains("twice"));
        assert!(of(&json!({ "x-mcp-header": "A" })).expect("a problem").contains("whole schema"));
    }
}
