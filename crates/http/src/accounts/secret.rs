//! The random secrets of tokens and sessions, and the hashes that are stored of them.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Prefix of every token, so that secret scanners find leaked ones.
const PREFIX: &str = "sr_";
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 16;
/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// A random secret with a public id.
pub(crate) struct Secret {
    pub id: String,
    bytes: [u8; SECRET_BYTES],
}

impl Secret {
    pub(super) fn generate() -> Result<Self, String> {
        let (mut id, mut bytes) = ([0; ID_DIGITS / 2], [0; SECRET_BYTES]);
        let filled = getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut bytes));
        filled.map_err(|error| format!("cannot read random numbers from the system: {error}"))?;
        Ok(Self { id: hex(&id), bytes })
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_id = id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
        Some(Self { id: is_id.then(|| id.to_owned())?, bytes: unhex(secret)? })
    }

    /// The text that its holder sends.
    pub(super) fn text(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, hex(&self.bytes))
    }

    pub(super) fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.bytes).into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{PREFIX}{}_…", self.id)
    }
}

/// The hash of a secret. Secrets are random, so a fast hash is enough.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SecretHash([u8; 32]);

impl SecretHash {
    /// Compares in constant time.
    pub(super) fn matches(&self, secret: &Secret) -> bool {
        constant_time_eq(&self.0, &secret.hash().0)
    }
}

/// Compares in a time that depends on the lengths only.
pub(super) fn constant_time_eq(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differs, (l, r)| differs | (l ^ r)) == 0
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SecretHash")
    }
}

impl Serialize for SecretHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for SecretHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        unhex(&text).map(Self).ok_or_else(|| serde::de::Error::custom("a hash has 64 hexadecimal digits"))
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    (digits.len() == 64).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{Secret, unhex};

    #[test]
    fn secret_round_trips_and_no_other_matches() {
        let (one, other) = (Secret::generate().expect("randomness"), Secret::generate().expect("randomness"));
        let read = Secret::parse(&one.text()).expect("a secret");
        assert!(one.hash().matches(&read), "the same secret matches");
        assert!(!one.hash().matches(&other), "another secret does not match");
        assert!(!format!("{one:?}").contains(&one.text()[21..]), "Debug does not print it");
        for bad in ["", "sr_", "sr__", "sr_0123456789abcdef_", "sr_0123456789abcdef_00", &one.text()[..80]] {
            assert!(Secret::parse(bad).is_none(), "{bad}");
        }
        assert!(unhex(&"é".repeat(32)).is_none());
    }
}
