//! Signed checkpoints: the head of the hash chain with an Ed25519 signature, which can be kept elsewhere.

use std::path::Path;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use steprail_engine::ChainHead;
use steprail_store::sqlite;

use crate::key_file::{self, hex, unhex};

/// A head of the hash chain that was signed at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// The head.
    #[serde(flatten)]
    pub head: ChainHead,
    /// When it was signed, in milliseconds since 1970.
    pub at: i64,
    /// The public key, in hexadecimal digits.
    pub key: String,
    /// The signature of [`Checkpoint::message`], in hexadecimal digits.
    pub signature: String,
}

impl Checkpoint {
    /// The text that is signed.
    fn message(head: &ChainHead, at: i64) -> String {
        let ChainHead { database, incarnation, row, hash } = head;
        format!("steprail-checkpoint-1\n{database}\n{incarnation}\n{row}\n{hash}\n{at}\n")
    }

    /// Whether the signature is that of a public key.
    pub(crate) fn is_signed_by(&self, key: &str) -> bool {
        let (Some(key), Some(signature)) = (unhex(key), unhex(&self.signature)) else { return false };
        let message = Self::message(&self.head, self.at);
        UnparsedPublicKey::new(&ED25519, key).verify(message.as_bytes(), &signature).is_ok()
    }
}

/// The key that signs checkpoints.
pub(crate) struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Reads the key file, or creates it. Only its owner can read it.
    pub(crate) fn open(file: &Path) -> Result<Self, String> {
        let seed = key_file::read(file)?.map_or_else(|| key_file::create(file), Ok)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed);
        pair.map(Self).map_err(|_| format!("the key file {} contains no valid key", file.display()))
    }

    /// The public key, in hexadecimal digits.
    pub(crate) fn public(&self) -> String {
        hex(self.0.public_key().as_ref())
    }

    /// Signs a head.
    pub(crate) fn sign(&self, head: ChainHead, at: i64) -> Checkpoint {
        let signature = hex(self.0.sign(Checkpoint::message(&head, at).as_bytes()).as_ref());
        Checkpoint { head, at, key: self.public(), signature }
    }
}

/// The key beside a database.
pub(crate) fn signing_key(database: &Path) -> Result<SigningKey, String> {
    let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    SigningKey::open(&folder.join("audit.key"))
}

/// Signs the head of a database.
pub(crate) fn checkpoint(database: &Path) -> Result<Checkpoint, String> {
    let at = jiff::Timestamp::now().as_millisecond();
    let head = sqlite::head(database).map_err(|error| error.to_string())?;
    Ok(signing_key(database)?.sign(head, at))
}
