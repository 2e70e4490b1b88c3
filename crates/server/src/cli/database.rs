//! The database of a command: a given file, or a temporary one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use steprail_core::spec::value::Period;
use steprail_engine::{Durability, Options, SqliteStore};
use tempfile::TempDir;

use super::stop::Stop;
use crate::daemon::DataDir;

/// What a commit has reached when the run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Reach {
    /// The disk: it survives a power cut
    Full,
    /// The operating system: it survives `kill -9`, not a power cut
    Process,
}

/// Which database: that of a daemon, or a file.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(super) struct DatabaseAt {
    /// The data directory of the daemon
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// A database that belongs to no daemon
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,
}

impl DatabaseAt {
    /// Where it is, or would be.
    pub(super) fn path(&self) -> Result<PathBuf, Stop> {
        match &self.db {
            Some(file) => Ok(file.clone()),
            None => DataDir::find(self.data.clone()).map(|home| home.database()).map_err(Stop::usage),
        }
    }

    /// Where it is.
    pub(super) fn existing(&self) -> Result<PathBuf, Stop> {
        Database::existing(self.path()?).map(|found| found.path)
    }
}

/// A database file.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    temporary: Option<TempDir>,
}

impl Database {
    /// A file that is there or is created.
    pub(super) fn at(path: PathBuf) -> Result<Self, Stop> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Err(Stop::usage(format!("there is no folder {} for a database", folder.display())));
        }
        Ok(Self { path, temporary: None })
    }

    /// A file that must be there.
    pub(super) fn existing(path: PathBuf) -> Result<Self, Stop> {
        if path.is_file() {
            return Ok(Self { path, temporary: None });
        }
        let message = format!("there is no database {}", path.display());
        Err(Stop::usage(message).hint("`steprail run FILE --db FILE` creates one"))
    }

    /// A file that is deleted at the end, unless it is kept.
    pub(super) fn temporary() -> Result<Self, Stop> {
        let folder = tempfile::Builder::new().prefix("steprail-").tempdir();
        let folder =
            folder.map_err(|error| Stop::usage(format!("cannot create a temporary database: {error}")))?;
        Ok(Self { path: folder.path().join("steprail.db"), temporary: Some(folder) })
    }

    /// Opens it for writing. A temporary one need not survive a power cut.
    pub(super) fn open(&self, reach: Option<Reach>) -> Result<SqliteStore, Stop> {
        let durability = match (reach, &self.temporary) {
            (Some(Reach::Process), _) | (None, Some(_)) => Durability::Process,
            (Some(Reach::Full), _) | (None, None) => Durability::Full,
        };
        Ok(SqliteStore::open(&self.path, &Options { durability, ..Options::default() })?)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Somebody has to come back to it: it is not deleted.
    pub(super) fn keep(&mut self) {
        if let Some(folder) = self.temporary.take() {
            let _ = folder.keep();
        }
    }
}

/// Reads `30d` and the like from the command line.
pub(super) fn period(text: &str) -> Result<Duration, String> {
    Period::parse(text).map(|period| Duration::from_millis(period.millis))
}
