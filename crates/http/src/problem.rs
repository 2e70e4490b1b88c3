//! Problem details (RFC 9457) with a code, which is the same on every surface, and a hint.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steprail_core::presence::Presence;
use steprail_core::source::Source;
use steprail_engine::Error;

use crate::accounts::PresenceError;

/// Why a request failed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// URI of the problem type.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// Title of the problem type.
    pub title: Box<str>,
    /// HTTP status.
    pub status: u16,
    /// What happened.
    pub detail: Box<str>,
    /// Code for programs.
    pub code: Box<str>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<Box<str>>,
    /// Every problem of a definition, with its position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Value>,
    /// The factor of presence that the request needs.
    #[serde(default, skip_serializing_if = "Presence::is_none")]
    pub presence: Presence,
    /// Seconds to wait before a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
}

impl Problem {
    /// A problem with a code and a detail.
    pub fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:steprail:problem:{code}").into(),
            title: code.replace('_', " ").into(),
            status: status.as_u16(),
            detail: detail.into().into(),
            code: code.into(),
            hint: None,
            problems: Vec::new(),
            presence: Presence::None,
            retry_after: None,
        }
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_input", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into().into());
        self
    }

    /// An invalid definition, with every problem and its position.
    pub(crate) fn of_definition(error: Error, source: &Source) -> Self {
        let found: Vec<Value> = match &error {
            Error::Invalid(found) => found
                .iter()
                .filter_map(|problem| serde_json::to_value(problem.finding(source)).ok())
                .collect(),
            _ => Vec::new(),
        };
        Self { problems: found, ..error.into() }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Error::BadInput(_) => StatusCode::BAD_REQUEST,
            Error::NotFound(_) => StatusCode::NOT_FOUND,
            Error::Conflict(_) | Error::InvalidCursor(_) => StatusCode::CONFLICT,
            Error::VersionConflict(_) => StatusCode::PRECONDITION_FAILED,
            Error::Denied(_) | Error::AuthorDenied { .. } | Error::PresenceRequired(_) => {
                StatusCode::FORBIDDEN
            }
            // A rate recovers by itself; an amount has to be freed, as with quotas of Kubernetes.
            Error::QuotaExceeded(exceeded) if exceeded.retry_after_ms.is_some() => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Error::QuotaExceeded(_) => StatusCode::FORBIDDEN,
            Error::Storage(_) | Error::Stopped | Error::Failed(_) | Error::Unresponsive(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        let problem = Self::new(status, error.code(), error.to_string());
        match error {
            Error::QuotaExceeded(exceeded) => {
                let retry_after = exceeded.retry_after_secs().and_then(|seconds| u32::try_from(seconds).ok());
                Self { retry_after, ..problem }.hint(exceeded.hint())
            }
            Error::PresenceRequired(Presence::Passkey) => Self { presence: Presence::Passkey, ..problem }.hint(
                "confirm it on the page /passkeys, or send `X-Steprail-Presence: passkey …` with an assertion for a challenge of \
                 `POST /api/v1/me/presence/challenge`",
            ),
            Error::PresenceRequired(presence) => Self { presence, ..problem }.hint(format!(
                "send `X-Steprail-Presence: {} …`; `steprail presence` sets a PIN or enrolls an authenticator",
                presence.name()
            )),
            Error::VersionConflict(_) => problem.hint("read the definition again and retry"),
            Error::AuthorDenied { definition, .. } => problem
                .hint(format!("with the rights, take it over: steprail definitions adopt '{definition}'")),
            Error::Storage(_) => problem.hint("nothing was changed; see /readyz and the server's log"),
            _ => problem,
        }
    }
}

impl From<PresenceError> for Problem {
    fn from(error: PresenceError) -> Self {
        let rejected = |code: &str, detail: String| Self::new(StatusCode::FORBIDDEN, code, detail);
        match error {
            PresenceError::Malformed => Self::bad(
                "`X-Steprail-Presence` is `pin …` or `totp …` with up to 64 characters, or `passkey …` with an assertion",
            ),
            PresenceError::NotSet(Presence::Passkey) => {
                rejected("presence_not_set", "you have not registered a passkey".to_owned())
                    .hint("`steprail presence` prints the address of the page that registers one")
            }
            PresenceError::NotSet(factor) => {
                let detail = format!("you have not set the factor `{}`", factor.name());
                rejected("presence_not_set", detail)
                    .hint("`steprail presence set-pin` sets a PIN, `steprail presence enroll-totp` enrolls an authenticator")
            }
            PresenceError::Wrong(Presence::Totp) => rejected(
                "presence_rejected",
                "the one-time code is wrong, or it was used already; wait for the next one".to_owned(),
            ),
            PresenceError::WrongPasskey(reason) => {
                rejected("presence_rejected", format!("the passkey is rejected: {reason}"))
            }
            PresenceError::Wrong(_) => rejected("presence_rejected", "the PIN is wrong".to_owned()),
            PresenceError::Locked(seconds) => {
                let detail = format!("too many wrong attempts to prove presence; try again in {seconds} s");
                let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", detail);
                Self { retry_after: Some(seconds), ..problem }
            }
            PresenceError::Failed(error) => error.into(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let wait = self.retry_after.map(HeaderValue::from);
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = wait {
            headers.insert(header::RETRY_AFTER, wait);
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"steprail\""));
        }
        response
    }
}
