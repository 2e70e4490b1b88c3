//! Reads a schema: checks its keywords, compiles patterns, and finds the targets of references.

use serde_json::{Map, Value};

use super::keywords::{COUNT, LIST, MAP, NUMBER, SCHEMA, TYPES};
use super::message::short;
use super::{Schema, SchemaError};
use crate::bounded_regex::{RegexError, RegexSet};
use crate::limits::{SCHEMA_DEPTH, SCHEMA_NODES, SCHEMA_POINTER_BYTES, cut};

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

pub(super) fn read(schema: &Value, invalid: Invalid, regexes: &mut RegexSet) -> Result<Schema, SchemaError> {
    let mut root = schema.clone();
    let mut reader = Reader { schema: Schema::any(), regexes, references: Vec::new(), nodes: 0, invalid };
    reader.schema(&mut root, &mut String::new(), 0)?;
    let Reader { mut schema, references, .. } = reader;
    schema.root = root;
    for (pointer, reference) in references {
        match schema.resolve(&reference) {
            Some(_) => {}
            // Other documents are never fetched, and base URIs are not tracked.
            None if invalid == Invalid::Remove => schema.unsupported.push(reference),
            None if !reference.starts_with('#') => {
                let message = format!("`{reference}` refers to another document, which is not supported");
                return Err(error(&pointer, message));
            }
            None => return Err(error(&pointer, format!("`{reference}` refers to nothing in the schema"))),
        }
    }
    Ok(schema)
}

struct Reader<'r> {
    schema: Schema,
    regexes: &'r mut RegexSet,
    references: Vec<(String, String)>,
    nodes: usize,
    invalid: Invalid,
}

impl Reader<'_> {
    fn schema(&mut self, schema: &mut Value, pointer: &mut String, depth: usize) -> Result<(), SchemaError> {
        self.nodes += 1;
        if self.nodes > SCHEMA_NODES {
            return Err(error(pointer, format!("the schema has more than {SCHEMA_NODES} parts")));
        }
        if depth > SCHEMA_DEPTH {
            return Err(error(pointer, format!("the schema is nested more than {SCHEMA_DEPTH} levels deep")));
        }
        if pointer.len() > SCHEMA_POINTER_BYTES {
            let message = format!("the names on the path to this part exceed {SCHEMA_POINTER_BYTES} bytes");
            return Err(error("", message));
        }
        match schema {
            Value::Bool(_) => Ok(()),
            Value::Object(map) => {
                self.check_values(map, pointer)?;
                self.names(map, pointer)?;
                self.children(map, pointer, depth)
            }
            other => {
                self.reject(pointer, format!("a schema is a map, `true` or `false`, not {}", short(other)))?;
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
    fn names(&mut self, map: &Map<String, Value>, pointer: &str) -> Result<(), SchemaError> {
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
        self.schema.tracks_evaluated |=
            map.contains_key("unevaluatedProperties") || map.contains_key("unevaluatedItems");
        if let Some(pattern) = text("pattern") {
            self.pattern(pattern, || format!("{pointer}/pattern"))?;
        }
        let named = map.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        named.into_iter().try_for_each(|name| {
            self.pattern(name, || format!("{pointer}/patternProperties/{}", escaped(name)))
        })
    }

    /// Compiles a pattern. One that is too large is always an error.
    fn pattern(&mut self, pattern: &str, pointer: impl Fn() -> String) -> Result<(), SchemaError> {
        match self.regexes.compile(&ascii_classes(pattern)) {
            Ok(regex) => drop(self.schema.patterns.insert(pattern.to_owned(), regex)),
            Err(RegexError::Invalid(_)) if self.invalid == Invalid::Remove => {
                self.schema.unsupported.push(cut(pattern.to_owned(), MESSAGE_BYTES));
            }
            Err(reason) => return Err(error(&pointer(), reason.to_string())),
        }
        Ok(())
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
                        self.child(entry, pointer, &format!("/{key}/{}", escaped(name)), depth)?;
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
                Some((key.clone(), format!("`{key}`: {} {problem}", short(value))))
            })
            .collect();
        for (key, message) in invalid {
            self.reject(pointer, message)?;
            map.remove(&key);
        }
        Ok(())
    }
}

/// Replaces `\d` and `\w`, which mean ASCII characters in JSON Schema and Unicode ones in the regular expression library.
fn ascii_classes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern.chars();
    while let Some(first) = rest.next() {
        if first != '\\' {
            out.push(first);
            continue;
        }
        match rest.next() {
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('w') => out.push_str("[0-9A-Za-z_]"),
            Some('W') => out.push_str("[^0-9A-Za-z_]"),
            other => out.extend(['\\'].into_iter().chain(other)),
        }
    }
    out
}

/// A name as it is written in a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
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
