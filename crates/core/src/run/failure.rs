//! Why a step or a run failed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::expr::EvalError;
use crate::limits;
pub use crate::spec::retry::FailureKind;

use super::parts::InputRequest;

/// Why a step or a run failed. Retry policies match the kind, never the message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The kind, for retry policies.
    pub kind: FailureKind,
    /// Which rule was broken, where there is a name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Box<str>>,
    /// What happened, for people.
    pub message: Box<str>,
    /// Whether the same call may succeed later: the class `transient` of retry policies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
    /// The step that failed first, where this one only failed with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Box<str>>,
    /// Milliseconds after which the server asks to be called again (`Retry-After`).
    #[serde(skip)]
    pub retry_after_ms: Option<u64>,
    /// The error as the server sent it, where the call is relayed for an MCP client: a `CallToolResult` or a JSON-RPC error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub details: Option<Box<Value>>,
    /// What the tool asks a human before it goes on: then it has not failed, unless nobody can be asked.
    #[serde(skip)]
    pub request: Option<Box<InputRequest>>,
}

impl Failure {
    /// A failure of some kind. A very long message is cut.
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

    /// With the name of the rule that was broken.
    #[must_use]
    pub fn code(mut self, code: &str) -> Self {
        self.code = Some(code.into());
        self
    }

    /// With the error as the server sent it. One that is too large for the log is left out.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        let fits = details.to_string().len() <= limits::NOTE_BYTES;
        self.details = fits.then(|| Box::new(details));
        self
    }

    /// A tool that asks a human something before it goes on.
    pub fn input_required(request: InputRequest) -> Self {
        let message = format!("the tool asks: {}", request.message);
        let request = Some(Box::new(request));
        Self { request, ..Self::new(FailureKind::ToolError, message) }
    }

    /// How a call ended, in one word: the kind, or that its tool asks something.
    pub fn word(&self) -> &'static str {
        if self.request.is_some() { "asked" } else { self.kind.word() }
    }

    /// With the time after which the server asks to be called again.
    #[must_use]
    pub fn retry_after(mut self, delay: std::time::Duration) -> Self {
        self.retry_after_ms = u64::try_from(delay.as_millis()).ok();
        self
    }

    /// Whether the call was cut off by a restart of the engine.
    pub fn is_restart(&self) -> bool {
        self.code.as_deref() == Some(super::RESTARTED)
    }

    /// Of the class `transient`: the same call may succeed later.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.transient = true;
        self
    }

    /// As the failure of something around the step that failed first.
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
        Self::new(FailureKind::Validation, error.message)
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
