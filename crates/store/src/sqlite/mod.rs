//! SQLite: one file, one writer, any number of readers.

mod admin;
mod anchor;
mod backup;
mod bindings;
mod commit;
mod definitions;
mod file_guard;
mod files;
mod heads;
mod identity;
mod inspect;
mod key_results;
mod lock;
mod migrate;
mod outbox;
mod policy;
mod project;
mod proposals;
mod purge;
#[cfg(test)]
mod query_plans;
mod readers;
mod restore;
mod rows;
mod run_keys;
mod run_rows;
mod schedules;
mod space_reserve;
mod statements;
mod steps;
mod store;
mod verify;
mod verify_admin;
mod verify_budgets;
mod verify_run;

pub use backup::{BackedUp, backup};
pub use heads::{HeadState, compare_heads, export, head};
pub use inspect::{Inspected, inspect};
pub use readers::Readers;
pub use restore::Restore;
pub use verify::{Damage, Verified, verify};

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use steprail_core::plan::Hash;

use crate::log_row::LogRow;
use crate::{Opened, RowKind, Storage, StoreError};
use admin::LogEnd;
use files::{LockedFiles, OpenFiles};
use run_keys::RunKeys;

/// SQLite before this version can lose commits when two connections write and checkpoint.
const OLDEST_VERSION: i32 = 3_051_003;
/// How long a statement waits for a lock that another process holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Pages of the WAL after which SQLite checkpoints it.
const CHECKPOINT_PAGES: u32 = 4_000;
/// Bytes to which the WAL is truncated after a checkpoint.
const WAL_BYTES: u32 = 64 * 1024 * 1024;
/// Page cache of the writer, in kilobytes. It holds the pages that every step needs; the operating system caches the
/// rest.
const WRITER_KILOBYTES: u32 = 8 * 1024;
/// Page cache of each reader, in kilobytes.
const READER_KILOBYTES: u32 = 1024;
/// Prepared statements kept by a connection.
const STATEMENTS: usize = 64;

/// Which failures a commit survives once it has returned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power failure: the commit is synced to disk.
    #[default]
    Full,
    /// `kill -9`, but not a power failure: the commit is in the page cache of the operating system.
    Process,
}

/// How to open a database for writing.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which failures a commit survives.
    pub durability: Durability,
    /// Where this process can be reached. Another process that finds the database in use reports it.
    pub address: Option<String>,
}

/// A database that is open for writing. There is one per file, in one process.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    /// The files; `None` for a database in memory.
    files: Option<OpenFiles>,
    /// The hash of the last row of the log.
    chain: Hash,
    /// The integer keys of runs, by their ids.
    keys: RunKeys,
    /// The log row that is being written.
    row: LogRow,
    /// The last row of the log.
    last_row: i64,
    /// The last administrative action.
    admin_seq: u64,
    /// Rows that were compared with the log, by their content.
    checked: HashMap<(RowKind, String), Hash>,
}

impl SqliteStore {
    /// Opens or creates a database file, migrates its format and locks out other writers.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, StoreError> {
        let called = path.as_ref();
        let files = LockedFiles::lock(&true_path(called)?, called, options.address.as_deref())?;
        files.refuse_empty()?;
        let connection = Connection::open(&files.path)?;
        files.restrict_access();
        Self::set_up(connection, Some(files), options.durability)
    }

    /// A database in memory, for tests and trials. Its contents are lost when it is dropped.
    pub fn in_memory() -> Result<Self, StoreError> {
        Self::set_up(Connection::open_in_memory()?, None, Durability::Process)
    }

    fn set_up(
        mut connection: Connection,
        files: Option<LockedFiles>,
        durability: Durability,
    ) -> Result<Self, StoreError> {
        if rusqlite::version_number() < OLDEST_VERSION {
            let message =
                format!("SQLite {} can lose commits; 3.51.3 or newer is needed", rusqlite::version());
            return Err(StoreError::Other(message));
        }
        connection.busy_timeout(BUSY_TIMEOUT)?;
        migrate::refuse_others(&connection)?;
        files.as_ref().map_or(Ok(()), |files| files.admit(&connection))?;
        keep_statements(&connection)?;
        let synchronous = match durability {
            Durability::Full => "FULL",
            Durability::Process => "NORMAL",
        };
        connection.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; PRAGMA temp_store = MEMORY;
             PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}; PRAGMA journal_size_limit = {WAL_BYTES};
             PRAGMA cache_size = -{WRITER_KILOBYTES}; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;"
        ))?;
        migrate::migrate(&mut connection)?;
        let LogEnd { chain, admin_seq, last_row } = LogEnd::read(&connection)?;
        let files = files.map(|files| files.opened(&connection, durability)).transpose()?;
        Ok(Self {
            connection,
            files,
            chain,
            keys: RunKeys::default(),
            row: LogRow::default(),
            last_row,
            admin_seq,
            checked: HashMap::new(),
        })
    }

    /// Readers of the same database; `None` for a database in memory.
    pub fn readers(&self) -> Option<Readers> {
        self.files.as_ref().map(|files| Readers::new(files.path.clone()))
    }

    /// The store and its readers, for an engine.
    pub fn into_storage(self) -> Result<Storage, StoreError> {
        let Some(readers) = self.readers() else {
            return Err(StoreError::Other(
                "a database in memory cannot be read while it is open for writing".to_owned(),
            ));
        };
        let opened = Opened {
            last_time: identity::last_time(&self.connection)?,
            restored: identity::pending_restore(&self.connection)?,
        };
        Ok(Storage { writer: Box::new(self), readers: Arc::new(readers), opened })
    }

    /// The connection, for tests that inspect or damage the rows.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// Opens a read-only connection. Its reads do not block the writer.
fn read_only(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "cache_size", -i64::from(READER_KILOBYTES))?;
    keep_statements(&connection)?;
    Ok(connection)
}

/// Caches prepared statements. Each keeps its query plan whatever values are bound to it: planning at each use costs
/// more than it saves.
fn keep_statements(connection: &Connection) -> Result<(), StoreError> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// The path of an auxiliary file of a file, such as its write-ahead log.
fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The size of a file in bytes; 0 if it does not exist.
fn size(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |known| known.len())
}

/// The canonical path of a database, which need not exist. All names of a database must lead to the same lock.
///
/// The file is not opened here, because closing it would release the locks that SQLite holds on it in this process.
fn true_path(database: &Path) -> Result<PathBuf, StoreError> {
    let found = database.canonicalize().or_else(|_| {
        // A link may lead to a file that does not exist yet.
        let link = database.read_link().map(|to| backup::folder_of(database).join(to));
        let path = link.unwrap_or_else(|_| database.to_owned());
        let name = path.file_name().ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(backup::folder_of(&path).canonicalize()?.join(name))
    });
    found.map_err(|error| backup::failed(database, &error))
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        if let Some(files) = &mut self.files {
            files.close(&self.connection);
        }
    }
}
