//! What an engine answers when it does not do what it was asked, by what the caller can do about it.

use steprail_core::diagnostic::Diagnostic;
use steprail_store::StoreError;

/// Why the engine did not do it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The definition has errors.
    #[error("the definition has {} error{}: {}", .0.len(), if .0.len() == 1 { "" } else { "s" }, first(.0))]
    Invalid(Vec<Diagnostic>),
    /// What was given does not fit.
    #[error("{0}")]
    BadInput(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// It cannot be done as things stand; the message says how they stand.
    #[error("{0}")]
    Conflict(String),
    /// This user may not do that.
    #[error("{0}")]
    Denied(String),
    /// The store failed; nothing was changed.
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
    /// A word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_definition",
            Self::BadInput(_) => "bad_input",
            Self::NotFound(_) => "not_found",
            Self::Conflict(_) => "conflict",
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
