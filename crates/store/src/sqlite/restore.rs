//! Restore: replaces a database with a backup and keeps the old one. Every step can be interrupted.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::backup::{copy, failed, folder_of, sync};
use super::lock::Lock;
use super::{BackedUp, beside, verify};
use crate::StoreError;

/// A backup that was checked and lies ready beside the database, which nobody else can use meanwhile.
#[derive(Debug)]
pub struct Restore {
    database: PathBuf,
    copy: TempPath,
    found: BackedUp,
    _lock: Lock,
}

impl Restore {
    /// Checks a backup and copies it to where it is needed. Nothing is changed before [`Restore::put`].
    ///
    /// The file must be one of ours, of a format that is known, and in order; so must the log of every run in it. The
    /// database must not be in use.
    pub fn prepare(
        from: &Path,
        database: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, StoreError> {
        let place = place(database)?;
        let lock = Lock::take(&place, database, None)?;
        let (copy, found) = copy(from, folder_of(&place), progress)?;
        let verified = verify(&copy, None, &mut |_, _| ControlFlow::Continue(()))?;
        match verified.damaged.first() {
            None => Ok(Self { database: place, copy, found, _lock: lock }),
            Some(damage) => Err(StoreError::Corrupt(format!("{}: {damage}", from.display()))),
        }
    }

    /// What is in the backup.
    pub fn found(&self) -> &BackedUp {
        &self.found
    }

    /// Puts the backup in the database's place. What is there now gets another name; says whether there was something.
    ///
    /// At every moment each database has its write-ahead log beside it, or no database has its name at all.
    pub fn put(self, previous: &Path) -> Result<bool, StoreError> {
        let moves = ["", "-wal"].map(|suffix| (beside(&self.database, suffix), beside(previous, suffix)));
        if let Some((_, taken)) = moves.iter().find(|(_, to)| to.symlink_metadata().is_ok()) {
            return Err(StoreError::Exists(taken.display().to_string()));
        }
        let mut done = Vec::new();
        for (from, to) in &moves {
            match std::fs::rename(from, to) {
                Ok(()) => done.push((from, to)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(undone(&done, failed(from, &error))),
            }
        }
        // It only says what is in the log, and is made anew from it.
        let _ = std::fs::remove_file(beside(&self.database, "-shm"));
        if let Err(refused) = self.copy.persist(&self.database) {
            return Err(undone(&done, failed(&self.database, &refused.error)));
        }
        sync(folder_of(&self.database))?;
        Ok(!done.is_empty())
    }
}

/// Takes back what was moved, the last first.
fn undone(moved: &[(&PathBuf, &PathBuf)], error: StoreError) -> StoreError {
    for (from, to) in moved.iter().rev() {
        let _ = std::fs::rename(to, from);
    }
    error
}

/// The one name of a database that need not be there.
fn place(database: &Path) -> Result<PathBuf, StoreError> {
    let there = database.canonicalize().or_else(|_| {
        let folder = folder_of(database).canonicalize()?;
        let name = database.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(folder.join(name))
    });
    there.map_err(|error| failed(database, &error))
}
