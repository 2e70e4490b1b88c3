//! What a tool answers: facts for programs, and the same facts in words for models.

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Resource,
};
use rmcp::service::RequestContext;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use steprail_engine::{Error, RunId, User};

use super::news::Watches;

/// A request to call a tool, and who made it.
pub(super) struct Asked {
    pub user: User,
    pub request: CallToolRequestParams,
    pub context: RequestContext<RoleServer>,
    /// What the client hears of without asking.
    pub watches: Watches,
}

impl Asked {
    /// The arguments of a tool.
    pub(super) fn arguments<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        let given = self.request.arguments.clone().unwrap_or_default();
        serde_json::from_value(Value::Object(given))
            .map_err(|error| Refusal::new("bad_input", error.to_string()).hint("see the tool's input schema"))
    }

    /// Whether the client speaks a revision of the protocol without sessions.
    pub(super) fn is_modern(&self) -> bool {
        let version = self.context.protocol_version();
        version.is_some_and(|version| version.as_str() >= rmcp::model::ProtocolVersion::V_2026_07_28.as_str())
    }

    /// Whether the client can be given a task. Never in a session: clients declare it there and cannot read it.
    pub(super) fn takes_tasks(&self) -> bool {
        self.is_modern() && self.context.client_capabilities().is_some_and(|client| client.supports_tasks())
    }

    /// The user, through the client that asks.
    pub(super) fn through_client(&self) -> User {
        let client = self.context.client_info();
        let name = client
            .map_or_else(|| "a client".to_owned(), |client| format!("{} {}", client.name, client.version));
        self.user.via(format!("mcp client {name}"))
    }

    /// Whether the client can put a question to its user.
    pub(super) fn takes_questions(&self) -> bool {
        self.context.client_capabilities().is_some_and(|client| client.elicitation.is_some())
    }
}

/// What a tool answers.
pub(super) struct Facts {
    facts: Map<String, Value>,
    message: String,
    next: Option<String>,
    run: Option<RunId>,
}

impl Facts {
    /// Facts, and what they come to.
    pub(super) fn new(facts: Value, message: impl Into<String>) -> Self {
        let facts = match facts {
            Value::Object(map) => map,
            other => Map::from_iter([("result".to_owned(), other)]),
        };
        Self { facts, message: message.into(), next: None, run: None }
    }

    /// What to do next.
    pub(super) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// With a link to a run.
    pub(super) fn about(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    pub(super) fn into_result(self) -> CallToolResult {
        let Self { mut facts, message, next, run } = self;
        facts.insert("message".to_owned(), message.clone().into());
        let mut text = message;
        if let Some(next) = next {
            text.push_str(&format!("\nNext: {next}"));
            facts.insert("next".to_owned(), next.into());
        }
        let facts = Value::Object(facts);
        text.push_str(&format!("\n{facts}"));
        let mut content = vec![ContentBlock::text(text)];
        content.extend(run.map(|run| ContentBlock::ResourceLink(link(run))));
        let mut result = CallToolResult::success(content);
        result.structured_content = Some(facts);
        result
    }
}

fn link(run: RunId) -> Resource {
    let name = format!("run {run}");
    Resource::new(format!("workflow://runs/{run}"), name).with_mime_type("application/json")
}

/// Why a tool did not do it.
#[derive(Debug)]
pub(super) enum Refusal {
    /// For whoever called to read.
    Told { code: String, message: String, hint: Option<String>, problems: Vec<Value> },
    /// By the protocol: the call itself is wrong.
    Protocol(ErrorData),
}

impl Refusal {
    pub(super) fn new(code: &str, message: impl Into<String>) -> Self {
        Self::Told { code: code.to_owned(), message: message.into(), hint: None, problems: Vec::new() }
    }

    /// What to do about it.
    pub(super) fn hint(mut self, advice: impl Into<String>) -> Self {
        if let Self::Told { hint, .. } = &mut self {
            *hint = Some(advice.into());
        }
        self
    }

    /// Every problem of a definition.
    pub(super) fn problems(mut self, all: Vec<Value>) -> Self {
        if let Self::Told { problems, .. } = &mut self {
            *problems = all;
        }
        self
    }

    pub(super) fn into_response(self) -> Result<CallToolResponse, ErrorData> {
        let (code, message, hint, problems) = match self {
            Self::Told { code, message, hint, problems } => (code, message, hint, problems),
            Self::Protocol(error) => return Err(error),
        };
        let mut text = format!("{code}: {message}");
        let mut error = json!({ "code": code, "message": message });
        if !problems.is_empty() {
            text.push_str(&format!("\n{}", Value::from(problems.clone())));
            error["problems"] = problems.into();
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

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// How a call of a tool ends: whatever the user should read is a result, also what went wrong.
pub(super) type Answer = Result<CallToolResponse, Refusal>;

impl From<Facts> for CallToolResponse {
    fn from(facts: Facts) -> Self {
        Self::Complete(facts.into_result())
    }
}

/// What the engine refused, where no result can say it.
pub(super) fn protocol_error(error: &Error) -> ErrorData {
    match error {
        Error::Storage(_) | Error::Stopped => ErrorData::internal_error(error.to_string(), None),
        _ => ErrorData::invalid_params(error.to_string(), None),
    }
}
