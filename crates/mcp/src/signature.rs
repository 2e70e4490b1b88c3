//! One-line signatures and example arguments of tools, derived from their JSON Schema.

use serde_json::{Map, Value, json};

use crate::limits::{EXAMPLE_DEPTH, SIGNATURE_ARGUMENTS, SIGNATURE_ENUM_VALUES};

/// The signature of a tool, such as `repo_path: string, max_count?: integer = 10`. `?` marks optional arguments.
pub(crate) fn signature(schema: &Value) -> String {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return String::new() };
    let shown = ordered(schema, properties).take(SIGNATURE_ARGUMENTS).map(|(name, property, required)| {
        let property = resolved(property, schema);
        let mark = if required { "" } else { "?" };
        let default = property.get("default").filter(|default| !default.is_null() && !default.is_object());
        let default = default.map(|default| format!(" = {default}")).unwrap_or_default();
        format!("{name}{mark}: {}{default}", type_of(property, schema))
    });
    let mut line = shown.collect::<Vec<_>>().join(", ");
    if properties.len() > SIGNATURE_ARGUMENTS {
        line.push_str(&format!(", and {} more", properties.len() - SIGNATURE_ARGUMENTS));
    }
    line
}

/// Example arguments: the required ones, or the first one if none is required.
pub(crate) fn example(schema: &Value) -> Value {
    example_map(schema, schema, 0)
}

/// Properties, required ones first, with whether they are required.
fn ordered<'s>(
    schema: &'s Value,
    properties: &'s Map<String, Value>,
) -> impl Iterator<Item = (&'s str, &'s Value, bool)> {
    let required = schema.get("required").and_then(Value::as_array);
    let is_required =
        move |name: &str| required.is_some_and(|all| all.iter().any(|required| required == name));
    let with = move |required: bool| {
        let each = properties.iter().map(|(name, property)| (name.as_str(), property));
        each.filter(move |(name, _)| is_required(name) == required)
            .map(move |(name, property)| (name, property, required))
    };
    with(true).chain(with(false))
}

/// Resolves a `$ref` within the document.
fn resolved<'s>(schema: &'s Value, root: &'s Value) -> &'s Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix('#'));
    target.and_then(|at| root.pointer(at)).unwrap_or(schema)
}

/// The alternatives of a schema without `null`.
fn choices(schema: &Value) -> Vec<&Value> {
    let all = ["anyOf", "oneOf", "allOf"].iter().find_map(|keyword| schema.get(*keyword)?.as_array());
    all.into_iter().flatten().filter(|choice| choice.get("type").is_none_or(|name| name != "null")).collect()
}

fn type_of(schema: &Value, root: &Value) -> String {
    if let Some(Value::Array(values)) = schema.get("enum") {
        let more = if values.len() > SIGNATURE_ENUM_VALUES { "|…" } else { "" };
        let values = values.iter().take(SIGNATURE_ENUM_VALUES).map(Value::to_string);
        return format!("{}{more}", values.collect::<Vec<_>>().join("|"));
    }
    match schema.get("type") {
        Some(Value::String(name)) if name == "array" => {
            let items = schema.get("items").map(|items| resolved(items, root));
            let items = items.and_then(|items| items.get("type")).and_then(Value::as_str);
            items.map_or_else(|| "array".to_owned(), |name| format!("{name}[]"))
        }
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            names.collect::<Vec<_>>().join("|")
        }
        _ => match choices(schema).first() {
            Some(first) => type_of(resolved(first, root), root),
            None => "any".to_owned(),
        },
    }
}

fn example_map(schema: &Value, root: &Value, depth: usize) -> Value {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return json!({}) };
    let required = ordered(schema, properties).filter(|(_, _, required)| *required);
    let mut shown: Vec<(&str, &Value, bool)> = required.collect();
    if shown.is_empty() && depth == 0 {
        shown.extend(ordered(schema, properties).next());
    }
    let values = shown
        .iter()
        .map(|(name, property, _)| ((*name).to_owned(), example_value(property, root, depth + 1)));
    Value::Object(values.collect())
}

fn example_value(schema: &Value, root: &Value, depth: usize) -> Value {
    let schema = resolved(schema, root);
    let single = |keyword: &str| schema.get(keyword).filter(|value| !value.is_null()).cloned();
    let first = |keyword: &str| schema.get(keyword).and_then(|all| all.get(0)).cloned();
    if let Some(value) = first("examples").or(single("example")).or(single("const")).or(single("default")) {
        return value;
    }
    if let Some(value) = first("enum") {
        return value;
    }
    if depth > EXAMPLE_DEPTH {
        return Value::Null;
    }
    match type_of_value(schema) {
        Some("string") => example_text(schema),
        Some("integer" | "number") => single("minimum").unwrap_or_else(|| json!(1)),
        Some("boolean") => json!(false),
        Some("array") => match schema.get("items") {
            Some(items) => json!([example_value(items, root, depth + 1)]),
            None => json!([]),
        },
        Some("object") => example_map(schema, root, depth),
        _ => choices(schema).first().map_or(Value::Null, |choice| example_value(choice, root, depth + 1)),
    }
}

fn type_of_value(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(name) => Some(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        _ => None,
    }
}

fn example_text(schema: &Value) -> Value {
    let text = match schema.get("format").and_then(Value::as_str) {
        Some("date") => "2026-01-31",
        Some("date-time") => "2026-01-31T08:00:00Z",
        Some("time") => "08:00:00Z",
        Some("duration") => "PT5M",
        Some("uri" | "url") => "https://example.com/",
        Some("email") => "name@example.com",
        Some("uuid") => "00000000-0000-4000-8000-000000000000",
        Some("ipv4") => "127.0.0.1",
        _ => "text",
    };
    text.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{example, signature};

    #[test]
    fn signature_and_example_of_a_schema() {
        let schema = json!({
            "type": "object",
            "properties": {
                "count": { "type": "integer", "default": 10 },
                "repo": { "type": "string" },
                "since": { "anyOf": [{ "type": "string", "format": "date" }, { "type": "null" }] },
                "mode": { "enum": ["short", "long"] },
                "at": { "$ref": "#/$defs/Point" },
            },
            "required": ["repo", "mode", "at"],
            "$defs": { "Point": {
                "type": "object",
                "properties": { "x": { "type": "number", "minimum": 3 }, "label": { "type": "string" } },
                "required": ["x"],
            } },
        });
        assert_eq!(
            signature(&schema),
            "at: object, mode: \"short\"|\"long\", repo: string, count?: integer = 10, since?: string"
        );
        assert_eq!(example(&schema), json!({ "at": { "x": 3 }, "mode": "short", "repo": "text" }));
        assert_eq!(example(&json!({ "type": "object" })), json!({}));
        let optional = json!({ "properties": { "day": { "type": "string", "format": "date" } } });
        assert_eq!(example(&optional), json!({ "day": "2026-01-31" }));
    }

    #[test]
    fn example_of_a_recursive_schema_is_bounded() {
        let tree = json!({
            "$ref": "#/$defs/Tree",
            "properties": { "root": { "$ref": "#/$defs/Tree" } },
            "required": ["root"],
            "$defs": { "Tree": {
                "type": "object", "properties": { "child": { "$ref": "#/$defs/Tree" } }, "required": ["child"],
            } },
        });
        assert!(example(&tree).to_string().len() < 200);
    }
}
