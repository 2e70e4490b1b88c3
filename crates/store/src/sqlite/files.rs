//! The files of an open database: lock, anchor, guard and reserve, with their hooks in open, commit and close.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::anchor::{Anchor, Stored, this_boot};
use super::backup::{failed, folder_of, sync};
use super::file_guard::FileGuard;
use super::identity::{self, Identity};
use super::lock::Lock;
use super::space_reserve::SpaceReserve;
use super::{BUSY_TIMEOUT, Durability, beside, size};
use crate::limits::{PROBE_BYTES, WAL_RESTART_BYTES, WAL_RESTART_STEP, WAL_RESTART_WAIT};
use crate::{Health, StoreError, Upkeep};

/// A locked database that is not open yet.
#[derive(Debug)]
pub(super) struct LockedFiles {
    pub path: PathBuf,
    lock: Lock,
    pub stored: Stored,
}

impl LockedFiles {
    /// Restricts the files of an open database to their owner, whatever the umask is. SQLite creates the other files with the
    /// permissions of the database.
    pub(super) fn restrict_access(&self) {
        for path in ["", "-wal", "-shm", "-anchor"].map(|suffix| beside(&self.path, suffix)) {
            let is_shared = |file: std::fs::Metadata| file.permissions().mode() & 0o077 != 0;
            if std::fs::metadata(&path).is_ok_and(is_shared) {
                // The owner of the file can be another user, who decides then.
                let _ = std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600));
            }
        }
    }

    /// Locks a database and reads its anchor. `called` is the path that the user gave.
    pub(super) fn lock(path: &Path, called: &Path, address: Option<&str>) -> Result<Self, StoreError> {
        let lock = Lock::take(path, called, address)?;
        let stored = Anchor::read(lock.file()).map_err(|error| failed(lock.path(), &error))?;
        Ok(Self { path: path.to_owned(), lock, stored })
    }

    /// Refuses to create a database where the anchor or a WAL shows that there was one.
    pub(super) fn refuse_empty(&self) -> Result<(), StoreError> {
        if size(&self.path) > 0 {
            return Ok(());
        }
        if let Stored::Anchor(anchor) = &self.stored {
            let events = anchor.last_event;
            return Err(
                self.mismatch(format!("the file is missing or empty, and the database had {events} events"))
            );
        }
        // SQLite would delete the WAL, and the commits in it would be lost.
        let log = beside(&self.path, "-wal");
        if size(&log) > 0 {
            let told = format!("{} exists without its database", log.display());
            return Err(StoreError::Corrupt(told));
        }
        Ok(())
    }

    /// Refuses a database that the anchor does not describe. The file is not modified.
    pub(super) fn admit(&self, connection: &Connection) -> Result<(), StoreError> {
        let found = Identity::read(connection)?;
        match Identity::mismatch(found.as_ref(), &self.stored) {
            None => Ok(()),
            Some(reason) => {
                keep_wal(connection);
                Err(self.mismatch(reason))
            }
        }
    }

    fn mismatch(&self, reason: String) -> StoreError {
        StoreError::Mismatch { path: self.path.display().to_string(), reason }
    }

    /// Writes an anchor and syncs it to disk.
    pub(super) fn write_anchor(&self, anchor: &mut Anchor) -> Result<(), StoreError> {
        let written = anchor.write(self.lock.file()).and_then(|()| self.lock.file().sync_all());
        written.map_err(|error| failed(self.lock.path(), &error))
    }

    /// Starts to watch the files of a database that is open and has its current format.
    pub(super) fn opened(
        self,
        connection: &Connection,
        durability: Durability,
    ) -> Result<OpenFiles, StoreError> {
        Identity::create(connection)?;
        let identity = Identity::read(connection)?;
        let identity = identity.ok_or_else(|| StoreError::Other("the database has no tables".to_owned()))?;
        if self.stored == Stored::Blank {
            // The guard reads the identity from the database file alone.
            checkpoint(connection, "PASSIVE")?;
            sync(folder_of(&self.path))?;
        }
        let boot = (durability == Durability::Process).then(this_boot);
        let mut anchor = Anchor { boot: boot.clone(), ..identity.anchor(&self.stored) };
        self.write_anchor(&mut anchor)?;
        let guard = FileGuard::new(&self.path, &self.lock)?;
        let reserve = SpaceReserve::new(&self.path);
        reserve.ensure();
        Ok(OpenFiles {
            path: self.path,
            lock: self.lock,
            guard,
            reserve,
            anchor,
            identity,
            boot,
            next_restart: 0,
            restart_wait: WAL_RESTART_WAIT.0,
        })
    }
}

/// The files of an open database.
#[derive(Debug)]
pub(super) struct OpenFiles {
    pub path: PathBuf,
    lock: Lock,
    guard: FileGuard,
    reserve: SpaceReserve,
    anchor: Anchor,
    identity: Identity,
    /// See [`Anchor::boot`].
    boot: Option<String>,
    /// Size of the WAL at which the next attempt to restart it is made.
    next_restart: u64,
    /// How long that attempt waits for readers.
    restart_wait: Duration,
}

impl OpenFiles {
    /// Before a transaction: checks that no other program removed, replaced or overwrote the files.
    pub(super) fn before_write(&mut self) -> Result<(), StoreError> {
        self.guard.before_write(&self.identity)
    }

    /// After a commit: checks that the files still have their names, and writes the last event to the anchor. The
    /// anchor is not synced, because a crash of the process does not lose it.
    pub(super) fn committed(&mut self, connection: &Connection, last_event: i64) -> Result<(), StoreError> {
        self.guard.after_commit(&self.identity)?;
        if self.anchor.last_event != last_event {
            self.anchor.last_event = last_event;
            self.anchor.boot.clone_from(&self.boot);
            match self.anchor.write(self.lock.file()).map_err(|error| failed(self.lock.path(), &error)) {
                // An outdated anchor never causes a valid database to be rejected.
                Err(StoreError::Full(_)) => {}
                written => written?,
            }
        }
        if self.guard.wal_bytes() > WAL_RESTART_BYTES.max(self.next_restart) {
            self.restart_wal(connection)?;
        }
        Ok(())
    }

    /// Waits briefly for readers, so that the next commit writes from the start of the WAL. With overlapping readers
    /// the WAL would otherwise grow without bound.
    fn restart_wal(&mut self, connection: &Connection) -> Result<(), StoreError> {
        connection.busy_timeout(self.restart_wait)?;
        let restarted = checkpoint(connection, "RESTART");
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let (first, longest) = WAL_RESTART_WAIT;
        (self.next_restart, self.restart_wait) = if restarted? {
            (0, first)
        } else {
            (self.guard.wal_bytes() + WAL_RESTART_STEP, longest.min(self.restart_wait * 2))
        };
        Ok(())
    }

    /// Runs a task between commits.
    pub(super) fn maintain(&mut self, connection: &Connection, task: Upkeep) -> Result<Health, StoreError> {
        match task {
            Upkeep::Report => self.guard.check_files(&self.identity)?,
            Upkeep::Idle => {
                self.guard.check_files(&self.identity)?;
                self.settle(connection)?;
                self.reserve.ensure();
            }
            Upkeep::Probe => {
                self.guard.check_files(&self.identity)?;
                probe(connection)?;
            }
            Upkeep::ReleaseReserve if !self.reserve.release() => {
                return Err(StoreError::Full("no reserved space is left".to_owned()));
            }
            Upkeep::ReleaseReserve => {}
            Upkeep::ReclaimReserve => self.reserve.reclaim(),
            Upkeep::FinishRestore => identity::remove(connection, identity::PARK)?,
        }
        Ok(Health { wal_bytes: self.guard.wal_bytes() })
    }

    /// Checkpoints the WAL and syncs the anchor. Returns whether the checkpoint is complete.
    fn settle(&mut self, connection: &Connection) -> Result<bool, StoreError> {
        let is_complete = checkpoint(connection, "PASSIVE")?;
        if is_complete && self.anchor.boot.take().is_some() {
            self.anchor.write(self.lock.file()).map_err(|error| failed(self.lock.path(), &error))?;
        }
        self.lock.file().sync_data().map_err(|error| failed(self.lock.path(), &error))?;
        Ok(is_complete)
    }

    /// Completes the database file and empties the WAL. A database whose files were changed is not touched.
    pub(super) fn close(&mut self, connection: &Connection) {
        let is_sound = self.guard.check_files(&self.identity).is_ok();
        if !is_sound || self.settle(connection).is_err() {
            return keep_wal(connection);
        }
        let _ = checkpoint(connection, "TRUNCATE");
    }
}

/// Runs a checkpoint. Returns whether it copied the whole WAL.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> Result<bool, StoreError> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    let (busy, frames, copied) = connection.query_row(&sql, [], |row| {
        Ok((row.get::<_, bool>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
    })?;
    Ok(!busy && frames == copied)
}

/// Writes the bytes of a small request and removes them.
fn probe(connection: &Connection) -> Result<(), StoreError> {
    identity::set(connection, "probe", &"x".repeat(PROBE_BYTES))?;
    identity::remove(connection, "probe")
}

/// Keeps SQLite from checkpointing and deleting the WAL when the connection closes.
fn keep_wal(connection: &Connection) {
    // This setting cannot fail on an open connection.
    let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
}
