//! Errors of a store, distinguished by what the caller can do.

/// Why a request to the store failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The disk is full.
    #[error("the disk is full: {0}; free some space, and the engine continues by itself")]
    Full(String),
    /// Another process keeps the database locked.
    #[error("the database is locked: {0}; end the program that holds it, and the engine continues by itself")]
    Busy(String),
    /// The database cannot be written.
    #[error("the database is read-only: {0}; check its permissions and the file system")]
    ReadOnly(String),
    /// Reading or writing failed.
    #[error("input or output failed: {0}; check the disk, then restart")]
    Io(String),
    /// The file is damaged, or its contents are inconsistent.
    #[error("the database is damaged: {0}; stop, keep a copy, and restore a backup")]
    Corrupt(String),
    /// The decision of one run panicked. The run does not continue until the next start.
    #[error(
        "run {run} is quarantined: its decision panicked: {reason}; please report this; the next start tries it again"
    )]
    Quarantined {
        /// Id of the run, or its number if the id is not known.
        run: String,
        /// The message of the panic.
        reason: String,
    },
    /// The files of an open database were removed, replaced, truncated or overwritten by another program.
    #[error(
        "the files of the open database were changed by another program: {0}; nothing more is written; \
         put the files back or restore a backup with `steprail restore`, then restart"
    )]
    Replaced(String),
    /// The file is not the database that its anchor describes.
    #[error(
        "{path} is not the database that was last used here: {reason}; restore a backup with `steprail restore FROM`, \
         or, if this file is the right one, accept it with `steprail restore --in-place`"
    )]
    Mismatch {
        /// The database.
        path: String,
        /// How it differs from its anchor.
        reason: String,
    },
    /// A query took too long.
    #[error("a query took longer than {secs} s: {0}; ask for a smaller page", secs = crate::limits::READ_TIME.as_secs())]
    Timeout(String),
    /// Another process has the database.
    #[error("the database {path} is in use by process {holder}; stop that one first, or use another file")]
    InUse {
        /// The database.
        path: String,
        /// The lock's text about the other process: its pid, and its address if it has one.
        holder: String,
    },
    /// The database was written by a newer version.
    #[error(
        "the database has format {found}, and this version of steprail knows formats up to {known}; \
         use the newer version"
    )]
    Newer {
        /// Its format.
        found: i64,
        /// The newest format that this version supports.
        known: i64,
    },
    /// The database belongs to another program.
    #[error("{0} is a database of another program; name another file")]
    Foreign(String),
    /// A file would be overwritten.
    #[error("{0} exists already; name another file")]
    Exists(String),
    /// An error that should not occur.
    #[error("the store failed: {0}; please report this")]
    Other(String),
}

impl StoreError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Full(_) => "storage_full",
            Self::Busy(_) => "storage_busy",
            Self::ReadOnly(_) => "storage_readonly",
            Self::Io(_) => "storage_io",
            Self::Corrupt(_) => "storage_corrupt",
            Self::Quarantined { .. } => "run_quarantined",
            Self::Replaced(_) => "storage_replaced",
            Self::Mismatch { .. } => "storage_mismatch",
            Self::Timeout(_) => "storage_timeout",
            Self::InUse { .. } => "storage_in_use",
            Self::Newer { .. } => "storage_newer",
            Self::Foreign(_) => "storage_foreign",
            Self::Exists(_) => "storage_exists",
            Self::Other(_) => "storage",
        }
    }

    /// Whether it is unknown what was written. Only a restart, which reads the file, can tell.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Replaced(_))
    }

    /// Whether the error is temporary, so that a retry can succeed.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Busy(_) | Self::ReadOnly(_))
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::*;
        let text = error.to_string();
        match error.sqlite_error_code() {
            Some(DiskFull) => Self::Full(text),
            Some(DatabaseBusy | DatabaseLocked) => Self::Busy(text),
            Some(ReadOnly | PermissionDenied | CannotOpen) => Self::ReadOnly(text),
            Some(SystemIoFailure) => Self::Io(text),
            Some(DatabaseCorrupt | NotADatabase) => Self::Corrupt(text),
            Some(OperationInterrupted) => Self::Timeout(text),
            _ => Self::Other(text),
        }
    }
}

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::Corrupt(error.to_string())
    }
}
