//! The database of a command: a given file, that of a data directory, or a temporary one.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use steprail_engine::{Durability, Options, SqliteStore};
use tempfile::TempDir;

use super::error::CliError;
use super::help::DATA_HELP;
use crate::daemon::DataDir;

/// What a commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Commits survive a power failure
    Full,
    /// Commits survive `kill -9` but not a power failure
    Process,
}

/// Selects the database file of a daemon, or any other.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(crate) struct DatabaseArgs {
    #[arg(long, value_name = "DIR", help = DATA_HELP)]
    data: Option<PathBuf>,
    /// Database file to use instead of the daemon's
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,
}

impl DatabaseArgs {
    /// The path of the file, which may not exist.
    pub(crate) fn path(&self) -> Result<PathBuf, CliError> {
        match &self.db {
            Some(file) => Ok(file.clone()),
            None => DataDir::find(self.data.clone()).map(|home| home.database()).map_err(CliError::new),
        }
    }

    /// The path of the file, which exists.
    pub(crate) fn existing(&self) -> Result<PathBuf, CliError> {
        Database::existing(self.path()?).map(|database| database.path)
    }
}

/// A database file.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    /// The directory of a temporary database, deleted with it.
    temporary: Option<TempDir>,
}

impl Database {
    /// A file that is created if it does not exist.
    pub(crate) fn at(path: PathBuf) -> Result<Self, CliError> {
        require_parent(&path)?;
        Ok(Self { path, temporary: None })
    }

    /// A file that must exist.
    pub(crate) fn existing(path: PathBuf) -> Result<Self, CliError> {
        if path.is_file() {
            return Ok(Self { path, temporary: None });
        }
        let message = format!("there is no database {}", path.display());
        Err(CliError::new(message).hint("create one with `steprail run FILE --db FILE`"))
    }

    /// A file that is deleted on drop unless `keep` is called.
    pub(crate) fn temporary() -> Result<Self, CliError> {
        let folder = tempfile::Builder::new().prefix("steprail-").tempdir();
        let folder =
            folder.map_err(|error| CliError::new(format!("cannot create a temporary database: {error}")))?;
        Ok(Self { path: folder.path().join("steprail.db"), temporary: Some(folder) })
    }

    /// Opens the database for writing. The default durability is `process` for a temporary one, `full` otherwise.
    pub(crate) fn open(&self, durability: Option<DurabilityArg>) -> Result<SqliteStore, CliError> {
        let durability = match (durability, &self.temporary) {
            (Some(DurabilityArg::Process), _) | (None, Some(_)) => Durability::Process,
            (Some(DurabilityArg::Full), _) | (None, None) => Durability::Full,
        };
        Ok(SqliteStore::open(&self.path, &Options { durability, ..Options::default() })?)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps a temporary database on disk, for unfinished runs.
    pub(crate) fn keep(&mut self) {
        if let Some(folder) = self.temporary.take() {
            let _ = folder.keep();
        }
    }
}

/// Fails unless the directory of a file exists.
pub(crate) fn require_parent(file: &Path) -> Result<(), CliError> {
    match file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(CliError::new(format!("there is no directory {}", folder.display()))),
        None => Ok(()),
    }
}
