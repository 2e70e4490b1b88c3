//! JSON Schema, evaluated within a cost budget.
//!
//! Schemas come from definitions and from MCP servers, and they are checked for every call. A schema of two kilobytes can
//! describe a search that never ends, so evaluation charges its steps to a [`Budget`] and fails when that is exhausted.
//! There is no compilation beyond regular expressions and references: memory is proportional to the schema.
//!
//! Supported are the applicators and assertions of draft 2020-12, and their spellings in draft 7 (`definitions`, `items` as
//! a list, `additionalItems`, `dependencies`). `format` is an annotation, as in the standard.

mod compare;
mod evaluate;
mod keywords;
mod message;
mod read;

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::bounded_regex::{BoundedRegex, RegexSet};
use crate::budget::Budget;
use evaluate::Evaluation;
use read::Invalid;

/// A schema that is ready to check values.
#[derive(Debug)]
pub struct Schema {
    root: Value,
    /// Compiled `pattern`s and names of `patternProperties`, by their text.
    patterns: BTreeMap<String, BoundedRegex>,
    /// JSON pointers of `$id` and `$anchor`.
    anchors: BTreeMap<String, String>,
    /// What is not enforced in a tolerant schema.
    unsupported: Vec<String>,
    /// Whether `unevaluatedProperties` or `unevaluatedItems` occur: only then is it recorded what was evaluated.
    tracks_evaluated: bool,
}

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaError {
    /// JSON pointer into the schema.
    pub pointer: String,
    /// What is wrong there.
    pub message: String,
}

impl fmt::Display for SchemaError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pointer = if self.pointer.is_empty() { "the root" } else { &self.pointer };
        write!(out, "{pointer}: {}", self.message)
    }
}

impl std::error::Error for SchemaError {}

/// One way in which a value does not match a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// JSON pointer into the value; empty for the value itself.
    pub pointer: String,
    /// What is wrong there.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pointer.is_empty() {
            return out.write_str(&self.message);
        }
        write!(out, "`{}`: {}", self.pointer, self.message)
    }
}

impl Schema {
    /// Reads a schema. Every part of it must be valid and supported.
    pub fn new(schema: &Value) -> Result<Self, SchemaError> {
        Self::with_regexes(schema, &mut RegexSet::default())
    }

    /// Reads a schema that shares regular expressions, and the limits on them, with others.
    pub(crate) fn with_regexes(schema: &Value, regexes: &mut RegexSet) -> Result<Self, SchemaError> {
        read::read(schema, Invalid::Reject, regexes)
    }

    /// Reads a schema that its user cannot correct, such as that of a server's tool. Keywords with invalid or unsupported
    /// values are not enforced and listed in [`Schema::unsupported`]; a schema that exceeds a limit is an error.
    pub fn tolerant(schema: &Value) -> Result<Self, SchemaError> {
        read::read(schema, Invalid::Remove, &mut RegexSet::default())
    }

    /// A schema that every value matches.
    pub fn any() -> Self {
        Self {
            root: Value::Bool(true),
            patterns: BTreeMap::new(),
            anchors: BTreeMap::new(),
            unsupported: Vec::new(),
            tracks_evaluated: false,
        }
    }

    /// The schema as JSON.
    pub fn json(&self) -> &Value {
        &self.root
    }

    /// What is not enforced in a tolerant schema: patterns with look-around or back-references, references to other
    /// documents, and invalid keywords.
    pub fn unsupported(&self) -> &[String] {
        &self.unsupported
    }

    /// Checks a value. Returns at most `limit` violations; none if the value matches. An exhausted budget is a violation.
    pub fn check(&self, value: &Value, limit: usize) -> Vec<Violation> {
        self.check_within(value, limit, &mut Budget::check(value))
    }

    /// Checks a value within a budget that other evaluations share.
    pub fn check_within(&self, value: &Value, limit: usize, budget: &mut Budget) -> Vec<Violation> {
        Evaluation::new(self, budget).run(&self.root, value, limit)
    }

    /// Checks a value against a part of this schema. References in the part are resolved in the whole schema.
    pub fn check_part(&self, part: &Value, value: &Value, limit: usize) -> Vec<Violation> {
        Evaluation::new(self, &mut Budget::check(value)).run(part, value, limit)
    }

    /// The target of a reference.
    fn resolve(&self, reference: &str) -> Option<&Value> {
        let pointer = match reference.split_once('#') {
            Some(("", fragment)) => self.fragment("", fragment)?,
            Some((id, fragment)) => self.fragment(self.anchors.get(id)?, fragment)?,
            None => self.anchors.get(reference)?.clone(),
        };
        self.root.pointer(&pointer)
    }

    fn fragment(&self, base: &str, fragment: &str) -> Option<String> {
        if fragment.is_empty() || fragment.starts_with('/') {
            return Some(format!("{base}{}", percent_decoded(fragment)));
        }
        self.anchors.get(&format!("#{fragment}")).cloned()
    }
}

/// Decodes `%XX`; other text stays as it is.
fn percent_decoded(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded =
            digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
