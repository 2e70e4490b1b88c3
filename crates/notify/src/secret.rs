//! References to secrets in the configuration, and their values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A reference to a secret: `{ secret = "NAME" }`. The embedding program resolves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRef {
    /// The name of the secret.
    pub secret: String,
}

/// The value of a secret. It is redacted in debug output, and has no other output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value. It must not get into logs, errors or messages.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("‹secret›")
    }
}
