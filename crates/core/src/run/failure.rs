//! The failure of a step or a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::expr::{EvalError, EvalErrorKind};
use crate::limits;
pub use crate::spec::retry::FailureKind;

use super::parts::InputRequest;

/// Why a step or a run failed. Retry policies match the kind, never the message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The kind that retry policies match.
    pub kind: FailureKind,
    /// A stable name for the cause, such as `denied` or `server_wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Box<str>>,
    /// What happened, for humans.
    pub message: Box<str>,
    /// Whether the same call may succeed later. Retry policies match this as `transient`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
    /// Path of the step that failed first, if this failure was caused by another step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Box<str>>,
    /// The delay that the server requests before the next call (`Retry-After`), in milliseconds.
    #[serde(skip)]
    pub retry_after_ms: Option<u64>,
    /// The error as the server sent it, for calls that are relayed for an MCP client: a `CallToolResult` or a JSON-RPC error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub details: Option<Box<Value>>,
    /// The input request that ended the call. The call has not failed, unless the request cannot be answered.
    #[serde(skip)]
    pub request: Option<Box<InputRequest>>,
}

impl Failure {
    /// Creates a failure. Messages above the limit are truncated.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let message = limits::cut(message.into(), limits::FAILURE_BYTES);
        Self {
            kind,
            code: None,
            message: message.into(),
            transient: false,
            step: None,
            retry_after_ms: None,
            details: None,
            request: None,
        }
    }

    /// Sets the code.
    #[must_use]
    pub fn code(mut self, code: &str) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Sets the error as the server sent it. Errors that are too large for the log are omitted.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        let fits = details.to_string().len() <= limits::EVENT_VALUE_BYTES;
        self.details = fits.then(|| Box::new(details));
        self
    }

    /// Wraps an input request that ends a call.
    pub fn input_required(request: InputRequest) -> Self {
        let message = format!("the tool requests input: {}", request.message);
        let request = Some(Box::new(request));
        Self { request, ..Self::new(FailureKind::ToolError, message) }
    }

    /// The label of the failure in metrics: the kind, or `input_request`.
    pub fn label(&self) -> &'static str {
        if self.request.is_some() { "input_request" } else { self.kind.name() }
    }

    /// Sets the delay that the server requests before the next call.
    #[must_use]
    pub fn retry_after(mut self, delay: std::time::Duration) -> Self {
        self.retry_after_ms = u64::try_from(delay.as_millis()).ok();
        self
    }

    /// Whether a restart of the engine interrupted the call.
    pub fn is_restart(&self) -> bool {
        self.code.as_deref() == Some(super::RESTARTED)
    }

    /// Marks the failure as transient: the same call may succeed later.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.transient = true;
        self
    }

    /// Sets the step that failed first, unless it is set.
    pub(super) fn caused_by(mut self, path: &str) -> Self {
        self.step.get_or_insert_with(|| path.into());
        self
    }

    pub(super) fn timeout(message: &str) -> Self {
        Self::new(FailureKind::Timeout, message)
    }

    pub(super) fn limit(message: String) -> Self {
        Self::new(FailureKind::Limit, message)
    }
}

impl From<EvalError> for Failure {
    fn from(error: EvalError) -> Self {
        let kind = match error.kind {
            EvalErrorKind::Limit => FailureKind::Limit,
            EvalErrorKind::Missing | EvalErrorKind::Type | EvalErrorKind::Arithmetic => {
                FailureKind::Validation
            }
        };
        Self::new(kind, error.message)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.step {
            Some(step) => write!(out, "{step}: {}", self.message),
            None => out.write_str(&self.message),
        }
    }
}
