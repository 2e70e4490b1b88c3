//! What a tool answers: facts for programs, and the same facts in words for models.

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Resource,
};
use rmcp::service::RequestContext;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use steprail_engine::{Error, RunId, User};

use super::problems;
use super::watches::Watches;

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
        serde_json::from_value(Value::Object(given)).map_err(|error| {
            let takes = super::tools::find(&self.request.name).map(super::tools::Entry::signature);
            let hint = format!("{} takes ({})", self.request.name, takes.unwrap_or_default());
            Refusal::new("bad_input", error.to_string()).hint(hint)
        })
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

    /// Whether the client can put a form to its user.
    pub(super) fn takes_forms(&self) -> bool {
        self.context.client_capabilities().is_some_and(|client| client.elicitation.is_some())
    }

    /// Whether the client can answer questions: its user, its model, or by itself.
    pub(super) fn takes_questions(&self) -> bool {
        self.context.client_capabilities().is_some_and(|client| {
            client.elicitation.is_some() || client.sampling.is_some() || client.roots.is_some()
        })
    }
}

/// What a tool answers.
pub(super) struct Facts {
    facts: Map<String, Value>,
    message: String,
    /// Facts that the message words in full, so that the text does not repeat them as JSON.
    worded: &'static [&'static str],
    next: Option<String>,
    run: Option<RunId>,
    blocks: Vec<ContentBlock>,
}

impl Facts {
    /// Facts, and what they come to.
    pub(super) fn new(facts: Value, message: impl Into<String>) -> Self {
        let facts = match facts {
            Value::Object(map) => map,
            other => Map::from_iter([("result".to_owned(), other)]),
        };
        Self { facts, message: message.into(), worded: &[], next: None, run: None, blocks: Vec::new() }
    }

    /// What to do next.
    pub(super) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Facts that the message words in full.
    pub(super) fn worded(mut self, keys: &'static [&'static str]) -> Self {
        self.worded = keys;
        self
    }

    /// With a link to a run.
    pub(super) fn about(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    /// With images, audio and files.
    pub(super) fn with_blocks(mut self, blocks: Vec<ContentBlock>) -> Self {
        self.blocks = blocks;
        self
    }

    pub(super) fn into_result(self) -> CallToolResult {
        let Self { mut facts, message, worded, next, run, blocks } = self;
        let mut text = message.clone();
        if let Some(next) = &next {
            text.push_str(&format!("\nNext: {next}"));
        }
        let rest: Map<String, Value> =
            facts.iter().filter(|(key, _)| !worded.contains(&key.as_str())).map(owned).collect();
        if !rest.is_empty() {
            text.push_str(&format!("\n{}", Value::Object(rest)));
        }
        facts.insert("message".to_owned(), message.into());
        facts.extend(next.map(|next| ("next".to_owned(), next.into())));
        let mut content = vec![ContentBlock::text(text)];
        content.extend(blocks);
        content.extend(run.map(|run| ContentBlock::ResourceLink(link(run))));
        let mut result = CallToolResult::success(content);
        result.structured_content = Some(Value::Object(facts));
        result
    }
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

/// Adds a fact to an answer, and the same in words at the end of its text.
pub(super) fn add_fact(result: &mut CallToolResult, key: &str, fact: Value, words: &str) {
    if let Some(Value::Object(facts)) = &mut result.structured_content {
        facts.insert(key.to_owned(), fact);
    }
    match result.content.first_mut() {
        Some(ContentBlock::Text(text)) => text.text.push_str(&format!("\n{words}")),
        _ => result.content.push(ContentBlock::text(words)),
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
            text.push_str(&format!("\n{}", problems::lines(&problems)));
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
        let hint = match &error {
            Error::Invalid(_) => {
                "correct every problem and call again; workflow_guide describes the language"
            }
            Error::BadInput(_) => "correct the arguments and call again",
            Error::NotFound(_) => "workflow_list_runs lists runs, workflow_lookup finds workflows",
            Error::Conflict(_) => "workflow_status {\"run_id\": …} shows how the run stands now",
            Error::Denied(_) => {
                "tell the user: somebody with the right has to do it, or an administrator grants it"
            }
            Error::Storage(_) | Error::Stopped => {
                "call again in a moment; if it fails again, ask the user to run: steprail doctor"
            }
        };
        Self::new(error.code(), error.to_string()).hint(hint)
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
