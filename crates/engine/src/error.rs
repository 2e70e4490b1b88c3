//! Errors of the engine, grouped by what the caller can do about them.

use std::sync::Arc;
use std::time::Duration;

use steprail_core::diagnostic::Diagnostic;
use steprail_core::presence::Presence;
use steprail_store::limits::{PROPOSALS, PROPOSALS_PER_USER};
use steprail_store::{Conflict, Cursor, StoreError};

use crate::quotas::QuotaExceeded;

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
    /// The newest version of a definition is not the one that a change is based on.
    #[error("{0}")]
    VersionConflict(String),
    /// The cursor is beyond the end of the log.
    #[error(
        "cursor {0} is beyond the end of the log: it belongs to another database, or to this one before a restore; \
         read again without a cursor"
    )]
    InvalidCursor(Cursor),
    /// The user lacks the permission.
    #[error("{0}")]
    Denied(String),
    /// The request needs proof that a person is present, with this factor.
    #[error("this needs proof that you are present: {}", described(*.0))]
    PresenceRequired(Presence),
    /// The author of a definition may not call its tools any more.
    #[error(
        "the definition `{definition}` calls `{tool}`, and its author {author} may not call that tool; a person who may call \
         it can adopt the definition"
    )]
    AuthorDenied {
        /// Name of the definition.
        definition: String,
        /// The author.
        author: String,
        /// The tool.
        tool: String,
    },
    /// The store failed. The request changed nothing.
    #[error("{0}")]
    Storage(StoreError),
    /// A quota of the user is exhausted.
    #[error("{0}")]
    QuotaExceeded(QuotaExceeded),
    /// The engine was shut down.
    #[error("the engine was shut down")]
    Stopped,
    /// The engine thread panicked.
    #[error("the engine thread panicked: {0}; restart the process, and recovery continues the runs")]
    Failed(Arc<str>),
    /// The engine thread did not respond to a probe.
    #[error("the engine thread did not respond within {} ms", .0.as_millis())]
    Unresponsive(Duration),
}

/// A factor in words.
fn described(factor: Presence) -> &'static str {
    match factor {
        Presence::None => "none",
        Presence::Pin => "your PIN",
        Presence::Totp => "a one-time code of your authenticator",
        Presence::Passkey => "your passkey",
    }
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
            Self::VersionConflict(_) => "changed",
            Self::InvalidCursor(_) => "invalid_cursor",
            Self::Denied(_) => "denied",
            Self::PresenceRequired(_) => "presence_required",
            Self::AuthorDenied { .. } => "author_denied",
            Self::Storage(error) => error.code(),
            Self::QuotaExceeded(_) => "quota_exceeded",
            Self::Stopped => "stopped",
            Self::Failed(_) => "engine_failed",
            Self::Unresponsive(_) => "engine_unresponsive",
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Storage(error)
    }
}

impl From<Conflict> for Error {
    fn from(conflict: Conflict) -> Self {
        match conflict {
            Conflict::NoDefinition(name) => Self::NotFound(format!("there is no definition `{name}`")),
            Conflict::NoSchedule(name) => Self::NotFound(format!("there is no schedule `{name}`")),
            Conflict::OfPerson { name } => Self::Denied(format!(
                "a person stored the definition `{name}`, and an agent cannot change it; use another name, or ask \
                 the person to change it"
            )),
            Conflict::Owned { name, by } => Self::Denied(format!(
                "the definition `{name}` belongs to {by}; use another name, or ask for the right `administer`"
            )),
            Conflict::Version { name, newest: Some(newest) } => Self::VersionConflict(format!(
                "the newest version of `{name}` is {newest}, not the expected one"
            )),
            Conflict::Version { name, newest: None } => Self::VersionConflict(format!(
                "the definition `{name}` has no version; it was deleted or never stored"
            )),
            Conflict::Proposal { name, changed: true } => Self::Conflict(format!(
                "the proposal for `{name}` has changed since you saw it; look at it again"
            )),
            Conflict::Proposal { name, changed: false } => {
                Self::NotFound(format!("there is no proposal for `{name}`"))
            }
            Conflict::ProposalLimit => Self::Conflict(format!(
                "too many proposals wait for a person (at most {PROPOSALS_PER_USER} of a user, and {PROPOSALS} in total); accept or \
                 reject some of them first"
            )),
            Conflict::RequestKey(key) => {
                Self::Conflict(format!("the request key `{key}` belongs to another run"))
            }
        }
    }
}
