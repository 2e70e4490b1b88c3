//! A value with its JSON text and the hash of it: written once, read by whoever refers to it.

use std::sync::Arc;

use serde_json::Value;

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
