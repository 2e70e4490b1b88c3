//! Online backup: a consistent copy of the database while an engine writes to it.

use std::fs::File;
use std::io;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use serde::Serialize;
use tempfile::TempPath;

use super::{identity, migrate, read_only, size};
use crate::StoreError;

/// Pages that are copied between two reports of progress.
const PAGES: i32 = 1_000;
/// The number of problems of a damaged file that are reported.
const PROBLEMS: usize = 5;

/// The contents of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BackedUp {
    /// Its size in bytes.
    pub bytes: u64,
    /// Its format.
    pub format: i64,
    /// Runs in it.
    pub runs: u64,
    /// Runs in it that have not ended.
    pub unfinished: u64,
}

/// Copies a database to a file that does not exist yet. `progress` receives the bytes copied and the total.
///
/// The copy is a consistent snapshot, and the writer is not blocked. The file gets its name after it is durable and has
/// been checked.
pub fn backup(from: &Path, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<BackedUp, StoreError> {
    if to.symlink_metadata().is_ok() {
        return Err(StoreError::Exists(to.display().to_string()));
    }
    let (copy, found) = copy(from, folder_of(to), true, progress)?;
    copy.persist_noclobber(to).map_err(|refused| match refused.error.kind() {
        io::ErrorKind::AlreadyExists => StoreError::Exists(to.display().to_string()),
        _ => failed(to, &refused.error),
    })?;
    sync(folder_of(to))?;
    Ok(found)
}

/// Copies a database to a temporary file in a folder. A backup is marked, so that it is not mistaken for the database
/// if it is copied there by hand.
pub(super) fn copy(
    from: &Path,
    folder: &Path,
    is_backup: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(TempPath, BackedUp), StoreError> {
    let source = read_only(from)?;
    let format = migrate::format(&source)?;
    let copy = tempfile::Builder::new().prefix(".steprail-copy-").tempfile_in(folder);
    let copy = copy.map_err(|error| failed(folder, &error))?.into_temp_path();
    let now = source.query_row("SELECT unixepoch() * 1000", [], |row| row.get::<_, i64>(0))?;
    copy_pages(&source, &copy, progress)?;
    let found = settle(&copy, format, is_backup.then_some(now))?;
    sync(&copy)?;
    Ok((copy, found))
}

fn copy_pages(
    source: &Connection,
    copy: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), StoreError> {
    let mut target = Connection::open(copy)?;
    // A failed copy is deleted, so it needs no rollback journal.
    target.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
    // The read transaction lasts until the end. Otherwise each commit of the writer would restart the copy.
    let moment = source.unchecked_transaction()?;
    let page: u64 = moment.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    moment.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    let backup = Backup::new(&moment, &mut target)?;
    loop {
        let step = backup.step(PAGES)?;
        let (left, all) = (backup.progress().remaining, backup.progress().pagecount);
        let bytes = |pages: i32| u64::try_from(pages).unwrap_or_default() * page;
        progress(bytes(all - left), bytes(all));
        match step {
            StepResult::More => {}
            StepResult::Done => return Ok(()),
            other => return Err(StoreError::Busy(format!("{other:?} while it was copied"))),
        }
    }
}

/// Makes the copy a single file without a WAL, and checks it.
fn settle(copy: &Path, format: i64, backup_at: Option<i64>) -> Result<BackedUp, StoreError> {
    let connection = Connection::open(copy)?;
    connection.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    let mut found = checked(&connection, format)?;
    if let Some(now) = backup_at {
        identity::set(&connection, identity::BACKUP_AT, &now.to_string())?;
    }
    connection.close().map_err(|(_, error)| error)?;
    found.bytes = size(copy);
    Ok(found)
}

/// Checks the integrity of a database. Returns its contents.
pub(super) fn checked(connection: &Connection, format: i64) -> Result<BackedUp, StoreError> {
    let problems = check(connection, "integrity_check")?;
    if !problems.is_empty() {
        return Err(StoreError::Corrupt(problems.join("; ")));
    }
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get(0));
    let runs = count("SELECT count(*) FROM runs")?;
    let unfinished = count("SELECT count(*) FROM runs WHERE completed_at IS NULL")?;
    Ok(BackedUp { bytes: 0, format, runs, unfinished })
}

/// The problems that SQLite finds with `integrity_check`, or with `quick_check`, which skips indexes.
pub(super) fn check(connection: &Connection, how: &str) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare(&format!("PRAGMA {how}({PROBLEMS})"))?;
    let said = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    Ok(said.into_iter().filter(|line| line != "ok").collect())
}

/// The folder of a file.
pub(super) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs a file or a directory to disk.
pub(super) fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| failed(path, &error))
}

pub(super) fn failed(path: &Path, error: &io::Error) -> StoreError {
    let told = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full(told),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly(told)
        }
        _ => StoreError::Io(told),
    }
}
