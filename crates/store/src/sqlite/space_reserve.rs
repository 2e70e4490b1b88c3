//! Reserved disk space: a file that is deleted on a full disk, so that a run can still be cancelled.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::backup::folder_of;
use super::{beside, size};
use crate::limits::{RESERVE_BYTES, RESERVE_SHARE};

/// The smallest reserve, and the granularity of attempts to reclaim it, in bytes.
const SMALLEST: u64 = 16 * 1024;

/// The reserve of a database.
#[derive(Debug)]
pub(super) struct SpaceReserve {
    path: PathBuf,
    /// Bytes that were released and not reserved again.
    released: u64,
}

impl SpaceReserve {
    pub(super) fn new(database: &Path) -> Self {
        Self { path: beside(database, "-reserve"), released: 0 }
    }

    /// Creates the reserve if the disk has room for it. It is only needed when the disk is full.
    pub(super) fn ensure(&self) {
        let has_room = || free_bytes(&self.path) >= RESERVE_BYTES * RESERVE_SHARE;
        if size(&self.path) < RESERVE_BYTES && has_room() {
            self.allocate(RESERVE_BYTES);
        }
    }

    /// Releases the reserved space. Returns false if there is none.
    pub(super) fn release(&mut self) -> bool {
        let bytes = size(&self.path);
        if bytes == 0 || std::fs::remove_file(&self.path).is_err() {
            return false;
        }
        self.released = bytes;
        true
    }

    /// Reserves the released space again, as far as it is still free. Space that other programs freed is not used.
    pub(super) fn reclaim(&mut self) {
        let mut bytes = std::mem::take(&mut self.released).min(free_bytes(&self.path));
        while bytes >= SMALLEST && !self.allocate(bytes) {
            bytes -= SMALLEST;
        }
    }

    fn allocate(&self, bytes: u64) -> bool {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path);
        let is_allocated = file.is_ok_and(|file| fallocate(&file, FallocateFlags::empty(), 0, bytes).is_ok());
        if !is_allocated {
            // A failed attempt may have allocated a part of the file.
            let _ = std::fs::remove_file(&self.path);
        }
        is_allocated
    }
}

/// Bytes that the disk of a file has free.
fn free_bytes(path: &Path) -> u64 {
    statvfs(folder_of(path)).map_or(0, |disk| disk.f_bavail * disk.f_frsize)
}
