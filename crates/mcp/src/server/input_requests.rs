//! Open approvals of a run as input requests to a client: gates as forms, requests of tools unchanged.

use std::collections::BTreeMap;

use rmcp::model::{
    ClientCapabilities, ElicitRequest, ElicitRequestParams, ElicitResult, InputRequest, InputRequests,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use steprail_engine::Approval;

use super::tasks::ResultForm;
use crate::gateway::{KEY, REQUEST, RESPONSE, URL};

/// How input requests are keyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyStyle {
    /// By the keys of the tool, where they are distinct.
    Tool,
    /// By keys that are unique in the run.
    Unique,
}

/// One input request of an approval.
struct KeyedRequest {
    /// The key that the tool uses.
    tool_key: Option<String>,
    /// A key that is unique in the run.
    unique_key: String,
    request: InputRequest,
}

impl KeyedRequest {
    fn answer(&self, answers: &BTreeMap<String, Value>) -> Option<Value> {
        let by_tool_key = || self.tool_key.as_ref().and_then(|key| answers.get(key));
        answers.get(&self.unique_key).or_else(by_tool_key).cloned()
    }
}

/// The answer of a client to an approval.
pub(super) enum ClientAnswer {
    /// The result of an elicitation: the form of a gate or of a tool.
    Form(ElicitResult),
    /// The responses to the requests of a tool, as the tool receives them.
    Response(Value),
}

/// The input requests of approvals that a client supports.
pub(super) fn requests(
    approvals: &[Approval],
    form: ResultForm,
    client: Option<&ClientCapabilities>,
    keys: KeyStyle,
) -> InputRequests {
    let mut requests = InputRequests::new();
    for keyed in approvals.iter().flat_map(|approval| keyed_requests(approval, form)) {
        if client.is_some_and(|client| supports(client, &keyed.request)) {
            let is_free = |key: &String| keys == KeyStyle::Tool && !requests.contains_key(key);
            let key = keyed.tool_key.filter(is_free).unwrap_or(keyed.unique_key);
            requests.insert(key, keyed.request);
        }
    }
    requests
}

fn supports(client: &ClientCapabilities, request: &InputRequest) -> bool {
    match request {
        InputRequest::Elicitation(_) => client.elicitation.is_some(),
        InputRequest::CreateMessage(_) => client.sampling.is_some(),
        InputRequest::ListRoots(_) => client.roots.is_some(),
        _ => false,
    }
}

/// The answer to an approval among the answers of a client.
pub(super) fn answer_to(
    approval: &Approval,
    form: ResultForm,
    answers: &BTreeMap<String, Value>,
) -> Option<ClientAnswer> {
    let requests = keyed_requests(approval, form);
    match RequestKind::of(approval, form) {
        RequestKind::Form => {
            ElicitResult::deserialize(requests.first()?.answer(answers)?).ok().map(ClientAnswer::Form)
        }
        RequestKind::ToolRequest => {
            Some(ClientAnswer::Response(json!({ RESPONSE: requests.first()?.answer(answers)? })))
        }
        RequestKind::ToolRequests => {
            let answered = requests.iter().filter_map(|request| {
                Some((request.tool_key.clone()?, json!({ RESPONSE: request.answer(answers)? })))
            });
            let answered: Map<String, Value> = answered.collect();
            (!answered.is_empty()).then_some(ClientAnswer::Response(Value::Object(answered)))
        }
    }
}

/// Whether a tool requests input under a key of its own. Clients that know the key may answer in advance.
pub(super) fn has_tool_key(approval: &Approval) -> bool {
    keyed_requests(approval, ResultForm::Output).iter().any(|request| request.tool_key.is_some())
}

/// The form of an input request; `None` if it has no fields, which is a question for yes or no.
pub(super) fn tool_form(approval: &Approval) -> Option<Value> {
    let form = stored_form(approval)?;
    form["properties"].as_object().is_some_and(|fields| !fields.is_empty()).then(|| without_own_keys(form))
}

/// What an approval becomes for a client.
#[derive(PartialEq, Eq)]
enum RequestKind {
    /// A form.
    Form,
    /// One request of a tool.
    ToolRequest,
    /// Several requests of a tool at the same time.
    ToolRequests,
}

impl RequestKind {
    fn of(approval: &Approval, form: ResultForm) -> Self {
        let Some(form) = stored_form(approval).filter(|_| form != ResultForm::Relayed) else {
            return Self::Form;
        };
        if form.get(REQUEST).is_some() {
            return Self::ToolRequest;
        }
        let fields = form["properties"].as_object().filter(|fields| !fields.is_empty());
        let has_requests =
            fields.is_some_and(|fields| fields.values().all(|field| field.get(REQUEST).is_some()));
        if has_requests { Self::ToolRequests } else { Self::Form }
    }
}

fn stored_form(approval: &Approval) -> Option<Value> {
    serde_json::from_str(approval.form.as_ref()?.get()).ok()
}

fn keyed_requests(approval: &Approval, form: ResultForm) -> Vec<KeyedRequest> {
    let stored = stored_form(approval).unwrap_or_default();
    let tool_key = stored[KEY].as_str().map(str::to_owned);
    let digest = approval.digest.to_string();
    let unique_key = format!("gate:{}:{}:{}", approval.path, approval.n, &digest[..8]);
    let tool_request = |form: &Value| InputRequest::deserialize(&form[REQUEST]).ok();
    let request = match RequestKind::of(approval, form) {
        RequestKind::Form => elicitation(approval, form, &unique_key)
            .map(|params| InputRequest::Elicitation(ElicitRequest::new(params))),
        RequestKind::ToolRequest => tool_request(&stored),
        RequestKind::ToolRequests => {
            let fields = stored["properties"].as_object().into_iter().flatten();
            let keyed = |(name, form): (&String, &Value)| {
                let unique_key = format!("{unique_key}:{name}");
                Some(KeyedRequest { tool_key: Some(name.clone()), unique_key, request: tool_request(form)? })
            };
            return fields.filter_map(keyed).collect();
        }
    };
    request.map(|request| KeyedRequest { tool_key, unique_key, request }).into_iter().collect()
}

/// The elicitation of an approval: the form of the tool, or `confirm` with a reason. `confirm` is required, so that an
/// empty answer is not an approval.
fn elicitation(approval: &Approval, form: ResultForm, id: &str) -> Option<ElicitRequestParams> {
    if form == ResultForm::Relayed {
        return relayed_elicitation(approval, id);
    }
    let message = approval.text().render();
    let schema = tool_form(approval).unwrap_or_else(|| {
        json!({
            "type": "object",
            "properties": {
                "confirm": { "type": "boolean", "title": "Approve", "description": "Yes approves, no denies." },
                "reason": { "type": "string", "title": "Reason" },
            },
            "required": ["confirm"],
        })
    });
    serde_json::from_value(json!({ "mode": "form", "message": message, "requestedSchema": schema })).ok()
}

/// The elicitation of an exposed tool, unchanged.
fn relayed_elicitation(approval: &Approval, id: &str) -> Option<ElicitRequestParams> {
    let form = stored_form(approval)?;
    let message = &approval.prompt;
    let params = match form.get(URL) {
        Some(url) => json!({ "mode": "url", "message": message, "url": url, "elicitationId": id }),
        None => {
            json!({ "mode": "form", "message": message, "requestedSchema": without_own_keys(form) })
        }
    };
    serde_json::from_value(params).ok()
}

/// A form without the keys that the gateway added.
fn without_own_keys(mut form: Value) -> Value {
    if let Some(form) = form.as_object_mut() {
        form.retain(|key, _| ![KEY, URL, REQUEST].contains(&key.as_str()));
    }
    form
}
