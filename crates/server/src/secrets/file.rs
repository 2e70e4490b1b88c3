//! The secrets file: names and times in plain text, values encrypted. It is replaced atomically.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The maximum size of the file.
const FILE_BYTES: u64 = 64 * 1024 * 1024;
/// The version of the format.
pub(super) const VERSION: u32 = 1;

/// The contents of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contents {
    pub version: u32,
    /// A known plaintext, encrypted. It detects a wrong key.
    pub check: String,
    /// Secrets that all users share.
    #[serde(default)]
    pub shared: SealedByName,
    /// Secrets of each user, by the user's id.
    #[serde(default)]
    pub users: BTreeMap<String, SealedByName>,
}

pub(super) type SealedByName = BTreeMap<String, Sealed>;

/// An encrypted secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sealed {
    /// When it was set, in milliseconds since 1970.
    pub set_at: i64,
    /// Nonce, ciphertext and tag, as hexadecimal digits.
    pub sealed: String,
}

/// Identifies a version of the file: inode, size and modification time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(u64, u64, i64, i64);

/// The fingerprint of the file; `None` if it does not exist.
pub(super) fn fingerprint(file: &Path) -> io::Result<Option<Fingerprint>> {
    match std::fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        metadata => {
            metadata.map(|data| Some(Fingerprint(data.ino(), data.size(), data.mtime(), data.mtime_nsec())))
        }
    }
}

pub(super) fn read(file: &Path) -> Result<Contents, String> {
    let path = file.display();
    let mut text = String::new();
    let result = File::open(file).and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text));
    result.map_err(|error| format!("cannot read {path}: {error}"))?;
    let contents: Contents = serde_json::from_str(&text)
        .map_err(|error| format!("{path} is damaged at line {}; restore it from a backup", error.line()))?;
    match contents.version {
        VERSION => Ok(contents),
        other => Err(format!("{path} has format {other}, which needs a newer version of steprail")),
    }
}

/// Replaces the file. The new contents are durable when this returns.
pub(super) fn write(file: &Path, contents: &Contents) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot write {}: {error}", file.display());
    let text = serde_json::to_string_pretty(contents).map_err(|error| failed(error.into()))?;
    if text.len() as u64 >= FILE_BYTES {
        return Err(format!("{} would exceed the limit of {FILE_BYTES} bytes", file.display()));
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut next = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(folder)
        .map_err(failed)?;
    next.write_all(text.as_bytes()).map_err(failed)?;
    next.as_file().sync_all().map_err(failed)?;
    next.persist(file).map_err(|persist| failed(persist.error))?;
    crate::key_file::sync(folder).map_err(failed)
}
