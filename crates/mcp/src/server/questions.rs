//! What is open in a run, as requests to a client: gates as forms, and what tools ask as they asked it.

use std::collections::BTreeMap;

use rmcp::model::{
    ClientCapabilities, ElicitRequest, ElicitRequestParams, ElicitResult, InputRequest, InputRequests,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use steprail_engine::Approval;

use super::tasks::Given;
use crate::gateway::{KEY, REQUEST, RESPONSE, URL};

/// How requests are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// As the tool that asks names them, as far as the names differ.
    Own,
    /// As no other question of the run is.
    Unique,
}

/// One request to a client.
struct Part {
    /// The tool's own name for it.
    own: Option<String>,
    unique: String,
    request: InputRequest,
}

/// What a client said to an open question.
pub(super) enum Said {
    /// To a form: a gate's, or a tool's.
    Form(ElicitResult),
    /// To a tool's own request or requests: what the tool gets.
    Response(Value),
}

/// The requests for what is open, as far as a client can answer them.
pub(super) fn requests(
    open: &[Approval],
    given: Given,
    client: Option<&ClientCapabilities>,
    keys: Keys,
) -> InputRequests {
    let mut requests = InputRequests::new();
    for part in open.iter().flat_map(|approval| parts(approval, given)) {
        if client.is_some_and(|client| answers(client, &part.request)) {
            let own = part.own.filter(|own| keys == Keys::Own && !requests.contains_key(own));
            requests.insert(own.unwrap_or(part.unique), part.request);
        }
    }
    requests
}

/// Whether a client can answer a kind of request.
fn answers(client: &ClientCapabilities, request: &InputRequest) -> bool {
    match request {
        InputRequest::Elicitation(_) => client.elicitation.is_some(),
        InputRequest::CreateMessage(_) => client.sampling.is_some(),
        InputRequest::ListRoots(_) => client.roots.is_some(),
        _ => false,
    }
}

/// What a client's answers say to an open question, if anything.
pub(super) fn said(approval: &Approval, given: Given, answers: &BTreeMap<String, Value>) -> Option<Said> {
    let parts = parts(approval, given);
    let of = |part: &Part| {
        let own = || part.own.as_ref().and_then(|own| answers.get(own));
        answers.get(&part.unique).or_else(own).cloned()
    };
    match Asks::of(approval, given) {
        Asks::Form => ElicitResult::deserialize(of(parts.first()?)?).ok().map(Said::Form),
        Asks::Request => Some(Said::Response(json!({ RESPONSE: of(parts.first()?)? }))),
        Asks::Several => {
            let given = parts.iter().filter_map(|part| Some((part.own.clone()?, of(part)?)));
            let given: Map<String, Value> =
                given.map(|(own, value)| (own, json!({ RESPONSE: value }))).collect();
            (!given.is_empty()).then_some(Said::Response(Value::Object(given)))
        }
    }
}

/// Whether a tool asks this, and under a name of its own: then an answer may come before the question.
pub(super) fn is_named(approval: &Approval) -> bool {
    parts(approval, Given::Output).iter().any(|part| part.own.is_some())
}

/// The form of a tool that asks something; one without fields asks yes or no.
pub(super) fn asked_form(approval: &Approval) -> Option<Value> {
    let form = recorded(approval)?;
    form["properties"].as_object().is_some_and(|fields| !fields.is_empty()).then(|| plain(form))
}

/// How an open question is put.
#[derive(PartialEq, Eq)]
enum Asks {
    Form,
    /// One request that a tool made.
    Request,
    /// Several requests that a tool made at the same time.
    Several,
}

impl Asks {
    fn of(approval: &Approval, given: Given) -> Self {
        let Some(form) = recorded(approval).filter(|_| given != Given::Exact) else { return Self::Form };
        if form.get(REQUEST).is_some() {
            return Self::Request;
        }
        let fields = form["properties"].as_object().filter(|fields| !fields.is_empty());
        let several = fields.is_some_and(|fields| fields.values().all(|part| part.get(REQUEST).is_some()));
        if several { Self::Several } else { Self::Form }
    }
}

fn recorded(approval: &Approval) -> Option<Value> {
    serde_json::from_str(approval.form.as_ref()?.get()).ok()
}

fn parts(approval: &Approval, given: Given) -> Vec<Part> {
    let form = recorded(approval).unwrap_or_default();
    let own = form[KEY].as_str().map(str::to_owned);
    let digest = approval.digest.to_string();
    let unique = format!("gate:{}:{}:{}", approval.path, approval.n, &digest[..8]);
    let request = |form: &Value| InputRequest::deserialize(&form[REQUEST]).ok();
    match Asks::of(approval, given) {
        Asks::Form => {
            let params = elicitation(approval, given, &unique);
            let request = params.map(|params| InputRequest::Elicitation(ElicitRequest::new(params)));
            request
                .into_iter()
                .map(|request| Part { own: own.clone(), unique: unique.clone(), request })
                .collect()
        }
        Asks::Request => request(&form)
            .into_iter()
            .map(|request| Part { own: own.clone(), unique: unique.clone(), request })
            .collect(),
        Asks::Several => {
            let fields = form["properties"].as_object().into_iter().flatten();
            let part = |(name, form): (&String, &Value)| {
                let unique = format!("{unique}:{name}");
                Some(Part { own: Some(name.clone()), unique, request: request(form)? })
            };
            fields.filter_map(part).collect()
        }
    }
}

/// What a tool wants to know; or a form whose empty answer is no yes.
fn elicitation(approval: &Approval, given: Given, unique: &str) -> Option<ElicitRequestParams> {
    if given == Given::Exact {
        return passed_on(approval, unique);
    }
    let mut message = approval.prompt.clone();
    if let Some(tool) = &approval.tool {
        let args = approval.args.as_ref().map(|args| args.get()).unwrap_or_default();
        message.push_str(&format!("\n{tool} {args}"));
    }
    let schema = match asked_form(approval) {
        Some(form) => form,
        None => json!({
            "type": "object",
            "properties": {
                "confirm": { "type": "boolean", "title": "Approve", "description": "Yes lets the run go on; no denies it." },
                "reason": { "type": "string", "title": "Reason" },
            },
            "required": ["confirm"],
        }),
    };
    serde_json::from_value(json!({ "mode": "form", "message": message, "requestedSchema": schema })).ok()
}

/// What an exposed tool asks, as it asks it.
fn passed_on(approval: &Approval, unique: &str) -> Option<ElicitRequestParams> {
    let form = recorded(approval)?;
    let message = &approval.prompt;
    let params = match form.get(URL) {
        Some(url) => json!({ "mode": "url", "message": message, "url": url, "elicitationId": unique }),
        None => json!({ "mode": "form", "message": message, "requestedSchema": plain(form) }),
    };
    serde_json::from_value(params).ok()
}

/// A form without the keys that are ours.
fn plain(mut form: Value) -> Value {
    if let Some(form) = form.as_object_mut() {
        form.retain(|key, _| ![KEY, URL, REQUEST].contains(&key.as_str()));
    }
    form
}
