//! A value with its JSON text and the hash of it: written once, read by whoever refers to it.

use std::sync::Arc;

use serde_json::Value;

use super::Failure;
use crate::limits;
use crate::plan::Hash;

/// A value of a run. A clone is another handle to the same value.
#[derive(Clone)]
pub struct Payload(Arc<Inner>);

struct Inner {
    value: Value,
    json: Box<str>,
    hash: Hash,
}

impl Payload {
    /// A value as it came from outside or was computed.
    pub fn new(value: Value) -> Self {
        let json = value.to_string();
        Self::with_json(value, json)
    }

    /// A value as it was stored.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        Ok(Self::with_json(serde_json::from_str(json)?, json.to_owned()))
    }

    fn with_json(value: Value, json: String) -> Self {
        let hash = Hash::of(json.as_bytes());
        Self(Arc::new(Inner { value, json: json.into(), hash }))
    }

    /// Whether it is within the limits for a value of a run.
    pub fn fits(&self) -> Result<(), Failure> {
        fits(&self.0.value, self.0.json.len())
    }

    /// The value.
    pub fn value(&self) -> &Value {
        &self.0.value
    }

    /// Its JSON text, with sorted keys.
    pub fn json(&self) -> &str {
        &self.0.json
    }

    /// SHA-256 of the JSON text.
    pub fn hash(&self) -> Hash {
        self.0.hash
    }
}

/// Whether a value with so many bytes of JSON is within the limits.
pub(super) fn fits(value: &Value, bytes: usize) -> Result<(), Failure> {
    if bytes > limits::PAYLOAD_BYTES {
        let limit = limits::PAYLOAD_BYTES;
        return Err(Failure::limit(format!("{bytes} bytes of JSON are more than the limit of {limit}")));
    }
    if is_deeper(value, limits::VALUE_DEPTH) {
        let limit = limits::VALUE_DEPTH;
        return Err(Failure::limit(format!(
            "a value has more than {limit} lists and maps inside one another"
        )));
    }
    Ok(())
}

/// Whether a value has more than so many lists and maps inside one another.
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
