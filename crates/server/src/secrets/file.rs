//! The file of the secrets: names and times in clear, values encrypted. It is written whole or not at all.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::key;

/// Bytes of the file.
const FILE_BYTES: u64 = 64 * 1024 * 1024;
/// The version of the format.
pub(super) const VERSION: u32 = 1;

/// Everything in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contents {
    pub version: u32,
    /// A known text, encrypted: tells whether the key fits.
    pub check: String,
    /// Secrets of all users, by name.
    #[serde(default)]
    pub shared: Named,
    /// Secrets of each user, by user and name.
    #[serde(default)]
    pub users: BTreeMap<String, Named>,
}

/// Secrets by name.
pub(super) type Named = BTreeMap<String, Sealed>;

/// An encrypted secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sealed {
    /// When it was set, in milliseconds of the Unix epoch.
    pub set_at: i64,
    /// Nonce, ciphertext and tag.
    pub sealed: String,
}

/// What tells one state of the file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(u64, u64, i64, i64);

/// The state of the file now; `None` if there is no file.
pub(super) fn stamp(file: &Path) -> io::Result<Option<Stamp>> {
    match std::fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(|data| Some(Stamp(data.ino(), data.size(), data.mtime(), data.mtime_nsec()))),
    }
}

/// Reads the file.
pub(super) fn read(file: &Path) -> Result<Contents, String> {
    let told = |what: String| format!("{} {what}", file.display());
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text));
    read.map_err(|error| told(format!("cannot be read: {error}")))?;
    let contents: Contents = serde_json::from_str(&text)
        .map_err(|error| told(format!("is damaged at line {}; restore it from a backup", error.line())))?;
    match contents.version {
        VERSION => Ok(contents),
        other => Err(told(format!("has format {other}, which a newer steprail wrote; use that one"))),
    }
}

/// Puts new contents in the place of the file: durable when this returns.
pub(super) fn write(file: &Path, contents: &Contents) -> Result<(), String> {
    let told = |error: io::Error| format!("{} cannot be written: {error}", file.display());
    let text = serde_json::to_string_pretty(contents).map_err(|error| told(error.into()))?;
    if text.len() as u64 >= FILE_BYTES {
        return Err(format!("{} would be larger than {FILE_BYTES} bytes", file.display()));
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut next = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(folder)
        .map_err(told)?;
    next.write_all(text.as_bytes()).map_err(told)?;
    next.as_file().sync_all().map_err(told)?;
    next.persist(file).map_err(|failed| told(failed.error))?;
    key::sync(folder).map_err(told)
}
