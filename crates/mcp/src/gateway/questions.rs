//! What a tool asks a human in the middle of a call, and the answer as the tool takes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests, InputResponses,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use steprail_engine::{Failure, FailureKind, Question};
use tokio::sync::oneshot;

use super::call::Sent;
use super::connection::Connection;
use crate::limits::HELD_CALLS;

/// The key of a form that holds the address to send a human to.
pub(crate) const URL: &str = "x-url";

/// The key of a form that holds the name that the tool has for its question.
pub(crate) const KEY: &str = "x-key";

/// How a call goes on once its tool has the answer: what is recorded with the question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Pending {
    /// The request waits on its connection, in memory.
    Held { server: String, id: String },
    /// A task of the server takes the answers.
    Task { server: String, id: String, keys: Vec<String> },
    /// The call is made again with the answers.
    Retry {
        server: String,
        keys: Vec<String>,
        #[serde(default, rename = "requestState", skip_serializing_if = "Option::is_none")]
        request_state: Option<String>,
    },
}

impl Pending {
    /// Reads what was recorded; none if it is not known here.
    pub(super) fn read(state: &Value) -> Option<Self> {
        Self::deserialize(state).ok()
    }

    fn write(&self) -> Value {
        json!(self)
    }
}

/// Calls whose tools wait for an answer on an open connection, which is theirs alone while they do.
#[derive(Default)]
pub(super) struct Held(Mutex<HashMap<String, HeldCall>>);

/// A call whose tool waits for an answer.
pub(super) struct HeldCall {
    pub sent: Sent,
    pub connection: Arc<Connection>,
    pub reply: oneshot::Sender<ElicitResult>,
}

impl Held {
    /// Keeps a call until its tool is answered. Gives the end of the call for now: a question.
    pub(super) fn keep(&self, question: &ElicitRequestParams, server: &str, call: HeldCall) -> Failure {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= HELD_CALLS {
            let message = format!("more than {HELD_CALLS} tools wait for answers; this one gets none");
            return Failure::new(FailureKind::Lost, message);
        }
        let id = uuid::Uuid::now_v7().to_string();
        calls.insert(id.clone(), call);
        let (message, form) = form(question);
        let state = Pending::Held { server: server.to_owned(), id }.write();
        Failure::asks(Question { message: message.into(), form, state })
    }

    /// Every call that is kept: its tool gets no answer.
    pub(super) fn drain(&self) -> Vec<HeldCall> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain().map(|(_, call)| call).collect()
    }

    pub(super) fn take(&self, id: &str) -> Option<HeldCall> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }
}

/// A question with the JSON Schema of its answer.
fn form(question: &ElicitRequestParams) -> (String, Value) {
    match question {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            (message.clone(), json!(requested_schema))
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            (format!("{message} ({url})"), json!({ "type": "object", "properties": {}, URL: url }))
        }
        _ => ("the tool asks something that cannot be shown".to_owned(), json!({ "type": "object" })),
    }
}

/// What a server needs to know before it goes on. Several questions are one form with a part for each.
pub(super) fn asks(
    server: &str,
    requests: InputRequests,
    pending: impl FnOnce(String, Vec<String>) -> Pending,
) -> Failure {
    let mut questions = Vec::new();
    for (key, request) in requests {
        let InputRequest::Elicitation(request) = request else {
            let message = format!("{server} asks for something that only a chat has (`{key}`)");
            return Failure::new(FailureKind::Lost, message);
        };
        questions.push((key, form(&request.params)));
    }
    let keys = questions.iter().map(|(key, _)| key.clone()).collect();
    let state = pending(server.to_owned(), keys).write();
    let message: Vec<&str> = questions.iter().map(|(_, (message, _))| message.as_str()).collect();
    let message = message.join("; ");
    let form = match questions.as_slice() {
        [(key, (_, form))] => {
            let mut form = form.clone();
            form[KEY] = key.as_str().into();
            form
        }
        several => {
            let parts: Map<String, Value> =
                several.iter().map(|(key, (_, form))| (key.clone(), form.clone())).collect();
            json!({ "type": "object", "properties": parts })
        }
    };
    Failure::asks(Question { message: message.into(), form, state })
}

/// The answers to questions, by their keys.
pub(super) fn responses(keys: &[String], answer: Option<&Value>) -> InputResponses {
    let part = |key: &str| match keys {
        [_] => answer.cloned(),
        _ => answer.map(|answer| answer.get(key).cloned().unwrap_or_else(|| json!({}))),
    };
    keys.iter().map(|key| (key.clone(), json!(elicited(part(key).as_ref())))).collect()
}

/// An answer as MCP has it. None is a refusal.
pub(super) fn elicited(answer: Option<&Value>) -> ElicitResult {
    match answer {
        Some(content) => ElicitResult::new(ElicitationAction::Accept).with_content(content.clone()),
        None => ElicitResult::new(ElicitationAction::Decline),
    }
}
