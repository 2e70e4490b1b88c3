//! Input schemas from the types that arguments are read into: flat, with plain types that every client takes.

use std::sync::Arc;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The schema of a type.
pub(super) fn of<T: JsonSchema>() -> Arc<JsonObject> {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    plain(&mut schema);
    if let Value::Object(root) = &mut schema {
        // What the type says of itself is for readers of the source.
        root.remove("description");
    }
    match schema {
        Value::Object(map) => Arc::new(map),
        _ => Arc::default(),
    }
}

/// The words of a choice among words, each of which has a description of its own; perhaps it may be left out.
fn words(schema: &Value) -> Option<Vec<Value>> {
    let choices = schema.get("oneOf").or_else(|| schema.get("anyOf"))?.as_array()?;
    let mut words = Vec::new();
    for choice in choices.iter().filter(|choice| choice["type"] != "null") {
        match choice.get("const") {
            Some(word) => words.push(word.clone()),
            None => words.extend(self::words(choice)?),
        }
    }
    Some(words)
}

/// Takes out what clients stumble over: names of Rust's types, and `null` where a field may be left out.
fn plain(schema: &mut Value) {
    let words = words(schema);
    let Value::Object(map) = schema else { return };
    map.remove("title");
    if let Some(words) = words {
        map.retain(|key, _| key != "oneOf" && key != "anyOf");
        map.insert("type".to_owned(), "string".into());
        map.insert("enum".to_owned(), words.into());
    }
    let is_rust = |format: &Value| {
        format
            .as_str()
            .is_some_and(|word| word.starts_with("uint") || word.starts_with("int") || word == "double")
    };
    if map.get("format").is_some_and(is_rust) {
        map.remove("format");
    }
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|word| word != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            map.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(choices)) = map.get_mut("enum") {
        choices.retain(|choice| !choice.is_null());
    }
    // What an argument is without being given, its description says where it matters.
    map.remove("default");
    if map.get("minimum").is_some_and(|least| least == 0) {
        map.remove("minimum");
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(plain);
    }
    if let Some(items) = map.get_mut("items") {
        plain(items);
    }
}
