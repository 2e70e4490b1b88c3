//! Errors of the engine, grouped by what the caller can do about them.

use steprail_core::diagnostic::Diagnostic;
use steprail_store::{Cursor, StoreError};

/// An error of the engine.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The definition has errors.
    #[error("the definition has {} error{}: {}", .0.len(), if .0.len() == 1 { "" } else { "s" }, first(.0))]
    Invalid(Vec<Diagnostic>),
    /// The request is invalid.
    #[error("{0}")]
    BadInput(String),
    /// The object of the request does not exist, or the user may not see it.
    #[error("{0}")]
    NotFound(String),
    /// The current state does not allow the request. The message names the state.
    #[error("{0}")]
    Conflict(String),
    /// The cursor is beyond the end of the log.
    #[error(
        "cursor {0} is beyond the end of the log: it belongs to another database, or to this one before a restore; \
         read again without a cursor"
    )]
    InvalidCursor(Cursor),
    /// The user lacks the permission.
    #[error("{0}")]
    Denied(String),
    /// The store failed. The request changed nothing.
    #[error("{0}")]
    Storage(StoreError),
    /// The engine was shut down.
    #[error("the engine was shut down")]
    Stopped,
}

fn first(diagnostics: &[Diagnostic]) -> &str {
    diagnostics.first().map_or("", |diagnostic| &diagnostic.message)
}

impl Error {
    /// The stable code of the error, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_definition",
            Self::BadInput(_) => "bad_input",
            Self::NotFound(_) => "not_found",
            Self::Conflict(_) => "conflict",
            Self::InvalidCursor(_) => "invalid_cursor",
            Self::Denied(_) => "denied",
            Self::Storage(error) => error.code(),
            Self::Stopped => "stopped",
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Storage(error)
    }
}
