//! Why there is no token, and what to do about it.

use std::fmt;

use rmcp::transport::auth::AuthError;

use crate::secrets::SecretError;

/// Characters of a message that a remote server wrote.
const FOREIGN_CHARS: usize = 300;

/// A user has to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginNeeded {
    /// The server, as its entry names it.
    pub server: String,
    /// Scopes that the present login lacks; the next login requests them.
    pub scopes: Vec<String>,
    /// Why the present login does not do.
    pub reason: String,
}

impl fmt::Display for LoginNeeded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, scopes, reason } = self;
        write!(out, "`{server}` needs a login: {reason}")?;
        if !scopes.is_empty() {
            write!(out, " (missing scopes: {})", scopes.join(", "))?;
        }
        write!(out, "; run `steprail login {server}`")
    }
}

/// Why there is no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginError {
    /// A user has to log in. Nothing else helps.
    Needed(LoginNeeded),
    /// The settings, the server or its authorization server do not permit it. Trying again does not help.
    Refused(String),
    /// The authorization server or the secret store cannot be used now. Trying again may help.
    Unavailable(String),
}

impl fmt::Display for LoginError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Needed(needed) => needed.fmt(out),
            Self::Refused(message) | Self::Unavailable(message) => out.write_str(message),
        }
    }
}

impl std::error::Error for LoginError {}

impl From<SecretError> for LoginError {
    fn from(error: SecretError) -> Self {
        Self::Unavailable(error.0)
    }
}

impl From<AuthError> for LoginError {
    fn from(error: AuthError) -> Self {
        let message = harmless(&error.to_string());
        match error {
            AuthError::MetadataError(_)
            | AuthError::HttpError(_)
            | AuthError::InternalError(_)
            | AuthError::TokenRefreshFailed(_)
            | AuthError::CredentialStoreError(_) => Self::Unavailable(message),
            _ => Self::Refused(message),
        }
    }
}

/// A message of a remote server on one line, without control characters, cut to a bound.
pub(super) fn harmless(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut cut: String = plain.take(FOREIGN_CHARS).collect();
    if text.chars().nth(FOREIGN_CHARS).is_some() {
        cut.push('…');
    }
    cut
}
