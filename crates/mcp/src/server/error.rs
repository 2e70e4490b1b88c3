//! Errors of tool calls: results that models read, or errors of the protocol.

use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, ErrorData};
use serde_json::{Value, json};
use steprail_engine::Error;

use super::findings;

/// Why a tool call failed.
#[derive(Debug)]
pub(super) enum ToolError {
    /// A result with `isError`, which the model can act on.
    Result { code: String, message: String, hint: Option<String>, findings: Vec<Value> },
    /// A JSON-RPC error: the request itself is invalid.
    Protocol(ErrorData),
}

/// The response to a tool call. Failures that a user should read are responses as well.
pub(super) type ToolResult = Result<CallToolResponse, ToolError>;

impl ToolError {
    pub(super) fn new(code: &str, message: impl Into<String>) -> Self {
        Self::Result { code: code.to_owned(), message: message.into(), hint: None, findings: Vec::new() }
    }

    /// The JSON-RPC error for a `requestState` that is unknown or belongs to another user or tool.
    pub(super) fn invalid_request_state() -> Self {
        Self::Protocol(ErrorData::invalid_params("invalid requestState", None))
    }

    /// Adds what to do about it.
    pub(super) fn hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Result { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// Adds every problem of a definition.
    pub(super) fn findings(mut self, all: Vec<Value>) -> Self {
        if let Self::Result { findings, .. } = &mut self {
            *findings = all;
        }
        self
    }

    pub(super) fn into_response(self) -> Result<CallToolResponse, ErrorData> {
        let (code, message, hint, findings) = match self {
            Self::Result { code, message, hint, findings } => (code, message, hint, findings),
            Self::Protocol(error) => return Err(error),
        };
        let mut text = format!("{code}: {message}");
        let mut error = json!({ "code": code, "message": message });
        if !findings.is_empty() {
            text.push_str(&format!("\n{}", findings::lines(&findings)));
            error["problems"] = findings.into();
        }
        if let Some(hint) = hint {
            text.push_str(&format!("\nHint: {hint}"));
            error["hint"] = hint.into();
        }
        let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
        result.structured_content = Some(json!({ "error": error }));
        Ok(result.into())
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        let hint = match &error {
            Error::Invalid(_) => {
                "correct every problem and call again; workflow_guide describes the language"
            }
            Error::BadInput(_) => "correct the arguments and call again",
            Error::NotFound(_) => "workflow_list_runs lists runs, workflow_lookup finds workflows",
            Error::Conflict(_) => "workflow_status {\"run_id\": …} shows the current state of the run",
            Error::VersionConflict(_) => "read the definition again and repeat the change",
            Error::InvalidCursor(_) => "call again without a cursor",
            Error::Denied(_) | Error::AuthorDenied { .. } => {
                "tell the user: a person with the right has to do it, or an administrator has to grant the right"
            }
            Error::QuotaExceeded(exceeded) => {
                return Self::new(error.code(), error.to_string()).hint(exceeded.hint());
            }
            Error::Storage(_) | Error::Stopped | Error::Failed(_) | Error::Unresponsive(_) => {
                "call again in a moment; if it fails again, ask the user to run: steprail doctor"
            }
        };
        Self::new(error.code(), error.to_string()).hint(hint)
    }
}

/// An error of the engine as a JSON-RPC error, for requests without a tool result.
pub(super) fn protocol_error(error: &Error) -> ErrorData {
    match error {
        Error::Storage(_) | Error::Stopped | Error::Failed(_) | Error::Unresponsive(_) => {
            ErrorData::internal_error(error.to_string(), None)
        }
        Error::QuotaExceeded(exceeded) => {
            let data = json!({ "code": error.code(), "hint": exceeded.hint() });
            ErrorData::invalid_request(error.to_string(), Some(data))
        }
        _ => ErrorData::invalid_params(error.to_string(), None),
    }
}
