//! Parses YAML and JSON into a tree of values with source positions.

mod json;
mod scalar;
mod yaml;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Number, Value};

use crate::diagnostic::{Code, Diagnostic, Diagnostics};
use crate::limits;
use crate::source::{Format, Source, Span};

/// A value and its position.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Position of the value in the source.
    pub span: Span,
    /// The value.
    pub data: Data,
}

/// A JSON value. YAML is parsed into the same model.
#[derive(Debug, Clone, Default)]
pub enum Data {
    /// `null`
    #[default]
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A finite number.
    Number(Number),
    /// A string.
    Text(Box<str>),
    /// A list.
    List(Vec<Node>),
    /// A map in source order, without duplicate keys.
    Map(Vec<MapEntry>),
}

/// A key of a map and its value.
#[derive(Debug, Clone)]
pub struct MapEntry {
    /// The key.
    pub key: Box<str>,
    /// Position of the key in the source.
    pub key_span: Span,
    /// The value.
    pub value: Node,
}

impl Node {
    /// The name of the value's type, with an article, for messages.
    pub fn type_name(&self) -> &'static str {
        match &self.data {
            Data::Null => "null",
            Data::Bool(_) => "a boolean",
            Data::Number(_) => "a number",
            Data::Text(_) => "text",
            Data::List(_) => "a list",
            Data::Map(_) => "a map",
        }
    }

    /// Returns the value of a key, if this is a map that contains it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.data {
            Data::Map(entries) => entries.iter().find(|entry| &*entry.key == key).map(|entry| &entry.value),
            _ => None,
        }
    }

    /// Returns the text, if this is text.
    pub fn as_text(&self) -> Option<&str> {
        if let Data::Text(text) = &self.data { Some(text) } else { None }
    }

    /// Returns the value without positions.
    pub fn to_value(&self) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(*value),
            Data::Number(number) => Value::Number(number.clone()),
            Data::Text(text) => Value::String(text.to_string()),
            Data::List(items) => items.iter().map(Node::to_value).collect(),
            Data::Map(entries) => {
                entries.iter().map(|entry| (entry.key.to_string(), entry.value.to_value())).collect()
            }
        }
    }
}

/// Serializes maps with sorted keys, so that the hash of a definition does not depend on the order of keys.
impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.data {
            Data::Null => serializer.serialize_unit(),
            Data::Bool(value) => serializer.serialize_bool(*value),
            Data::Number(number) => number.serialize(serializer),
            Data::Text(text) => serializer.serialize_str(text),
            Data::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(item))?;
                list.end()
            }
            Data::Map(entries) => {
                let mut sorted: Vec<&MapEntry> = entries.iter().collect();
                sorted.sort_by(|a, b| a.key.cmp(&b.key));
                let mut map = serializer.serialize_map(Some(sorted.len()))?;
                sorted.iter().try_for_each(|entry| map.serialize_entry(&*entry.key, &entry.value))?;
                map.end()
            }
        }
    }
}

impl JsonSchema for Node {
    fn schema_name() -> Cow<'static, str> {
        "Value".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Any value. Strings can contain `{{…}}` and `$key` references."
        })
    }
}

/// Parses the text into a tree. Returns `None` if that fails; the reason is in `out`.
pub fn read(source: &Source, out: &mut Diagnostics) -> Option<Node> {
    let text = source.text();
    if text.len() > limits::DEFINITION_BYTES {
        out.push(too_large());
        return None;
    }
    let starts_like_json = text.trim_start().starts_with(['{', '[']);
    let result = match source.format() {
        Format::Json => json::read(text),
        // Flow-style YAML starts like JSON. Text that is neither is most likely JSON with a typo.
        Format::Detect if starts_like_json => {
            json::read(text).or_else(|json_error| yaml::read(text).map_err(|_| json_error))
        }
        Format::Yaml | Format::Detect => yaml::read(text),
    };
    match result {
        Ok((node, problems)) => {
            problems.into_iter().for_each(|problem| out.push(problem));
            Some(node)
        }
        Err(fatal) => {
            out.push(*fatal);
            None
        }
    }
}

/// The tree and its recoverable problems, or the fatal problem.
type ReadResult = Result<(Node, Vec<Diagnostic>), Box<Diagnostic>>;

fn too_large() -> Diagnostic {
    let message = format!("the text has more than {} bytes", limits::DEFINITION_BYTES);
    Diagnostic::new(Code::LimitExceeded, Span::default(), message)
        .hint("split it into sub-workflows, or pass large data as inputs")
}

fn too_deep(span: Span) -> Box<Diagnostic> {
    let message = format!("lists and maps are nested more than {} levels deep", limits::DOCUMENT_DEPTH);
    let diagnostic = Diagnostic::new(Code::LimitExceeded, span, message);
    Box::new(diagnostic.hint("move the inner part into a sub-workflow (`kind: workflow`)"))
}

/// Counts the keys and values of a document against [`limits::DOCUMENT_NODES`].
#[derive(Default)]
struct NodeCount(usize);

impl NodeCount {
    fn add(&mut self, nodes: usize, span: Span) -> Result<(), Box<Diagnostic>> {
        self.0 += nodes;
        if self.0 <= limits::DOCUMENT_NODES {
            return Ok(());
        }
        let message = format!("the document has more than {} keys and values", limits::DOCUMENT_NODES);
        let diagnostic = Diagnostic::new(Code::LimitExceeded, span, message);
        Err(Box::new(diagnostic.hint("split it into sub-workflows, or pass large data as inputs")))
    }
}

/// Removes and reports all but the first entry of each key.
fn without_duplicates(entries: Vec<MapEntry>, problems: &mut Vec<Diagnostic>) -> Vec<MapEntry> {
    /// Up to this size, comparing all pairs is cheaper than building a set.
    const SMALL: usize = 16;
    let duplicate = |index: usize| entries[..index].iter().any(|entry| entry.key == entries[index].key);
    let has_duplicates = if entries.len() <= SMALL {
        (1..entries.len()).any(duplicate)
    } else {
        let keys: std::collections::HashSet<&str> = entries.iter().map(|entry| &*entry.key).collect();
        keys.len() < entries.len()
    };
    if !has_duplicates {
        return entries;
    }
    let mut seen = std::collections::HashSet::new();
    let mut unique = Vec::with_capacity(entries.len());
    for entry in entries {
        if seen.insert(entry.key.clone()) {
            unique.push(entry);
        } else {
            let message = format!("duplicate key `{}`", entry.key);
            let diagnostic = Diagnostic::new(Code::DuplicateKey, entry.key_span, message);
            problems.push(diagnostic.hint("remove one of the two"));
        }
    }
    unique
}
