//! The arguments of a tool in one line, and example arguments, both from its JSON Schema.

use serde_json::{Map, Value, json};

use crate::limits::{EXAMPLE_DEPTH, SIGNATURE_ARGUMENTS, SIGNATURE_WORDS};

/// `repo_path: string, max_count?: integer = 10`: names, types, what may be left out, defaults.
pub(crate) fn signature(schema: &Value) -> String {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return String::new() };
    let shown = ordered(schema, properties).take(SIGNATURE_ARGUMENTS).map(|(name, property, required)| {
        let property = followed(property, schema);
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

/// Arguments that fit a schema: the required ones, or the first one if none is.
pub(crate) fn example(schema: &Value) -> Value {
    of_map(schema, schema, 0)
}

/// Properties with whether they are required: those first.
fn ordered<'s>(
    schema: &'s Value,
    properties: &'s Map<String, Value>,
) -> impl Iterator<Item = (&'s str, &'s Value, bool)> {
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = move |name: &str| required.is_some_and(|all| all.iter().any(|word| word == name));
    let with = move |wanted: bool| {
        let each = properties.iter().map(|(name, property)| (name.as_str(), property));
        each.filter(move |(name, _)| is_required(name) == wanted)
            .map(move |(name, property)| (name, property, wanted))
    };
    with(true).chain(with(false))
}

fn followed<'s>(schema: &'s Value, root: &'s Value) -> &'s Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix('#'));
    target.and_then(|at| root.pointer(at)).unwrap_or(schema)
}

/// The alternatives of a schema without `null`.
fn choices(schema: &Value) -> Vec<&Value> {
    let all = ["anyOf", "oneOf", "allOf"].iter().find_map(|word| schema.get(*word)?.as_array());
    all.into_iter().flatten().filter(|choice| choice.get("type").is_none_or(|word| word != "null")).collect()
}

fn type_of(schema: &Value, root: &Value) -> String {
    if let Some(Value::Array(words)) = schema.get("enum") {
        let more = if words.len() > SIGNATURE_WORDS { "|…" } else { "" };
        let words = words.iter().take(SIGNATURE_WORDS).map(Value::to_string);
        return format!("{}{more}", words.collect::<Vec<_>>().join("|"));
    }
    match schema.get("type") {
        Some(Value::String(word)) if word == "array" => {
            let items = schema.get("items").map(|items| followed(items, root));
            let items = items.and_then(|items| items.get("type")).and_then(Value::as_str);
            items.map_or_else(|| "array".to_owned(), |word| format!("{word}[]"))
        }
        Some(Value::String(word)) => word.clone(),
        Some(Value::Array(words)) => {
            let words = words.iter().filter_map(Value::as_str).filter(|word| *word != "null");
            words.collect::<Vec<_>>().join("|")
        }
        _ => match choices(schema).first() {
            Some(first) => type_of(followed(first, root), root),
            None => "any".to_owned(),
        },
    }
}

fn of_map(schema: &Value, root: &Value, depth: usize) -> Value {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return json!({}) };
    let required = ordered(schema, properties).filter(|(_, _, required)| *required);
    let mut shown: Vec<(&str, &Value, bool)> = required.collect();
    if shown.is_empty() && depth == 0 {
        shown.extend(ordered(schema, properties).next());
    }
    let values =
        shown.iter().map(|(name, property, _)| ((*name).to_owned(), value(property, root, depth + 1)));
    Value::Object(values.collect())
}

fn value(schema: &Value, root: &Value, depth: usize) -> Value {
    let schema = followed(schema, root);
    let given = |word: &str| schema.get(word).filter(|value| !value.is_null()).cloned();
    let listed = |word: &str| schema.get(word).and_then(|all| all.get(0)).cloned();
    if let Some(value) = listed("examples").or(given("example")).or(given("const")).or(given("default")) {
        return value;
    }
    if let Some(value) = listed("enum") {
        return value;
    }
    if depth > EXAMPLE_DEPTH {
        return Value::Null;
    }
    match type_of_value(schema) {
        Some("string") => text(schema),
        Some("integer" | "number") => given("minimum").unwrap_or_else(|| json!(1)),
        Some("boolean") => json!(false),
        Some("array") => match schema.get("items") {
            Some(items) => json!([value(items, root, depth + 1)]),
            None => json!([]),
        },
        Some("object") => of_map(schema, root, depth),
        _ => choices(schema).first().map_or(Value::Null, |choice| value(choice, root, depth + 1)),
    }
}

fn type_of_value(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(word) => Some(word),
        Value::Array(words) => words.iter().filter_map(Value::as_str).find(|word| *word != "null"),
        _ => None,
    }
}

fn text(schema: &Value) -> Value {
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
    fn arguments_in_one_line_and_as_an_example() {
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
    fn a_schema_that_refers_to_itself_ends() {
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
