//! What a tool asks a human in the middle of a call, and the answer as the tool takes it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests, InputResponses,
};
use serde_json::{Map, Value, json};
use steprail_engine::{Failure, FailureKind, Question};
use tokio::sync::oneshot;

use super::call::Sent;
use crate::limits::HELD_CALLS;

/// Calls whose tools wait for an answer on an open connection.
#[derive(Default)]
pub(super) struct Held {
    calls: Mutex<HashMap<String, (Sent, oneshot::Sender<ElicitResult>)>>,
    next: AtomicU64,
}

impl Held {
    /// Keeps a call until its tool is answered. Gives the end of the call for now: a question.
    pub(super) fn keep(
        &self,
        question: &ElicitRequestParams,
        sent: Sent,
        reply: oneshot::Sender<ElicitResult>,
    ) -> Failure {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= HELD_CALLS {
            let message = format!("more than {HELD_CALLS} tools wait for answers");
            return Failure::new(FailureKind::Limit, message);
        }
        let id = format!("{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        calls.insert(id.clone(), (sent, reply));
        let (message, form) = form(question);
        Failure::asks(Question { message: message.into(), form, state: json!({ "kind": "held", "id": id }) })
    }

    pub(super) fn take(&self, id: &str) -> Option<(Sent, oneshot::Sender<ElicitResult>)> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }
}

/// A question with the JSON Schema of its answer.
fn form(question: &ElicitRequestParams) -> (String, Value) {
    match question {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            (message.clone(), json!(requested_schema))
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            (format!("{message} ({url})"), json!({ "type": "object", "properties": {} }))
        }
        _ => ("the tool asks something that cannot be shown".to_owned(), json!({ "type": "object" })),
    }
}

/// What a server needs to know before it goes on. Several questions are one form with a part for each.
pub(super) fn asks(server: &str, requests: InputRequests, mut state: Value) -> Failure {
    let mut questions = Vec::new();
    for (key, request) in requests {
        let InputRequest::Elicitation(request) = request else {
            let message = format!("{server} asks for something that only a chat has (`{key}`)");
            return Failure::new(FailureKind::ToolError, message);
        };
        questions.push((key, form(&request.params)));
    }
    state["keys"] = questions.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().into();
    let message: Vec<&str> = questions.iter().map(|(_, (message, _))| message.as_str()).collect();
    let message = message.join("; ");
    let form = match questions.as_slice() {
        [(_, (_, form))] => form.clone(),
        several => {
            let parts: Map<String, Value> =
                several.iter().map(|(key, (_, form))| (key.clone(), form.clone())).collect();
            json!({ "type": "object", "properties": parts })
        }
    };
    Failure::asks(Question { message: message.into(), form, state })
}

/// The answers to questions, by their keys.
pub(super) fn responses(keys: &[Value], answer: Option<&Value>) -> InputResponses {
    let keys: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
    let part = |key: &str| match keys.as_slice() {
        [_] => answer.cloned(),
        _ => answer.map(|answer| answer[key].clone()),
    };
    keys.iter().map(|key| ((*key).to_owned(), json!(elicited(part(key).as_ref())))).collect()
}

/// An answer as MCP has it. None is a refusal.
pub(super) fn elicited(answer: Option<&Value>) -> ElicitResult {
    match answer {
        Some(content) => ElicitResult::new(ElicitationAction::Accept).with_content(content.clone()),
        None => ElicitResult::new(ElicitationAction::Decline),
    }
}
