//! Signed checkpoints: the head of the hash chain with an Ed25519 signature, which can be kept elsewhere.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use steprail_engine::ChainHead;

/// Bytes of the seed of a key.
const SEED_BYTES: usize = 32;
/// The maximum size of a key file.
const FILE_BYTES: u64 = 1024;

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
        let (Some(key), Some(signature)) = (from_hex(key), from_hex(&self.signature)) else { return false };
        let message = Self::message(&self.head, self.at);
        UnparsedPublicKey::new(&ED25519, key).verify(message.as_bytes(), &signature).is_ok()
    }
}

/// The key that signs checkpoints.
pub(crate) struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Reads the key file, or creates it. Only its owner can read it.
    pub(crate) fn open(file: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot use the key file {}: {error}", file.display());
        match File::open(file) {
            Ok(opened) => Self::read(opened, file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(file),
            Err(error) => Err(failed(error)),
        }
    }

    fn read(opened: File, file: &Path) -> Result<Self, String> {
        let path = file.display();
        let failed = |error: io::Error| format!("cannot read the key file {path}: {error}");
        let mode = opened.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(format!("other users can read the key file {path}; run `chmod 600 {path}`"));
        }
        let mut text = String::new();
        opened.take(FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
        let seed = from_hex(text.trim()).filter(|seed| seed.len() == SEED_BYTES);
        let seed = seed.ok_or_else(|| format!("the key file {path} must contain 64 hexadecimal digits"))?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed);
        pair.map(Self).map_err(|_| format!("the key file {path} contains no valid key"))
    }

    fn create(file: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot write the key file {}: {error}", file.display());
        let mut seed = [0; SEED_BYTES];
        getrandom::fill(&mut seed)
            .map_err(|error| format!("cannot get random bytes from the system: {error}"))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        let mut next = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)
            .map_err(failed)?;
        writeln!(next, "{}", to_hex(&seed)).map_err(failed)?;
        next.as_file().sync_all().map_err(failed)?;
        match next.persist_noclobber(file) {
            Ok(_) => {}
            // Another process created it first.
            Err(persist) if persist.error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(persist) => return Err(failed(persist.error)),
        }
        Self::read(File::open(file).map_err(failed)?, file)
    }

    /// The public key, in hexadecimal digits.
    pub(crate) fn public(&self) -> String {
        to_hex(self.0.public_key().as_ref())
    }

    /// Signs a head.
    pub(crate) fn sign(&self, head: ChainHead, at: i64) -> Checkpoint {
        let signature = to_hex(self.0.sign(Checkpoint::message(&head, at).as_bytes()).as_ref());
        Checkpoint { head, at, key: self.public(), signature }
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}
