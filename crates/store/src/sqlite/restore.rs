//! Restore: replaces a database with a backup and keeps the old one. Every step is safe to interrupt.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tempfile::TempPath;

use super::anchor::{Anchor, Stored};
use super::backup::{checked, copy, failed, folder_of, sync};
use super::files::LockedFiles;
use super::identity::Identity;
use super::{BackedUp, beside, migrate, read_only, size, true_path, verify};
use crate::StoreError;

/// A checked copy of a backup beside the database, whose lock is held.
///
/// A restore starts a new incarnation of the database: the next engine interrupts every unfinished run.
#[derive(Debug)]
pub struct Restore {
    files: LockedFiles,
    source: Source,
    found: BackedUp,
}

/// The file that becomes the database.
#[derive(Debug)]
enum Source {
    /// A copy of a backup, and its anchor.
    Copy(TempPath, Anchor),
    /// The file that already has the name of the database.
    InPlace,
}

impl Restore {
    /// Checks a backup and copies it beside the database. Nothing is changed before [`Restore::put`].
    ///
    /// The file must be an intact database of a supported format, and the log of every run must be valid. The database
    /// must not be in use.
    pub fn prepare(
        from: &Path,
        database: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, StoreError> {
        let files = lock(database)?;
        let (copy, found) = copy(from, folder_of(&files.path), false, progress)?;
        require_sound(&copy, from)?;
        let connection = Connection::open(&copy)?;
        let identity = Identity::start_incarnation(&connection, &files.stored)?;
        connection.close().map_err(|(_, error)| error)?;
        sync(&copy)?;
        let anchor = identity.anchor(&files.stored);
        Ok(Self { files, source: Source::Copy(copy, anchor), found })
    }

    /// Checks the file that has the name of the database. [`Restore::put`] accepts it as a restored database.
    ///
    /// Use this for a database that its anchor does not describe: it was copied or moved by hand, or it lost commits.
    pub fn in_place(database: &Path) -> Result<Self, StoreError> {
        let files = lock(database)?;
        let connection = read_only(&files.path)?;
        let format = migrate::format(&connection)?;
        let found = BackedUp { bytes: size(&files.path), ..checked(&connection, format)? };
        drop(connection);
        require_sound(&files.path, database)?;
        Ok(Self { files, source: Source::InPlace, found })
    }

    /// The contents of the backup.
    pub fn found(&self) -> &BackedUp {
        &self.found
    }

    /// Replaces the database with the backup. The old database is renamed to `previous`. Returns whether there was one.
    ///
    /// At every moment each database has its WAL beside it, or no file has the name of the database. The anchor
    /// describes the backup before the backup gets that name.
    pub fn put(self, previous: &Path) -> Result<bool, StoreError> {
        let Self { files, source, .. } = self;
        match source {
            Source::Copy(copy, anchor) => replace(&files, copy, anchor, previous),
            Source::InPlace => accept(&files).map(|()| false),
        }
    }
}

fn replace(
    files: &LockedFiles,
    copy: TempPath,
    mut anchor: Anchor,
    previous: &Path,
) -> Result<bool, StoreError> {
    let database = &files.path;
    let moves = ["", "-wal"].map(|suffix| (beside(database, suffix), beside(previous, suffix)));
    if let Some((_, taken)) = moves.iter().find(|(_, to)| to.symlink_metadata().is_ok()) {
        return Err(StoreError::Exists(taken.display().to_string()));
    }
    let mut done = Vec::new();
    for (from, to) in &moves {
        match std::fs::rename(from, to) {
            Ok(()) => done.push((from, to)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(undone(files, &done, failed(from, &error))),
        }
    }
    // The shared-memory index is rebuilt from the WAL.
    let _ = std::fs::remove_file(beside(database, "-shm"));
    if let Err(error) = files.write_anchor(&mut anchor) {
        return Err(undone(files, &done, error));
    }
    if let Err(refused) = copy.persist(database) {
        return Err(undone(files, &done, failed(database, &refused.error)));
    }
    sync(folder_of(database))?;
    Ok(!done.is_empty())
}

/// Starts a new incarnation in the file that is in place.
fn accept(files: &LockedFiles) -> Result<(), StoreError> {
    let mut connection = Connection::open(&files.path)?;
    let transaction = connection.transaction()?;
    let identity = Identity::start_incarnation(&transaction, &files.stored)?;
    transaction.commit()?;
    connection.close().map_err(|(_, error)| error)?;
    sync(folder_of(&files.path))?;
    files.write_anchor(&mut identity.anchor(&files.stored))
}

fn lock(database: &Path) -> Result<LockedFiles, StoreError> {
    LockedFiles::lock(&true_path(database)?, database, None)
}

/// Returns an error unless every log in a file is valid. `called` is the path in the message.
fn require_sound(file: &Path, called: &Path) -> Result<(), StoreError> {
    let verified = verify(file, None, &mut |_, _| ControlFlow::Continue(()))?;
    match verified.damaged.first() {
        None => Ok(()),
        Some(damage) => Err(StoreError::Corrupt(format!("{}: {damage}", called.display()))),
    }
}

/// Reverts the renames in reverse order, and restores the anchor.
fn undone(files: &LockedFiles, moved: &[(&PathBuf, &PathBuf)], error: StoreError) -> StoreError {
    for (from, to) in moved.iter().rev() {
        let _ = std::fs::rename(to, from);
    }
    if let Stored::Anchor(before) = &files.stored {
        // The write number must exceed that of the anchor that may have been written.
        let _ = files.write_anchor(&mut Anchor { write: before.write + 1, ..before.clone() });
    }
    error
}
