//! Input schemas derived from argument types: without references or unions, which some clients reject.

use std::sync::Arc;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The JSON Schema of a type.
pub(super) fn of<T: JsonSchema>() -> Arc<JsonObject> {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    if let Value::Object(root) = &mut schema {
        // The doc comment of the type is for readers of the source.
        root.remove("description");
    }
    match schema {
        Value::Object(map) => Arc::new(map),
        _ => Arc::default(),
    }
}

/// The values of an enum whose variants have descriptions, possibly optional.
fn enum_values(schema: &Value) -> Option<Vec<Value>> {
    let choices = schema.get("oneOf").or_else(|| schema.get("anyOf"))?.as_array()?;
    let mut values = Vec::new();
    for choice in choices.iter().filter(|choice| choice["type"] != "null") {
        match choice.get("const") {
            Some(value) => values.push(value.clone()),
            None => values.extend(enum_values(choice)?),
        }
    }
    Some(values)
}

/// Removes names and formats of Rust types, and `null` as the value of optional fields.
fn simplify(schema: &mut Value) {
    let values = enum_values(schema);
    let Value::Object(map) = schema else { return };
    map.remove("title");
    if let Some(values) = values {
        map.retain(|key, _| key != "oneOf" && key != "anyOf");
        map.insert("type".to_owned(), "string".into());
        map.insert("enum".to_owned(), values.into());
    }
    let is_rust = |format: &Value| {
        format
            .as_str()
            .is_some_and(|name| name.starts_with("uint") || name.starts_with("int") || name == "double")
    };
    if map.get("format").is_some_and(is_rust) {
        map.remove("format");
    }
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|name| name != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            map.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(choices)) = map.get_mut("enum") {
        choices.retain(|choice| !choice.is_null());
    }
    // Descriptions state the defaults that matter.
    map.remove("default");
    if map.get("minimum").is_some_and(|least| least == 0) {
        map.remove("minimum");
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(simplify);
    }
    if let Some(items) = map.get_mut("items") {
        simplify(items);
    }
}
