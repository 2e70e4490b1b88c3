//! Checks `x-mcp-header` in input schemas: arguments that clients also send as request headers.
//!
//! Clients of 2026-07-28 reject tools with invalid annotations, so such tools are not offered. rmcp checks that a header
//! equals its argument.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

const KEYWORD: &str = "x-mcp-header";

/// The first rule that the annotations of a schema violate.
pub(crate) fn problem(schema: &Map<String, Value>) -> Option<String> {
    if schema.contains_key(KEYWORD) {
        return Some(format!("`{KEYWORD}` applies to properties, not to the whole schema"));
    }
    let mut annotations = HeaderAnnotations::default();
    annotations.collect(schema);
    annotations.problem.or_else(|| {
        let all = count(&Value::Object(schema.clone()));
        (all != annotations.count)
            .then(|| format!("`{KEYWORD}` applies to properties of the root and of nested objects only"))
    })
}

/// The annotations of properties that are reachable through `properties` only.
#[derive(Default)]
struct HeaderAnnotations {
    /// Header names in lower case.
    names: BTreeSet<String>,
    count: usize,
    problem: Option<String>,
}

impl HeaderAnnotations {
    fn collect(&mut self, schema: &Map<String, Value>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for (property, schema) in properties.into_iter().flatten() {
            let Some(schema) = schema.as_object() else { continue };
            if let Some(header) = schema.get(KEYWORD) {
                self.count += 1;
                if let Some(rule) = self.violation(header, schema) {
                    self.problem.get_or_insert_with(|| format!("`{KEYWORD}` of `{property}` {rule}"));
                }
            }
            self.collect(schema);
        }
    }

    fn violation(&mut self, header: &Value, schema: &Map<String, Value>) -> Option<&'static str> {
        let is_token = |name: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            !name.is_empty() && name.bytes().all(is_allowed)
        };
        let kind = schema.get("type").and_then(Value::as_str);
        match header.as_str() {
            None => Some("is not a string"),
            Some(name) if !is_token(name) => Some("is not a valid header name"),
            Some(name) if !self.names.insert(name.to_ascii_lowercase()) => Some("is used twice"),
            Some(_) if !matches!(kind, Some("string" | "integer" | "boolean")) => {
                Some("is on a property that is not a string, integer or boolean")
            }
            Some(_) => None,
        }
    }
}

/// The number of annotations anywhere in a schema.
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
    fn accepts_valid_annotations() {
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
    fn reports_the_violated_rule() {
        let with = |property: Value| of(&json!({ "properties": { "a": property } })).expect("a problem");
        assert!(with(json!({ "type": "number", "x-mcp-header": "A" })).contains("not a string, integer"));
        assert!(with(json!({ "type": "string", "x-mcp-header": "a:b" })).contains("valid header name"));
        assert!(with(json!({ "type": "string", "x-mcp-header": "" })).contains("valid header name"));
        assert!(with(json!({ "type": "string", "x-mcp-header": 1 })).contains("is not a string"));
        let item = json!({ "type": "string", "x-mcp-header": "A" });
        assert!(with(json!({ "type": "array", "items": item })).contains("properties of the root"));
        let twice = json!({ "properties": { "a": item, "b": { "type": "string", "x-mcp-header": "a" } } });
        assert!(of(&twice).expect("a problem").contains("twice"));
        assert!(of(&json!({ "x-mcp-header": "A" })).expect("a problem").contains("whole schema"));
    }
}
