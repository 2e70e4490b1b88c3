//! Fencing: an exclusive lock on the anchor file admits one writer per database and identifies it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::anchor::SLOTS_BYTES;
use super::beside;
use crate::StoreError;

/// Bytes of the file, after the slots of the anchor, that identify the owner.
const HOLDER_BYTES: usize = 512;

/// The lock of a database. The operating system releases it when the process ends.
///
/// The locked file is the anchor. A database without its anchor is refused, so deleting the file does not admit a
/// second writer.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock of a database. `called` is the path that the user gave.
    pub(super) fn take(database: &Path, called: &Path, address: Option<&str>) -> Result<Self, StoreError> {
        let path = beside(database, "-anchor");
        let cannot = |error: std::io::Error| {
            StoreError::ReadOnly(format!("cannot open the anchor file {}: {error}", path.display()))
        };
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(cannot)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(called, &file)),
            Err(error) => return Err(cannot(error.into())),
        }
        let holder = match address {
            Some(address) => format!("{} at {address}", std::process::id()),
            None => std::process::id().to_string(),
        };
        let mut line = holder.into_bytes();
        line.resize(HOLDER_BYTES, b' ');
        file.write_all_at(&line, SLOTS_BYTES as u64).map_err(|error| super::backup::failed(&path, &error))?;
        Ok(Self { file, path })
    }

    /// The locked file, which also holds the anchor.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The path of the locked file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The error that identifies the process with the lock.
fn in_use(database: &Path, lock: &File) -> StoreError {
    let mut line = [0; HOLDER_BYTES];
    let bytes = lock.read_at(&mut line, SLOTS_BYTES as u64).unwrap_or_default();
    let holder = String::from_utf8_lossy(&line[..bytes]);
    let holder = holder.trim_matches(['\0', ' ']);
    let holder = if holder.is_empty() { "(unknown)" } else { holder };
    StoreError::InUse { path: database.display().to_string(), holder: holder.to_owned() }
}
