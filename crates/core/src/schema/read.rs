//! Reads a schema: checks its keywords, compiles patterns, and finds the targets of references.

use regex::RegexBuilder;
use serde_json::{Map, Value};

use super::keywords::{COUNT, LIST, MAP, NUMBER, SCHEMA, TYPES};
use super::{Schema, SchemaError};
use crate::limits::{PATTERN_BYTES, SCHEMA_DEPTH, SCHEMA_NODES};

/// Prefix of the meta-schemas, which some schemas refer to. A reference to one accepts everything.
pub(super) const META_SCHEMA: [&str; 2] = ["http://json-schema.org/", "https://json-schema.org/"];

pub(super) fn read(schema: &Value) -> Result<Schema, SchemaError> {
    let mut reader =
        Reader { schema: Schema { root: schema.clone(), ..Schema::any() }, references: Vec::new(), nodes: 0 };
    reader.schema(schema, &mut String::new(), 0)?;
    let Reader { mut schema, references, .. } = reader;
    for (pointer, reference) in references {
        match schema.resolve(&reference) {
            Some(_) => {}
            // Other documents are never fetched, and base URIs are not tracked.
            None if !reference.starts_with('#') || !schema.anchors.is_empty() => {
                schema.unsupported.push(reference);
            }
            None => return Err(error(&pointer, format!("`{reference}` refers to nothing in the schema"))),
        }
    }
    Ok(schema)
}

struct Reader {
    schema: Schema,
    references: Vec<(String, String)>,
    nodes: usize,
}

impl Reader {
    fn schema(&mut self, schema: &Value, pointer: &mut String, depth: usize) -> Result<(), SchemaError> {
        self.nodes += 1;
        if self.nodes > SCHEMA_NODES {
            return Err(error(pointer, format!("the schema has more than {SCHEMA_NODES} parts")));
        }
        if depth > SCHEMA_DEPTH {
            return Err(error(pointer, format!("the schema is nested more than {SCHEMA_DEPTH} levels deep")));
        }
        match schema {
            Value::Bool(_) => Ok(()),
            Value::Object(map) => {
                self.names(map, pointer);
                check_values(map, pointer)?;
                self.children(map, pointer, depth)
            }
            other => Err(error(pointer, format!("a schema is a map, `true` or `false`, not {other}"))),
        }
    }

    /// Records anchors, references and patterns.
    fn names(&mut self, map: &Map<String, Value>, pointer: &str) {
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        if let Some(id) = text("$id").or_else(|| text("id")) {
            self.schema.anchors.insert(id.trim_end_matches('#').to_owned(), pointer.to_owned());
        }
        for key in ["$anchor", "$dynamicAnchor"] {
            if let Some(anchor) = text(key) {
                self.schema.anchors.insert(format!("#{anchor}"), pointer.to_owned());
            }
        }
        for key in ["$ref", "$dynamicRef"] {
            if let Some(reference) = text(key).filter(|to| !is_meta_schema(to)) {
                self.references.push((format!("{pointer}/{key}"), reference.to_owned()));
            }
        }
        let named = map.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let patterns: Vec<&str> = text("pattern").into_iter().chain(named.map(String::as_str)).collect();
        patterns.into_iter().for_each(|pattern| self.pattern(pattern));
        self.schema.tracks_evaluated |=
            map.contains_key("unevaluatedProperties") || map.contains_key("unevaluatedItems");
    }

    fn pattern(&mut self, pattern: &str) {
        if self.schema.patterns.contains_key(pattern) {
            return;
        }
        match RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES).build() {
            Ok(regex) => drop(self.schema.patterns.insert(pattern.to_owned(), regex)),
            Err(_) => self.schema.unsupported.push(pattern.to_owned()),
        }
    }

    fn children(
        &mut self,
        map: &Map<String, Value>,
        pointer: &mut String,
        depth: usize,
    ) -> Result<(), SchemaError> {
        for (key, value) in map {
            let key = key.as_str();
            match value {
                Value::Array(items) if LIST.contains(&key) => {
                    for (index, item) in items.iter().enumerate() {
                        self.child(item, pointer, &format!("/{key}/{index}"), depth)?;
                    }
                }
                Value::Object(entries) if MAP.contains(&key) => {
                    for (name, entry) in entries {
                        // `dependencies` of draft 7 also lists names.
                        if key == "dependencies" && entry.is_array() {
                            continue;
                        }
                        let name = name.replace('~', "~0").replace('/', "~1");
                        self.child(entry, pointer, &format!("/{key}/{name}"), depth)?;
                    }
                }
                value if SCHEMA.contains(&key) => self.child(value, pointer, &format!("/{key}"), depth)?,
                value if LIST.contains(&key) => {
                    return Err(error(pointer, format!("`{key}` is a list of schemas, not {value}")));
                }
                value if MAP.contains(&key) => {
                    return Err(error(pointer, format!("`{key}` is a map of schemas, not {value}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn child(
        &mut self,
        schema: &Value,
        pointer: &mut String,
        step: &str,
        depth: usize,
    ) -> Result<(), SchemaError> {
        let length = pointer.len();
        pointer.push_str(step);
        let read = self.schema(schema, pointer, depth + 1);
        pointer.truncate(length);
        read
    }
}

pub(super) fn is_meta_schema(reference: &str) -> bool {
    META_SCHEMA.iter().any(|prefix| reference.starts_with(prefix))
}

/// Checks the values of assertions.
fn check_values(map: &Map<String, Value>, pointer: &str) -> Result<(), SchemaError> {
    let is_type = |word: &Value| word.as_str().is_some_and(|word| TYPES.contains(&word));
    let is_names = |value: &Value| value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    for (key, value) in map {
        let problem = match key.as_str() {
            "type" if !is_type(value) && !value.as_array().is_some_and(|all| all.iter().all(is_type)) => {
                "is not a type"
            }
            "required" if !is_names(value) => "is not a list of names",
            "enum" if !value.is_array() => "is not a list",
            "pattern" | "$ref" | "$dynamicRef" if !value.is_string() => "is not a string",
            key if NUMBER.contains(&key) && !value.is_number() => "is not a number",
            "multipleOf" if value.as_f64().is_none_or(|of| of <= 0.0) => "is not greater than 0",
            key if COUNT.contains(&key) && count(value).is_none() => "is not a non-negative whole number",
            _ => continue,
        };
        return Err(error(pointer, format!("`{key}`: {value} {problem}")));
    }
    Ok(())
}

/// The value of a keyword that counts; 2.0 is 2.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just before")]
pub(super) fn count(value: &Value) -> Option<u64> {
    let whole = |number: &f64| *number >= 0.0 && number.fract() == 0.0 && *number < 9e15;
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}

fn error(pointer: &str, message: String) -> SchemaError {
    SchemaError { pointer: pointer.to_owned(), message: crate::limits::cut(message, 300) }
}
