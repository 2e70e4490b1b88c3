//! Input requests of tools (elicitation, sampling, roots): converts them to forms, and answers back to responses.

#![expect(deprecated, reason = "sampling and roots are supported as long as servers use them")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::InputRequest as McpRequest;
use rmcp::model::{ElicitRequestParams, InputRequests, InputResponses};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use steprail_engine::{Failure, FailureKind, InputRequest};
use tokio::sync::oneshot;

use super::call::SentCall;
use super::connection::Connection;
use crate::limits::HELD_CALLS;

/// Form key: the URL that the user has to open.
pub(crate) const URL: &str = "x-url";

/// Form key: the key of the input request at the server.
pub(crate) const KEY: &str = "x-key";

/// Form key: the request as the tool sent it.
pub(crate) const REQUEST: &str = "x-request";

/// Answer key: the response of a client to such a request, passed to the tool unchanged.
pub(crate) const RESPONSE: &str = "x-response";

/// Kinds of input requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InputRequestKind {
    Elicitation,
    /// A completion of a language model.
    Sampling,
    /// The folders that the tool may use.
    Roots,
}

/// One of the inputs that a tool requests at the same time, by its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RequestedInput {
    key: String,
    kind: InputRequestKind,
}

/// How a call is resumed once its input request is answered. Stored with the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum ResumeState {
    /// The call holds its connection, in memory.
    Held {
        server: String,
        id: String,
        #[serde(rename = "asked")]
        kind: InputRequestKind,
    },
    /// The responses are sent to a task of the server.
    Task {
        server: String,
        id: String,
        #[serde(rename = "asked")]
        inputs: Vec<RequestedInput>,
    },
    /// The call is sent again with the responses.
    Retry {
        server: String,
        #[serde(rename = "asked")]
        inputs: Vec<RequestedInput>,
        #[serde(default, rename = "requestState", skip_serializing_if = "Option::is_none")]
        request_state: Option<String>,
    },
}

impl ResumeState {
    /// Reads a stored state; `None` if the format is unknown.
    pub(super) fn read(state: &Value) -> Option<Self> {
        Self::deserialize(state).ok()
    }

    fn write(&self) -> Value {
        json!(self)
    }
}

/// Calls whose tools wait for input on an open connection. The connection serves no other calls meanwhile.
#[derive(Default)]
pub(super) struct HeldCalls(Mutex<HashMap<String, HeldCall>>);

/// A call whose tool waits for input.
pub(super) struct HeldCall {
    pub call: SentCall,
    pub connection: Arc<Connection>,
    /// Sends the response to the tool.
    pub reply: oneshot::Sender<Value>,
}

impl HeldCalls {
    /// Stores a call until its input request is answered. Returns the failure that ends the call for now.
    pub(super) fn hold(&self, request: &McpRequest, server: &str, call: HeldCall) -> Failure {
        let Some((kind, message, form)) = form(server, request) else { return unsupported(server) };
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= HELD_CALLS {
            let message = format!("the limit of {HELD_CALLS} calls that wait for input is reached");
            return Failure::new(FailureKind::Lost, message);
        }
        let id = uuid::Uuid::now_v7().to_string();
        calls.insert(id.clone(), call);
        let state = ResumeState::Held { server: server.to_owned(), id, kind }.write();
        Failure::input_required(InputRequest { message: message.into(), form, state })
    }

    /// Removes all calls. Their tools get no response.
    pub(super) fn drain(&self) -> Vec<HeldCall> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain().map(|(_, call)| call).collect()
    }

    pub(super) fn take(&self, id: &str) -> Option<HeldCall> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }
}

/// The kind of a request, the message for the user, and the JSON Schema of the answer.
fn form(server: &str, request: &McpRequest) -> Option<(InputRequestKind, String, Value)> {
    match request {
        McpRequest::Elicitation(request) => {
            let (message, form) = elicitation(&request.params)?;
            Some((InputRequestKind::Elicitation, message, form))
        }
        McpRequest::CreateMessage(sampling) => {
            let fields = json!({ "text": { "type": "string", "title": "Response of the model" } });
            let form =
                json!({ "type": "object", "properties": fields, "required": ["text"], REQUEST: request });
            let prompt = json!(sampling.params.messages.last());
            let prompt = prompt["content"]["text"].as_str().unwrap_or("a conversation").to_owned();
            Some((InputRequestKind::Sampling, format!("{server} requests a model response: {prompt}"), form))
        }
        McpRequest::ListRoots(_) => {
            let uris = json!({ "type": "array", "title": "URIs of folders", "items": { "type": "string" } });
            let fields = json!({ "roots": uris });
            let form =
                json!({ "type": "object", "properties": fields, "required": ["roots"], REQUEST: request });
            Some((InputRequestKind::Roots, format!("{server} requests the folders that it may use"), form))
        }
        _ => None,
    }
}

fn elicitation(request: &ElicitRequestParams) -> Option<(String, Value)> {
    match request {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            Some((message.clone(), json!(requested_schema)))
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            Some((format!("{message} ({url})"), json!({ "type": "object", "properties": {}, URL: url })))
        }
        _ => None,
    }
}

fn unsupported(server: &str) -> Failure {
    Failure::new(FailureKind::Lost, format!("{server} sent an unsupported input request"))
}

/// The failure that ends a call with input requests. Several requests become one form with a part for each.
pub(super) fn input_required(
    server: &str,
    requests: InputRequests,
    state: impl FnOnce(String, Vec<RequestedInput>) -> ResumeState,
) -> Failure {
    let (mut inputs, mut messages, mut parts) = (Vec::new(), Vec::new(), Map::new());
    for (key, request) in requests {
        let Some((kind, message, mut form)) = form(server, &request) else { return unsupported(server) };
        messages.push(message);
        form[REQUEST] = json!(request);
        parts.insert(key.clone(), form);
        inputs.push(RequestedInput { key, kind });
    }
    let form = match inputs.as_slice() {
        [only] => {
            let mut form = parts.remove(&only.key).unwrap_or_default();
            form[KEY] = only.key.as_str().into();
            // The form of an elicitation already has all of its request.
            if let (InputRequestKind::Elicitation, Some(form)) = (only.kind, form.as_object_mut()) {
                form.remove(REQUEST);
            }
            form
        }
        _ => json!({ "type": "object", "properties": parts }),
    };
    let state = state(server.to_owned(), inputs).write();
    Failure::input_required(InputRequest { message: messages.join("; ").into(), form, state })
}

/// The responses to input requests, by key.
pub(super) fn responses(inputs: &[RequestedInput], answer: Option<&Value>) -> InputResponses {
    let part = |key: &str| match inputs {
        [_] => answer.cloned(),
        _ => answer.map(|answer| answer.get(key).cloned().unwrap_or_else(|| json!({}))),
    };
    inputs.iter().map(|input| (input.key.clone(), response(input.kind, part(&input.key).as_ref()))).collect()
}

/// The MCP response for an answer: the response of a client, or one made from a human's answer. `None` declines.
pub(super) fn response(kind: InputRequestKind, answer: Option<&Value>) -> Value {
    if let Some(response) = answer.and_then(|answer| answer.get(RESPONSE)) {
        return response.clone();
    }
    match (kind, answer) {
        (InputRequestKind::Elicitation, Some(content)) => json!({ "action": "accept", "content": content }),
        (InputRequestKind::Elicitation, None) => json!({ "action": "decline" }),
        (InputRequestKind::Sampling, answer) => {
            let text = answer.and_then(|answer| answer["text"].as_str());
            let content = json!({ "type": "text", "text": text.unwrap_or_default() });
            let reason = if text.is_some() { "endTurn" } else { "declined" };
            json!({ "role": "assistant", "content": content, "model": "human", "stopReason": reason })
        }
        (InputRequestKind::Roots, answer) => {
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
    fn human_answers_become_sampling_and_roots_responses() {
        let sampled = response(InputRequestKind::Sampling, Some(&json!({ "text": "42" })));
        assert_eq!((&sampled["content"]["text"], &sampled["stopReason"]), (&json!("42"), &json!("endTurn")));
        assert_eq!(response(InputRequestKind::Sampling, None)["stopReason"], "declined");
        let roots = response(InputRequestKind::Roots, Some(&json!({ "roots": ["file:///a"] })));
        assert_eq!(roots, json!({ "roots": [{ "uri": "file:///a" }] }));
        assert_eq!(response(InputRequestKind::Roots, None), json!({ "roots": [] }));
    }

    #[test]
    fn client_responses_are_passed_on_unchanged() {
        let input = |key: &str, kind| RequestedInput { key: key.to_owned(), kind };
        let inputs =
            [input("name", InputRequestKind::Elicitation), input("poem", InputRequestKind::Sampling)];
        let answer =
            json!({ "name": { RESPONSE: { "action": "decline" } }, "poem": { RESPONSE: { "any": 1 } } });
        let sent = responses(&inputs, Some(&answer));
        assert_eq!(json!(sent), json!({ "name": { "action": "decline" }, "poem": { "any": 1 } }));
    }

    #[test]
    fn several_requests_become_one_form() {
        let request = json!({ "method": "roots/list" });
        let form = json!({ "mode": "form", "message": "Name?", "requestedSchema": { "type": "object", "properties": {} } });
        let requests = json!({ "a": request, "b": { "method": "elicitation/create", "params": form } });
        let requests = serde_json::from_value(requests).expect("requests");
        let state = |server, inputs| ResumeState::Retry { server, inputs, request_state: None };
        let failure = input_required("crm", requests, state);
        let request = failure.request.expect("an input request");
        assert_eq!(&*request.message, "crm requests the folders that it may use; Name?");
        assert_eq!(request.form["properties"]["a"][REQUEST]["method"], "roots/list");
        assert_eq!(request.form["properties"]["b"][REQUEST]["params"]["message"], "Name?");
        assert_eq!(request.state["asked"][0], json!({ "key": "a", "kind": "roots" }));
    }
}
