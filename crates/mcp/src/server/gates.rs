//! Approvals through clients: open approvals become input requests, and the answers become decisions.
//!
//! A client only transports the question. The engine checks who may decide, as for every other surface.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{CustomNotification, ElicitationAction};
use rmcp::service::NotificationContext;
use serde::Deserialize;
use serde_json::Value;
use steprail_engine::{Approval, Error, Relay, RunId, User};

use super::error::ToolError;
use super::input_requests::{self, ClientAnswer, KeyStyle};
use super::request::ToolRequest;
use super::tasks::ResultForm;
use super::{Server, Shared, relayed};

/// The user in person, if approvals are requested from the users of clients (`ask_clients`).
fn in_person(shared: &Shared, user: &User) -> Option<User> {
    shared.settings.ask_clients.then(|| user.in_person())
}

/// The user as which answers to approvals of a run are recorded; `None` without `ask_clients`.
///
/// The client of a relayed call always answers the input requests of its own tool.
fn responder(shared: &Shared, user: &User, form: ResultForm) -> Option<User> {
    if form == ResultForm::Relayed { Some(user.relaying(Relay::default())) } else { in_person(shared, user) }
}

/// Open approvals of a run that the client's user may decide.
pub(super) async fn open_approvals(
    shared: &Shared,
    user: &User,
    run: RunId,
    form: ResultForm,
) -> Result<Vec<Approval>, Error> {
    let Some(responder) = responder(shared, user, form) else { return Ok(Vec::new()) };
    let mut open = Vec::new();
    for approval in user.run_approvals(run).await? {
        // A client can answer by itself, so its answer proves nothing.
        let is_refused = form != ResultForm::Relayed && !user.presence_at(&approval).is_none();
        if !is_refused && responder.may_decide(approval.run_id, &approval.path).await {
            open.push(approval);
        }
    }
    Ok(open)
}

/// The `requestState` of an `input_required` result: the run, and the digest of its first open approval.
pub(super) fn request_state(run: RunId, first: &Approval) -> String {
    format!("{run}.{}", &first.digest.to_string()[..8])
}

/// The run that a `requestState` names.
pub(super) fn run_of(state: &str) -> Option<RunId> {
    let (run, digest) = state.split_once('.')?;
    let is_digest = digest.len() == 8 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    run.parse().ok().filter(|_| is_digest)
}

/// Applies an answer to an approval. Returns whether the approval is decided, also by an earlier decision.
async fn apply_answer(responder: &User, approval: &Approval, answer: ClientAnswer) -> Result<bool, Error> {
    let (run, path, digest) = (approval.run_id, approval.path.as_str(), Some(approval.digest));
    let decided = match answer {
        ClientAnswer::Response(response) => responder.answer(run, path, response, digest).await,
        ClientAnswer::Form(result) => {
            let content = result.content.unwrap_or_default();
            let reason = content["reason"].as_str().map(str::to_owned);
            match (result.action, content["confirm"].as_bool()) {
                (ElicitationAction::Decline, _) => {
                    responder.decide(run, path, false, Some("declined".to_owned()), digest).await
                }
                (ElicitationAction::Accept, _) if input_requests::tool_form(approval).is_some() => {
                    responder.answer(run, path, content, digest).await
                }
                (ElicitationAction::Accept, Some(confirm)) => {
                    responder.decide(run, path, confirm, reason, digest).await
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

/// Applies answers to the open approvals of a run; other answers are ignored. Returns whether any decided an approval.
pub(super) async fn apply_answers(
    shared: &Shared,
    user: &User,
    run: RunId,
    answers: &BTreeMap<String, Value>,
) -> Result<bool, Error> {
    let form = ResultForm::of(&user.row(run).await?);
    apply_matching(shared, (user, form), run, answers, |_| true).await
}

/// Applies answers that a client sent with the call, before the input request. They never decide a gate, because no
/// human has seen it.
pub(super) async fn apply_early_answers(
    shared: &Shared,
    user: &User,
    run: RunId,
    answers: &BTreeMap<String, Value>,
) -> Result<bool, Error> {
    let form = ResultForm::Output;
    apply_matching(shared, (user, form), run, answers, input_requests::has_tool_key).await
}

async fn apply_matching(
    shared: &Shared,
    (user, form): (&User, ResultForm),
    run: RunId,
    answers: &BTreeMap<String, Value>,
    matches: impl Fn(&Approval) -> bool,
) -> Result<bool, Error> {
    let Some(responder) = responder(shared, user, form) else { return Ok(false) };
    let mut decided = false;
    for approval in user.run_approvals(run).await?.into_iter().filter(matches) {
        if let Some(answer) = input_requests::answer_to(&approval, form, answers) {
            decided |= apply_answer(&responder, &approval, answer).await?;
        }
    }
    Ok(decided)
}

/// A run whose client called again with the `requestState` of an `input_required` result.
pub(super) struct ContinuedRun {
    pub run: RunId,
    /// Whether the answers decided an approval.
    pub decided: bool,
}

/// Finds the run of a `requestState` and applies the answers of the request.
pub(super) async fn continue_run(request: &ToolRequest, state: &str) -> Result<ContinuedRun, ToolError> {
    let run = run_of(state).ok_or_else(ToolError::invalid_request_state)?;
    request.user.row(run).await.map_err(|_| ToolError::invalid_request_state())?;
    let decided = match &request.params.input_responses {
        Some(answers) => apply_answers(&request.shared, &request.user, run, answers).await?,
        None => false,
    };
    Ok(ContinuedRun { run, decided })
}

/// Requests an approval from a client with a session, within `timeout`. Returns whether it is decided.
pub(super) async fn elicit(
    request: &ToolRequest,
    (approval, form): (&Approval, ResultForm),
    timeout: Duration,
) -> Result<bool, ToolError> {
    let Some(responder) = responder(&request.shared, &request.user, form) else { return Ok(false) };
    let client = request.context.client_capabilities();
    let approvals = std::slice::from_ref(approval);
    let requests = input_requests::requests(approvals, form, client.as_ref(), KeyStyle::Tool);
    let answers = relayed::send_requests(&request.context.peer, requests);
    let Ok(Ok(answers)) = tokio::time::timeout(timeout, answers).await else { return Ok(false) };
    match input_requests::answer_to(approval, form, &answers) {
        Some(answer) => Ok(apply_answer(&responder, approval, answer).await?),
        None => Ok(false),
    }
}

/// Parameters of the notification `$/dcc.approveResponse`.
#[derive(Deserialize)]
struct ApproveResponse {
    #[serde(alias = "run_id")]
    workflow_id: String,
    #[serde(alias = "step")]
    step_id: String,
    approved: bool,
    reason: Option<String>,
}

/// Handles a decision that arrives as a notification. Notifications have no response, so errors are logged.
pub(super) async fn on_approve_response(
    server: &Server,
    notification: CustomNotification,
    context: NotificationContext<RoleServer>,
) {
    if !notification.method.ends_with("$/dcc.approveResponse") {
        return;
    }
    let Ok(Some(response)) = notification.params_as::<ApproveResponse>() else {
        tracing::warn!("invalid parameters of approveResponse");
        return;
    };
    let Ok(user) = server.user(&context.extensions) else { return };
    let user = in_person(&server.shared, &user).unwrap_or(user);
    let Ok(run) = response.workflow_id.parse::<RunId>() else { return };
    let decided = user.decide(run, &response.step_id, response.approved, response.reason, None).await;
    if let Err(error) = decided {
        tracing::warn!(%run, step = response.step_id, %error, "approveResponse was rejected");
    }
}
