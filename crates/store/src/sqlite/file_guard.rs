//! Detects that the files of an open database were removed, replaced, truncated or overwritten by another program.
//!
//! A process can write to an unlinked file without an error, and all of it is lost after a restart. The guard compares
//! the result of `stat` with the previous one. Each commit checks the directory (one `stat`, about 1 µs). The files are
//! checked when the directory changed, and at intervals.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::backup::folder_of;
use super::identity::Identity;
use super::lock::Lock;
use super::{WAL_BYTES, beside};
use crate::StoreError;
use crate::limits::FILE_CHECK_INTERVAL;

/// The state of a file as `stat` returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// A file of the database and its last known state.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    state: FileState,
}

/// The files of an open database.
#[derive(Debug)]
pub(super) struct FileGuard {
    directory: Watched,
    database: Watched,
    wal: Watched,
    /// Files whose contents are not compared.
    others: [Watched; 2],
    checked_at: Instant,
}

impl FileGuard {
    /// Starts to watch the files of a database that is open in WAL mode.
    pub(super) fn new(database: &Path, lock: &Lock) -> Result<Self, StoreError> {
        let watch = |path: PathBuf| {
            let state = FileState::of(&path)?;
            Ok::<_, StoreError>(Watched { path, state })
        };
        Ok(Self {
            directory: watch(folder_of(database).to_owned())?,
            database: watch(database.to_owned())?,
            wal: watch(beside(database, "-wal"))?,
            others: [watch(beside(database, "-shm"))?, watch(lock.path().to_owned())?],
            checked_at: Instant::now(),
        })
    }

    /// The size of the WAL at the last check, in bytes.
    pub(super) fn wal_bytes(&self) -> u64 {
        self.wal.state.bytes
    }

    /// Checks every file before a transaction, at intervals. After a commit, a WAL that was truncated before it would
    /// have its size again. `expected` is the identity that was read when the database was opened.
    pub(super) fn before_write(&mut self, expected: &Identity) -> Result<(), StoreError> {
        if self.checked_at.elapsed() < FILE_CHECK_INTERVAL {
            return Ok(());
        }
        self.check_files(expected)
    }

    /// Checks the directory after a commit. It changes if a file is removed or replaced.
    pub(super) fn after_commit(&mut self, expected: &Identity) -> Result<(), StoreError> {
        let directory = self.directory.look()?;
        if directory.modified != self.directory.state.modified {
            self.check_files(expected)?;
            self.directory.state = directory;
        }
        Ok(())
    }

    /// Checks every file.
    pub(super) fn check_files(&mut self, expected: &Identity) -> Result<(), StoreError> {
        let (database, wal) = (self.database.look()?, self.wal.look()?);
        self.others.iter().try_for_each(|file| file.look().map(drop))?;
        // SQLite never truncates the database, and truncates the WAL only to this size.
        self.database.require_bytes(database, u64::MAX)?;
        self.wal.require_bytes(wal, WAL_BYTES.into())?;
        if database != self.database.state {
            // The file can also have changed through a checkpoint.
            self.verify_contents(expected)?;
        }
        (self.database.state, self.wal.state) = (database, wal);
        self.checked_at = Instant::now();
        Ok(())
    }

    /// Reads the identity from the database file alone. The WAL could hide an overwritten page.
    fn verify_contents(&self, expected: &Identity) -> Result<(), StoreError> {
        let changed = |what: String| {
            StoreError::Replaced(format!("{} was overwritten: {what}", self.database.path.display()))
        };
        match read_file_alone(&self.database.path) {
            Err(error) => Err(changed(error.to_string())),
            Ok(Contents::Empty) => Err(changed("it has no tables".to_owned())),
            Ok(Contents::Known(found)) if found.is_backup => Err(changed("it is a backup".to_owned())),
            Ok(Contents::Known(found))
                if (&found.database, found.incarnation) != (&expected.database, expected.incarnation) =>
            {
                Err(changed("it is another database".to_owned()))
            }
            Ok(Contents::Known(_) | Contents::Inconsistent) => Ok(()),
        }
    }
}

impl Watched {
    /// The current state of the file. An error if it was removed or replaced.
    fn look(&self) -> Result<FileState, StoreError> {
        let now = FileState::of(&self.path)?;
        if (now.device, now.inode) != (self.state.device, self.state.inode) {
            let message = format!("another file has the name {}", self.path.display());
            return Err(StoreError::Replaced(message));
        }
        Ok(now)
    }
}

impl Watched {
    /// Returns an error if the file is shorter than before and shorter than `least`.
    fn require_bytes(&self, now: FileState, least: u64) -> Result<(), StoreError> {
        let before = self.state.bytes;
        if now.bytes < before.min(least) {
            let message =
                format!("{} was truncated from {before} to {} bytes", self.path.display(), now.bytes);
            return Err(StoreError::Replaced(message));
        }
        Ok(())
    }
}

impl FileState {
    fn of(path: &Path) -> Result<Self, StoreError> {
        let known = std::fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                StoreError::Replaced(format!("{} was removed or renamed", path.display()))
            }
            _ => super::backup::failed(path, &error),
        })?;
        Ok(Self {
            device: known.dev(),
            inode: known.ino(),
            bytes: known.len(),
            modified: (known.mtime(), known.mtime_nsec()),
        })
    }
}

/// What a database file contains without its WAL.
enum Contents {
    Known(Identity),
    Empty,
    /// A checkpoint has copied a part of the WAL, as after a crash. The file is complete only with its WAL.
    Inconsistent,
}

fn read_file_alone(path: &Path) -> Result<Contents, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file_uri(path), flags)?;
    let is_malformed =
        |error: &rusqlite::Error| error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt);
    match connection.query_row("PRAGMA schema_version", [], |_| Ok(())) {
        Err(error) if is_malformed(&error) => return Ok(Contents::Inconsistent),
        opened => opened?,
    }
    match Identity::read(&connection) {
        Ok(found) => Ok(found.map_or(Contents::Empty, Contents::Known)),
        Err(StoreError::Corrupt(_)) => Ok(Contents::Inconsistent),
        Err(error) => Err(error),
    }
}

/// The URI of a file that SQLite reads without locks and without a WAL.
fn file_uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                uri.push(char::from(*byte));
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri + "?immutable=1"
}
