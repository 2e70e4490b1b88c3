//! Gates as questions to the client's user. The question is only a way to ask: who may decide is checked as everywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CustomNotification, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData,
    InputRequest, InputRequests,
};
use rmcp::service::NotificationContext;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{Approval, Error, Relay, RunId, User};

use super::answer::{Asked, Refusal};
use super::tasks::Given;
use super::{Server, Shared};
use crate::gateway::{KEY, URL};

/// Whoever answers questions at a client: a person, if gates are put to clients' users at all.
pub(super) fn person(shared: &Shared, user: &User) -> Option<User> {
    shared.settings.ask_clients.then(|| user.in_person())
}

/// Whoever answers what is open in a run: what an exposed tool asks is always put to the client that called it.
fn answerer(shared: &Shared, user: &User, given: Given) -> Option<User> {
    if given == Given::Exact { Some(user.relaying(Relay::default())) } else { person(shared, user) }
}

/// Open gates that are put to the user of a client.
pub(super) async fn open(
    shared: &Shared,
    user: &User,
    run: RunId,
    given: Given,
) -> Result<Vec<Approval>, Error> {
    let Some(person) = answerer(shared, user, given) else { return Ok(Vec::new()) };
    let mut open = Vec::new();
    for approval in user.open_questions(run).await? {
        if person.may_decide(approval.run_id, &approval.path).await {
            open.push(approval);
        }
    }
    Ok(open)
}

/// What a question goes by: never the same for two questions of a run.
fn key(approval: &Approval) -> String {
    let digest = approval.digest.to_string();
    format!("gate:{}:{}:{}", approval.path, approval.n, &digest[..8])
}

/// The name that a tool has for its question.
fn own_key(approval: &Approval) -> Option<String> {
    let form: Value = serde_json::from_str(approval.form.as_ref()?.get()).ok()?;
    form[KEY].as_str().map(str::to_owned)
}

/// The questions to put to the user with the result of a call: under the names that their tools have for them.
pub(super) fn asked(open: &[Approval], given: Given) -> InputRequests {
    let mut asked = InputRequests::new();
    for approval in open {
        let Some(form) = form(approval, given) else { continue };
        let key = own_key(approval).filter(|key| !asked.contains_key(key)).unwrap_or_else(|| key(approval));
        asked.insert(key, InputRequest::Elicitation(ElicitRequest::new(form)));
    }
    asked
}

/// The state that a client sends back with its answers: the run, and the question that it was asked first.
pub(super) fn state(run: RunId, first: &Approval) -> String {
    format!("{run}.{}", &first.digest.to_string()[..8])
}

/// The run of a state.
pub(super) fn run_of(state: &str) -> Option<RunId> {
    let (run, question) = state.split_once('.')?;
    let is_digest = question.len() == 8 && question.bytes().all(|byte| byte.is_ascii_hexdigit());
    run.parse().ok().filter(|_| is_digest)
}

/// The questions of a task to put to the user, under keys that no other question of the task has.
pub(super) fn requests(open: &[Approval], given: Given) -> InputRequests {
    let asked = open.iter().filter_map(|approval| {
        let request = InputRequest::Elicitation(ElicitRequest::new(form(approval, given)?));
        Some((key(approval), request))
    });
    asked.collect()
}

/// What a tool wants to know; or a form whose empty answer is no yes.
fn form(approval: &Approval, given: Given) -> Option<ElicitRequestParams> {
    if given == Given::Exact {
        return passed_on(approval);
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
fn passed_on(approval: &Approval) -> Option<ElicitRequestParams> {
    let form: Value = serde_json::from_str(approval.form.as_ref()?.get()).ok()?;
    let message = &approval.prompt;
    let params = match form.get(URL) {
        Some(url) => {
            json!({ "mode": "url", "message": message, "url": url, "elicitationId": key(approval) })
        }
        None => json!({ "mode": "form", "message": message, "requestedSchema": plain(form) }),
    };
    serde_json::from_value(params).ok()
}

/// The form of a tool that asks something; one without fields asks yes or no.
fn asked_form(approval: &Approval) -> Option<Value> {
    let form: Value = serde_json::from_str(approval.form.as_ref()?.get()).ok()?;
    form["properties"].as_object().is_some_and(|fields| !fields.is_empty()).then(|| plain(form))
}

/// A form without the keys that are ours.
fn plain(mut form: Value) -> Value {
    if let Some(form) = form.as_object_mut() {
        form.remove(KEY);
        form.remove(URL);
    }
    form
}

/// Takes what a user said to a question. False if it decides nothing. Somebody else may have decided meanwhile; then
/// there is nothing left to decide.
async fn take(person: &User, approval: &Approval, said: &ElicitResult) -> Result<bool, Error> {
    let content = said.content.clone().unwrap_or_default();
    let (run, path, digest) = (approval.run_id, approval.path.as_str(), Some(approval.digest));
    let reason = content["reason"].as_str().map(str::to_owned);
    let decided = match said.action {
        ElicitationAction::Decline => {
            person.decide(run, path, false, Some("declined".to_owned()), digest).await
        }
        ElicitationAction::Accept if asked_form(approval).is_some() => {
            person.answer(run, path, content, digest).await
        }
        ElicitationAction::Accept => match content["confirm"].as_bool() {
            Some(confirm) => person.decide(run, path, confirm, reason, digest).await,
            None => return Ok(false),
        },
        _ => return Ok(false),
    };
    match decided {
        Ok(()) | Err(Error::Conflict(_) | Error::NotFound(_)) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Takes answers to open questions; what answers none is left aside. Says whether any decided something.
pub(super) async fn answer(
    shared: &Shared,
    user: &User,
    run: RunId,
    answers: &BTreeMap<String, Value>,
) -> Result<bool, Error> {
    let given = Given::of(&user.row(run).await?);
    let Some(person) = answerer(shared, user, given) else { return Ok(false) };
    let mut decided = false;
    for approval in user.open_questions(run).await? {
        let own = || own_key(&approval).and_then(|key| answers.get(&key));
        let answer = answers.get(&key(&approval)).or_else(own);
        let answer = answer.and_then(|answer| serde_json::from_value::<ElicitResult>(answer.clone()).ok());
        if let Some(answer) = answer {
            decided |= take(&person, &approval, &answer).await?;
        }
    }
    Ok(decided)
}

/// A run that asked its client something, and that the call goes on with.
pub(super) struct Continued {
    pub run: RunId,
    /// Whether the client's user decided something.
    pub decided: bool,
}

/// A call goes on with a run that asked its client something: takes the answers.
pub(super) async fn continued(shared: &Shared, asked: &Asked, state: &str) -> Result<Continued, Refusal> {
    let invalid = || Refusal::Protocol(ErrorData::invalid_params("invalid requestState", None));
    let run = run_of(state).ok_or_else(invalid)?;
    asked.user.row(run).await.map_err(|_| invalid())?;
    let decided = match &asked.request.input_responses {
        Some(answers) => answer(shared, &asked.user, run, answers).await?,
        None => false,
    };
    Ok(Continued { run, decided })
}

/// Asks a client with a session one question, not longer than `patience`. False if it was not decided.
pub(super) async fn ask(
    shared: &Shared,
    asked: &Asked,
    (approval, given): (&Approval, Given),
    patience: Duration,
) -> Result<bool, Refusal> {
    let (Some(person), Some(form)) = (answerer(shared, &asked.user, given), form(approval, given)) else {
        return Ok(false);
    };
    let asking = asked.context.peer.create_elicitation(form);
    match tokio::time::timeout(patience, asking).await {
        Ok(Ok(said)) => Ok(take(&person, approval, &said).await?),
        _ => Ok(false),
    }
}

/// What clients that know `$/dcc.approveResponse` send.
#[derive(Deserialize)]
struct ApproveResponse {
    #[serde(alias = "run_id")]
    workflow_id: String,
    #[serde(alias = "step")]
    step_id: String,
    approved: bool,
    reason: Option<String>,
}

/// An answer that comes as a notification: through the same checks. Nobody waits for a reply; what is wrong is logged.
pub(super) async fn answered(
    server: &Server,
    notification: CustomNotification,
    context: NotificationContext<RoleServer>,
) {
    if !notification.method.ends_with("$/dcc.approveResponse") {
        return;
    }
    let Ok(Some(response)) = notification.params_as::<ApproveResponse>() else {
        tracing::warn!("an approveResponse that cannot be read");
        return;
    };
    let Ok(user) = server.user(&context.extensions) else { return };
    let user = person(&server.shared, &user).unwrap_or(user);
    let Ok(run) = response.workflow_id.parse::<RunId>() else { return };
    let decided = user.decide(run, &response.step_id, response.approved, response.reason, None).await;
    if let Err(error) = decided {
        tracing::warn!(%run, step = response.step_id, %error, "an approveResponse was refused");
    }
}
