//! A value with its JSON text and hash, computed once and shared.

use std::sync::Arc;

use serde_json::Value;

use super::Failure;
use crate::limits;
use crate::plan::Hash;

/// A value of a run. Cloning is cheap: clones share the value.
#[derive(Clone)]
pub struct Payload(Arc<Inner>);

struct Inner {
    value: Value,
    json: Box<str>,
    hash: Hash,
}

impl Payload {
    /// Creates a payload from a value.
    pub fn new(value: Value) -> Self {
        let json = value.to_string();
        Self::with_json(value, json)
    }

    /// Parses a payload from its stored JSON text.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        Ok(Self::with_json(serde_json::from_str(json)?, json.to_owned()))
    }

    fn with_json(value: Value, json: String) -> Self {
        let hash = Hash::of(json.as_bytes());
        Self(Arc::new(Inner { value, json: json.into(), hash }))
    }

    /// Checks the limits for a value of a run.
    pub fn fits(&self) -> Result<(), Failure> {
        fits(&self.0.value, self.0.json.len())
    }

    /// The value as JSON.
    pub fn value(&self) -> &Value {
        &self.0.value
    }

    /// The JSON text of the value, with sorted keys.
    pub fn json(&self) -> &str {
        &self.0.json
    }

    /// SHA-256 of the JSON text.
    pub fn hash(&self) -> Hash {
        self.0.hash
    }
}

/// Checks the depth of a value, and the size of its JSON text in bytes, against the limits.
pub(super) fn fits(value: &Value, bytes: usize) -> Result<(), Failure> {
    if bytes > limits::PAYLOAD_BYTES {
        let limit = limits::PAYLOAD_BYTES;
        return Err(Failure::limit(format!("{bytes} bytes of JSON exceed the limit of {limit}")));
    }
    if is_deeper(value, limits::VALUE_DEPTH) {
        let limit = limits::VALUE_DEPTH;
        return Err(Failure::limit(format!("a value has more than {limit} nested lists and maps")));
    }
    Ok(())
}

/// Whether lists and maps of a value are nested deeper than `levels`.
pub fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(map) => levels == 0 || map.values().any(|item| is_deeper(item, levels - 1)),
        _ => false,
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::new(Value::Null)
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.hash() == other.hash()
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.json())
    }
}
