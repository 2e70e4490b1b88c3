//! Gates as questions to the client's user. The question is only a way to ask: who may decide is checked as everywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{CustomNotification, ElicitationAction, ErrorData};
use rmcp::service::NotificationContext;
use serde::Deserialize;
use serde_json::Value;
use steprail_engine::{Approval, Error, Relay, RunId, User};

use super::answer::{Asked, Refusal};
use super::questions::{self, Keys, Said};
use super::tasks::Given;
use super::{Server, Shared, relayed};

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
    for approval in user.run_approvals(run).await? {
        if person.may_decide(approval.run_id, &approval.path).await {
            open.push(approval);
        }
    }
    Ok(open)
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

/// Takes what a user said to a question. False if it decides nothing. Somebody else may have decided meanwhile; then
/// there is nothing left to decide.
async fn take(person: &User, approval: &Approval, said: Said) -> Result<bool, Error> {
    let (run, path, digest) = (approval.run_id, approval.path.as_str(), Some(approval.digest));
    let decided = match said {
        Said::Response(response) => person.answer(run, path, response, digest).await,
        Said::Form(said) => {
            let content = said.content.unwrap_or_default();
            let reason = content["reason"].as_str().map(str::to_owned);
            match (said.action, content["confirm"].as_bool()) {
                (ElicitationAction::Decline, _) => {
                    person.decide(run, path, false, Some("declined".to_owned()), digest).await
                }
                (ElicitationAction::Accept, _) if questions::asked_form(approval).is_some() => {
                    person.answer(run, path, content, digest).await
                }
                (ElicitationAction::Accept, Some(confirm)) => {
                    person.decide(run, path, confirm, reason, digest).await
                }
                _ => return Ok(false),
            }
        }
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
    answer_some(shared, (user, given), run, answers, |_| true).await
}

/// Takes answers that came before their questions, which a client does that knows what a tool asks. No gate is decided so:
/// nobody has seen it.
pub(super) async fn answer_early(
    shared: &Shared,
    user: &User,
    run: RunId,
    answers: &BTreeMap<String, Value>,
) -> Result<bool, Error> {
    answer_some(shared, (user, Given::Output), run, answers, questions::is_named).await
}

async fn answer_some(
    shared: &Shared,
    (user, given): (&User, Given),
    run: RunId,
    answers: &BTreeMap<String, Value>,
    is_meant: impl Fn(&Approval) -> bool,
) -> Result<bool, Error> {
    let Some(person) = answerer(shared, user, given) else { return Ok(false) };
    let mut decided = false;
    for approval in user.run_approvals(run).await?.into_iter().filter(is_meant) {
        if let Some(said) = questions::said(&approval, given, answers) {
            decided |= take(&person, &approval, said).await?;
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
    let Some(person) = answerer(shared, &asked.user, given) else { return Ok(false) };
    let client = asked.context.client_capabilities();
    let requests = questions::requests(std::slice::from_ref(approval), given, client.as_ref(), Keys::Own);
    let asking = relayed::answers(&asked.context.peer, requests);
    let Ok(Ok(answers)) = tokio::time::timeout(patience, asking).await else { return Ok(false) };
    match questions::said(approval, given, &answers) {
        Some(said) => Ok(take(&person, approval, said).await?),
        None => Ok(false),
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
