//! Tokens and sign-ins: random secrets of which only hashes are kept.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use steprail_core::run::Millis;
use steprail_engine::TokenScope;

/// What every token begins with: a word by which leaked ones are found.
const PREFIX: &str = "sr_";
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 16;
/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// What is kept of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token {
    /// Whose it is.
    pub user: String,
    /// What it is for, in words.
    pub name: String,
    /// The hash of its secret.
    pub hash: SecretHash,
    /// Whether whoever has it is an agent of the user's, and not the user.
    pub agent: bool,
    /// What it is held to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<TokenScope>,
    /// When it was made.
    pub created_at: Millis,
    /// When it is no longer valid.
    pub expires_at: Millis,
}

/// What is kept of a browser that a user has signed in with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SignIn {
    /// Who.
    pub user: String,
    /// The hash of what the browser has.
    pub hash: SecretHash,
    /// When.
    pub created_at: Millis,
    /// When it was last used, roughly.
    pub seen_at: Millis,
}

/// Something that only its holder knows.
pub(crate) struct Secret {
    pub id: String,
    bytes: [u8; SECRET_BYTES],
}

impl Secret {
    /// A new one, from the system's randomness.
    pub(super) fn new() -> Result<Self, String> {
        let (mut id, mut bytes) = ([0; ID_DIGITS / 2], [0; SECRET_BYTES]);
        let filled = getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut bytes));
        filled.map_err(|error| format!("the system gives no random numbers: {error}"))?;
        Ok(Self { id: hex(&id), bytes })
    }

    /// The one that a text stands for.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_id = id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
        Some(Self { id: is_id.then(|| id.to_owned())?, bytes: unhex(secret)? })
    }

    /// As it is handed over, once.
    pub(super) fn text(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, hex(&self.bytes))
    }

    pub(super) fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.bytes).into())
    }

    /// What a page that holds it sends along with what it changes: another page cannot know it.
    pub(super) fn csrf(&self) -> String {
        hex(&Sha256::new().chain_update(b"csrf").chain_update(self.bytes).finalize()[..16])
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
    /// Whether it is the hash of a secret; how long that takes tells nothing.
    pub(super) fn fits(&self, secret: &Secret) -> bool {
        same(&self.0, &secret.hash().0)
    }
}

/// Whether two texts of the same kind are equal, in a time that tells nothing.
pub(super) fn same(left: &[u8], right: &[u8]) -> bool {
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
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
    fn a_secret_is_read_back_and_no_other_fits() {
        let (one, other) = (Secret::new().expect("randomness"), Secret::new().expect("randomness"));
        let read = Secret::read(&one.text()).expect("it is read");
        assert!(one.hash().fits(&read), "the same secret fits");
        assert!(!one.hash().fits(&other), "another does not");
        assert!(!format!("{one:?}").contains(&one.text()[21..]), "it is never printed");
        for bad in ["", "sr_", "sr__", "sr_0123456789abcdef_", "sr_0123456789abcdef_00", &one.text()[..80]] {
            assert!(Secret::read(bad).is_none(), "{bad}");
        }
        assert!(unhex(&"é".repeat(32)).is_none());
    }
}
