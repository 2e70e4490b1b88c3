//! Fencing: an exclusive lock file admits one writer per database and names its owner.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::beside;
use crate::StoreError;

/// The lock. The operating system gives it back when the process ends, however that happens.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "dropping it gives the lock back")] File);

impl Lock {
    /// Takes the lock of a database; `called` is what its user calls it.
    pub(super) fn take(database: &Path, called: &Path, address: Option<&str>) -> Result<Self, StoreError> {
        let path = beside(database, "-lock");
        let cannot = |error: std::io::Error| {
            StoreError::ReadOnly(format!("cannot open the lock file {}: {error}", path.display()))
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(cannot)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(called, &mut file)),
            Err(error) => return Err(cannot(error.into())),
        }
        let holder = match address {
            Some(address) => format!("{} at {address}", std::process::id()),
            None => std::process::id().to_string(),
        };
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(holder.as_bytes()))
            .map_err(cannot)?;
        Ok(Self(file))
    }
}

/// Says who has the database.
fn in_use(database: &Path, lock: &mut File) -> StoreError {
    let mut holder = String::new();
    let _ = lock.read_to_string(&mut holder);
    let holder = if holder.trim().is_empty() { "(unknown)" } else { holder.trim() };
    StoreError::InUse { path: database.display().to_string(), holder: holder.to_owned() }
}
