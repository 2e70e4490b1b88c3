//! What a tool asks its client in the middle of a call, and the answer as the tool takes it.

#![expect(deprecated, reason = "sampling and roots are passed on as long as servers use them")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::InputRequest as McpRequest;
use rmcp::model::{ElicitRequestParams, InputRequests, InputResponses};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use steprail_engine::{Failure, FailureKind, InputRequest};
use tokio::sync::oneshot;

use super::call::Sent;
use super::connection::Connection;
use crate::limits::HELD_CALLS;

/// The key of a form that holds the address to send a human to.
pub(crate) const URL: &str = "x-url";

/// The key of a form that holds the name that the tool has for its question.
pub(crate) const KEY: &str = "x-key";

/// The key of a form that holds the request of a tool to its client, as the tool made it.
pub(crate) const REQUEST: &str = "x-request";

/// The key of an answer that holds the client's response to such a request.
pub(crate) const RESPONSE: &str = "x-response";

/// What a tool may ask its client for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Elicitation,
    /// A completion of a model.
    Sampling,
    /// The folders that it may use.
    Roots,
}

/// One of the things that a tool asks for at the same time, and its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    key: String,
    kind: Kind,
}

/// How a call goes on once its tool has the answer: what is recorded with the question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Pending {
    /// The request waits on its connection, in memory.
    Held { server: String, id: String, asked: Kind },
    /// A task of the server takes the answers.
    Task { server: String, id: String, asked: Vec<Asked> },
    /// The call is made again with the answers.
    Retry {
        server: String,
        asked: Vec<Asked>,
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
    pub reply: oneshot::Sender<Value>,
}

impl Held {
    /// Keeps a call until its tool is answered. Gives the end of the call for now: a question.
    pub(super) fn keep(&self, request: &McpRequest, server: &str, call: HeldCall) -> Failure {
        let Some((asked, message, form)) = form(server, request) else { return unanswerable(server) };
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= HELD_CALLS {
            let message = format!("more than {HELD_CALLS} tools wait for answers; this one gets none");
            return Failure::new(FailureKind::Lost, message);
        }
        let id = uuid::Uuid::now_v7().to_string();
        calls.insert(id.clone(), call);
        let state = Pending::Held { server: server.to_owned(), id, asked }.write();
        Failure::input_required(InputRequest { message: message.into(), form, state })
    }

    /// Every call that is kept: its tool gets no answer.
    pub(super) fn drain(&self) -> Vec<HeldCall> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain().map(|(_, call)| call).collect()
    }

    pub(super) fn take(&self, id: &str) -> Option<HeldCall> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }
}

/// What a tool asks for, in words, and the JSON Schema of the answer.
fn form(server: &str, request: &McpRequest) -> Option<(Kind, String, Value)> {
    match request {
        McpRequest::Elicitation(request) => {
            let (message, form) = elicitation(&request.params)?;
            Some((Kind::Elicitation, message, form))
        }
        McpRequest::CreateMessage(sampling) => {
            let fields = json!({ "text": { "type": "string", "title": "What a model would answer" } });
            let form =
                json!({ "type": "object", "properties": fields, "required": ["text"], REQUEST: request });
            let prompt = json!(sampling.params.messages.last());
            let prompt = prompt["content"]["text"].as_str().unwrap_or("a conversation").to_owned();
            Some((Kind::Sampling, format!("{server} asks a model: {prompt}"), form))
        }
        McpRequest::ListRoots(_) => {
            let uris = json!({ "type": "array", "title": "URIs of folders", "items": { "type": "string" } });
            let fields = json!({ "roots": uris });
            let form =
                json!({ "type": "object", "properties": fields, "required": ["roots"], REQUEST: request });
            Some((Kind::Roots, format!("{server} asks which folders it may use"), form))
        }
        _ => None,
    }
}

fn elicitation(question: &ElicitRequestParams) -> Option<(String, Value)> {
    match question {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            Some((message.clone(), json!(requested_schema)))
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            Some((format!("{message} ({url})"), json!({ "type": "object", "properties": {}, URL: url })))
        }
        _ => None,
    }
}

fn unanswerable(server: &str) -> Failure {
    Failure::new(FailureKind::Lost, format!("{server} asks for something that is not known here"))
}

/// What a server needs to know before it goes on. Several questions are one form with a part for each.
pub(super) fn asks(
    server: &str,
    requests: InputRequests,
    pending: impl FnOnce(String, Vec<Asked>) -> Pending,
) -> Failure {
    let (mut asked, mut messages, mut parts) = (Vec::new(), Vec::new(), Map::new());
    for (key, request) in requests {
        let Some((kind, message, mut form)) = form(server, &request) else { return unanswerable(server) };
        messages.push(message);
        form[REQUEST] = json!(request);
        parts.insert(key.clone(), form);
        asked.push(Asked { key, kind });
    }
    let form = match asked.as_slice() {
        [only] => {
            let mut form = parts.remove(&only.key).unwrap_or_default();
            form[KEY] = only.key.as_str().into();
            // A form is what it asks for; its request adds nothing.
            if let (Kind::Elicitation, Some(form)) = (only.kind, form.as_object_mut()) {
                form.remove(REQUEST);
            }
            form
        }
        _ => json!({ "type": "object", "properties": parts }),
    };
    let state = pending(server.to_owned(), asked).write();
    Failure::input_required(InputRequest { message: messages.join("; ").into(), form, state })
}

/// The answers to questions, by their keys.
pub(super) fn responses(asked: &[Asked], answer: Option<&Value>) -> InputResponses {
    let part = |key: &str| match asked {
        [_] => answer.cloned(),
        _ => answer.map(|answer| answer.get(key).cloned().unwrap_or_else(|| json!({}))),
    };
    asked.iter().map(|asked| (asked.key.clone(), response(asked.kind, part(&asked.key).as_ref()))).collect()
}

/// An answer as MCP has it: a client's own response, or what a human said. None is a refusal.
pub(super) fn response(kind: Kind, answer: Option<&Value>) -> Value {
    if let Some(response) = answer.and_then(|answer| answer.get(RESPONSE)) {
        return response.clone();
    }
    match (kind, answer) {
        (Kind::Elicitation, Some(content)) => json!({ "action": "accept", "content": content }),
        (Kind::Elicitation, None) => json!({ "action": "decline" }),
        (Kind::Sampling, answer) => {
            let text = answer.and_then(|answer| answer["text"].as_str());
            let content = json!({ "type": "text", "text": text.unwrap_or_default() });
            let reason = if text.is_some() { "endTurn" } else { "declined" };
            json!({ "role": "assistant", "content": content, "model": "human", "stopReason": reason })
        }
        (Kind::Roots, answer) => {
            let uris = answer.and_then(|answer| answer["roots"].as_array());
            let roots: Vec<Value> = uris.into_iter().flatten().map(|uri| json!({ "uri": uri })).collect();
            json!({ "roots": roots })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_human_may_answer_what_was_meant_for_a_model_or_a_client() {
        let said = response(Kind::Sampling, Some(&json!({ "text": "42" })));
        assert_eq!((&said["content"]["text"], &said["stopReason"]), (&json!("42"), &json!("endTurn")));
        assert_eq!(response(Kind::Sampling, None)["stopReason"], "declined");
        let roots = response(Kind::Roots, Some(&json!({ "roots": ["file:///a"] })));
        assert_eq!(roots, json!({ "roots": [{ "uri": "file:///a" }] }));
        assert_eq!(response(Kind::Roots, None), json!({ "roots": [] }));
    }

    #[test]
    fn what_a_client_responded_reaches_the_tool_as_it_is() {
        let asked = |key: &str, kind| Asked { key: key.to_owned(), kind };
        let several = [asked("name", Kind::Elicitation), asked("poem", Kind::Sampling)];
        let answer =
            json!({ "name": { RESPONSE: { "action": "decline" } }, "poem": { RESPONSE: { "any": 1 } } });
        let sent = responses(&several, Some(&answer));
        assert_eq!(json!(sent), json!({ "name": { "action": "decline" }, "poem": { "any": 1 } }));
    }

    #[test]
    fn several_requests_are_one_form_with_each_request_in_it() {
        let request = json!({ "method": "roots/list" });
        let form = json!({ "mode": "form", "message": "Name?", "requestedSchema": { "type": "object", "properties": {} } });
        let requests = json!({ "a": request, "b": { "method": "elicitation/create", "params": form } });
        let requests = serde_json::from_value(requests).expect("requests");
        let failure =
            asks("crm", requests, |server, asked| Pending::Retry { server, asked, request_state: None });
        let question = failure.request.expect("a question");
        assert_eq!(&*question.message, "crm asks which folders it may use; Name?");
        assert_eq!(question.form["properties"]["a"][REQUEST]["method"], "roots/list");
        assert_eq!(question.form["properties"]["b"][REQUEST]["params"]["message"], "Name?");
    }
}
