//! Reads a schema: checks its keywords, compiles patterns, and finds the targets of references.

use regex::RegexBuilder;
use serde_json::{Map, Value};

use super::keywords::{COUNT, LIST, MAP, NUMBER, SCHEMA, TYPES};
use super::{Schema, SchemaError};
use crate::limits::{PATTERN_BYTES, SCHEMA_DEPTH, SCHEMA_NODES, cut};

/// Prefixes of the meta-schemas, which some schemas refer to. A reference to one accepts everything.
const META_SCHEMAS: [&str; 2] = ["http://json-schema.org/", "https://json-schema.org/"];
/// Bytes of a message about a schema.
const MESSAGE_BYTES: usize = 300;

/// What to do with a keyword that has an invalid value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invalid {
    /// The schema is rejected.
    Reject,
    /// The keyword is removed and listed as not enforced.
    Remove,
}

pub(super) fn read(schema: &Value, invalid: Invalid) -> Result<Schema, SchemaError> {
    let mut root = schema.clone();
    let mut reader = Reader { schema: Schema::any(), references: Vec::new(), nodes: 0, invalid };
    reader.schema(&mut root, &mut String::new(), 0)?;
    let Reader { mut schema, references, .. } = reader;
    schema.root = root;
    for (pointer, reference) in references {
        match schema.resolve(&reference) {
            Some(_) => {}
            // Other documents are never fetched, and base URIs are not tracked.
            None if invalid == Invalid::Remove
                || !reference.starts_with('#')
                || !schema.anchors.is_empty() =>
            {
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
    invalid: Invalid,
}

impl Reader {
    fn schema(&mut self, schema: &mut Value, pointer: &mut String, depth: usize) -> Result<(), SchemaError> {
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
                self.check_values(map, pointer)?;
                self.names(map, pointer);
                self.children(map, pointer, depth)
            }
            other => {
                self.reject(pointer, format!("a schema is a map, `true` or `false`, not {other}"))?;
                *other = Value::Bool(true);
                Ok(())
            }
        }
    }

    /// Fails, or records that something is not enforced.
    fn reject(&mut self, pointer: &str, message: String) -> Result<(), SchemaError> {
        let error = error(pointer, message);
        match self.invalid {
            Invalid::Reject => Err(error),
            Invalid::Remove => {
                self.schema.unsupported.push(error.to_string());
                Ok(())
            }
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
        map: &mut Map<String, Value>,
        pointer: &mut String,
        depth: usize,
    ) -> Result<(), SchemaError> {
        for (key, value) in map {
            let key = key.as_str();
            match value {
                Value::Array(items) if LIST.contains(&key) => {
                    for (index, item) in items.iter_mut().enumerate() {
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
                _ => {}
            }
        }
        Ok(())
    }

    fn child(
        &mut self,
        schema: &mut Value,
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

    /// Checks the values of keywords.
    fn check_values(&mut self, map: &mut Map<String, Value>, pointer: &str) -> Result<(), SchemaError> {
        let invalid: Vec<(String, String)> = map
            .iter()
            .filter_map(|(key, value)| {
                let problem = problem(key, value)?;
                Some((key.clone(), format!("`{key}`: {value} {problem}")))
            })
            .collect();
        for (key, message) in invalid {
            self.reject(pointer, message)?;
            map.remove(&key);
        }
        Ok(())
    }
}

pub(super) fn is_meta_schema(reference: &str) -> bool {
    META_SCHEMAS.iter().any(|prefix| reference.starts_with(prefix))
}

/// What is wrong with the value of a keyword.
fn problem(key: &str, value: &Value) -> Option<&'static str> {
    let is_type = |word: &Value| word.as_str().is_some_and(|word| TYPES.contains(&word));
    let is_types = |value: &Value| value.as_array().is_some_and(|types| types.iter().all(is_type));
    let is_names = |value: &Value| value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    match key {
        "type" if !is_type(value) && !is_types(value) => Some("is not a type"),
        "required" if !is_names(value) => Some("is not a list of names"),
        "enum" if !value.is_array() => Some("is not a list"),
        "pattern" | "$ref" | "$dynamicRef" if !value.is_string() => Some("is not a string"),
        "multipleOf" if value.as_f64().is_none_or(|of| of <= 0.0) => Some("is not a number greater than 0"),
        key if NUMBER.contains(&key) && !value.is_number() => Some("is not a number"),
        key if COUNT.contains(&key) && count(value).is_none() => Some("is not a non-negative whole number"),
        "items" => None,
        key if LIST.contains(&key) && !value.is_array() => Some("is not a list of schemas"),
        key if MAP.contains(&key) && !value.is_object() => Some("is not a map of schemas"),
        _ => None,
    }
}

/// The value of a keyword that counts; 2.0 is 2.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just before")]
pub(super) fn count(value: &Value) -> Option<u64> {
    let whole = |number: &f64| *number >= 0.0 && number.fract() == 0.0 && *number < 9e15;
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}

fn error(pointer: &str, message: String) -> SchemaError {
    SchemaError { pointer: pointer.to_owned(), message: cut(message, MESSAGE_BYTES) }
}
