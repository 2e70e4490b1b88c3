//! Text to a tree of plain values that knows where each key and value stands.

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

/// A value with its place.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Where the value stands.
    pub span: Span,
    /// The value.
    pub data: Data,
}

/// The JSON data model, which YAML is read into as well.
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
    /// A map in the order of the text; no key stands twice.
    Map(Vec<Entry>),
}

/// A key and its value.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: Box<str>,
    /// Where the key stands.
    pub key_span: Span,
    /// The value.
    pub value: Node,
}

impl Node {
    /// The name of the type, for messages.
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

    /// The value of a key, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.data {
            Data::Map(entries) => entries.iter().find(|entry| &*entry.key == key).map(|entry| &entry.value),
            _ => None,
        }
    }

    /// The text, if this is text.
    pub fn as_text(&self) -> Option<&str> {
        if let Data::Text(text) = &self.data { Some(text) } else { None }
    }

    /// The value without its places.
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

/// Maps are written with sorted keys, so that the order of a text does not change a definition's hash.
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
                let mut sorted: Vec<&Entry> = entries.iter().collect();
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
            "description": "Any value. Strings in it may hold `{{…}}` and `$key` references."
        })
    }
}

/// Reads the text into a tree. `None` means that it could not be read; the reason is in `out`.
pub fn read(source: &Source, out: &mut Diagnostics) -> Option<Node> {
    let text = source.text();
    if text.len() > limits::DEFINITION_BYTES {
        out.push(too_large());
        return None;
    }
    let guess_json = source.format() == Format::Guess && text.trim_start().starts_with(['{', '[']);
    let result = match source.format() {
        Format::Json => json::read(text),
        // Flow-style YAML starts like JSON; what is neither is most likely JSON with a slip.
        Format::Guess if guess_json => {
            json::read(text).or_else(|json_error| yaml::read(text).map_err(|_| json_error))
        }
        Format::Yaml | Format::Guess => yaml::read(text),
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

/// A tree with the problems that do not keep it from being read, or the one that does.
type Outcome = Result<(Node, Vec<Diagnostic>), Box<Diagnostic>>;

fn too_large() -> Diagnostic {
    let message = format!("the text has more than {} bytes", limits::DEFINITION_BYTES);
    Diagnostic::new(Code::LimitExceeded, Span::default(), message)
        .hint("split it into sub-workflows, or pass large data as inputs")
}

fn too_deep(span: Span) -> Box<Diagnostic> {
    let message = format!("lists and maps are nested deeper than {}", limits::DOCUMENT_DEPTH);
    let diagnostic = Diagnostic::new(Code::LimitExceeded, span, message);
    Box::new(diagnostic.hint("move the inner part into a sub-workflow (`kind: workflow`)"))
}

/// Counts the keys and values of a document as they are read.
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

/// Leaves each key once, the first one, and reports the others.
fn without_duplicates(entries: Vec<Entry>, problems: &mut Vec<Diagnostic>) -> Vec<Entry> {
    /// Below this, comparing all pairs is cheaper than a set.
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
    let mut kept = Vec::with_capacity(entries.len());
    for entry in entries {
        if seen.insert(entry.key.clone()) {
            kept.push(entry);
        } else {
            let message = format!("the key `{}` stands twice in this map", entry.key);
            let diagnostic = Diagnostic::new(Code::DuplicateKey, entry.key_span, message);
            problems.push(diagnostic.hint("keep one of the two"));
        }
    }
    kept
}
