//! Errors of logins and token requests.

use std::fmt;

use rmcp::transport::auth::AuthError;

use crate::secrets::SecretError;

/// The maximum length of a message of a remote server, in characters.
const MESSAGE_CHARS: usize = 300;

/// A user has to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginNeeded {
    /// Name of the server, as in the config.
    pub server: String,
    /// Scopes that the current login lacks. The next login requests them.
    pub scopes: Vec<String>,
    /// Why a login is needed.
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
    /// A user has to log in.
    Needed(LoginNeeded),
    /// The settings, the server or its authorization server do not allow it. A retry does not help.
    Refused(String),
    /// The authorization server or the secret store is unavailable. A retry may help.
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
        let message = sanitized(&error.to_string());
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

/// A message of a remote server, without control characters and cut to [`MESSAGE_CHARS`].
pub(super) fn sanitized(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut cut: String = plain.take(MESSAGE_CHARS).collect();
    if text.chars().nth(MESSAGE_CHARS).is_some() {
        cut.push('…');
    }
    cut
}
