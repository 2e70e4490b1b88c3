//! Gates as questions to the client's user. The question is only a way to ask: who may decide is checked as everywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CustomNotification, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest,
    InputRequests,
};
use rmcp::service::NotificationContext;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{Approval, Error, RunId, RunView, User};

use super::Server;
use super::answer::{Asked, Refusal};
use crate::limits::ASK_SECS;

/// Open gates at which a user may decide.
pub(super) async fn open(user: &User, run: RunId) -> Result<Vec<Approval>, Error> {
    Ok(decidable(user, &user.status(run).await?).await)
}

/// The same, of a run that was looked at.
pub(super) async fn decidable(user: &User, view: &RunView) -> Vec<Approval> {
    let mut open = Vec::new();
    for approval in &view.approvals {
        if user.may_decide(approval.run_id, &approval.path).await {
            open.push(approval.clone());
        }
    }
    open
}

/// What a question goes by: never the same for two questions of a run.
fn key(approval: &Approval) -> String {
    let digest = approval.digest.to_string();
    format!("gate:{}:{}:{}", approval.path, approval.n, &digest[..8])
}

/// The questions to put to the user.
pub(super) fn requests(open: &[Approval]) -> InputRequests {
    let asked = open.iter().filter_map(|approval| {
        let request = InputRequest::Elicitation(ElicitRequest::new(form(approval)?));
        Some((key(approval), request))
    });
    asked.collect()
}

/// A form whose empty answer is no yes.
fn form(approval: &Approval) -> Option<ElicitRequestParams> {
    let mut message = approval.prompt.clone();
    if let Some(tool) = &approval.tool {
        let args = approval.args.as_ref().map(|args| args.get()).unwrap_or_default();
        message.push_str(&format!("\n{tool} {args}"));
    }
    let schema = json!({
        "type": "object",
        "properties": {
            "confirm": { "type": "boolean", "title": "Approve", "description": "Yes lets the run go on; no denies it." },
            "reason": { "type": "string", "title": "Reason" },
        },
        "required": ["confirm"],
    });
    serde_json::from_value(json!({ "mode": "form", "message": message, "requestedSchema": schema })).ok()
}

/// What a user said to a question.
enum Said {
    Decision(bool, Option<String>),
    /// Nothing that decides.
    Nothing,
}

fn said(answer: &ElicitResult) -> Said {
    let content = answer.content.as_ref();
    let reason = content.and_then(|content| content["reason"].as_str()).map(str::to_owned);
    match answer.action {
        ElicitationAction::Accept => match content.and_then(|content| content["confirm"].as_bool()) {
            Some(confirm) => Said::Decision(confirm, reason),
            None => Said::Nothing,
        },
        ElicitationAction::Decline => Said::Decision(false, Some("declined".to_owned())),
        _ => Said::Nothing,
    }
}

async fn decide(user: &User, approval: &Approval, said: Said) -> Result<bool, Error> {
    let Said::Decision(approved, reason) = said else { return Ok(false) };
    user.decide(approval.run_id, &approval.path, approved, reason, Some(approval.digest)).await?;
    Ok(true)
}

/// Takes answers to open questions; what answers none is left aside.
pub(super) async fn answer(
    user: &User,
    view: &RunView,
    answers: &BTreeMap<String, Value>,
) -> Result<(), Error> {
    for approval in &view.approvals {
        let answer = answers.get(&key(approval));
        let answer = answer.and_then(|answer| serde_json::from_value::<ElicitResult>(answer.clone()).ok());
        if let Some(answer) = answer {
            decide(user, approval, said(&answer)).await?;
        }
    }
    Ok(())
}

/// Whether a call goes on with a run that asked its client something: takes the answers.
pub(super) async fn continued(asked: &Asked) -> Result<Option<RunId>, Refusal> {
    let Some(state) = &asked.request.request_state else { return Ok(None) };
    let unknown = |_| Refusal::new("bad_input", "requestState is not one of ours");
    let run = state.parse::<RunId>().map_err(unknown)?;
    let view = asked.user.status(run).await?;
    if let Some(answers) = &asked.request.input_responses {
        answer(&asked.user, &view, answers).await?;
    }
    Ok(Some(run))
}

/// Asks a client with a session, one question after another. False if one was not decided.
pub(super) async fn ask(asked: &Asked, open: &[Approval]) -> Result<bool, Refusal> {
    for approval in open {
        let Some(form) = form(approval) else { return Ok(false) };
        let asking = asked.context.peer.create_elicitation(form);
        let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_secs(ASK_SECS), asking).await else {
            return Ok(false);
        };
        if !decide(&asked.user, approval, said(&answer)).await? {
            return Ok(false);
        }
    }
    Ok(true)
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
    let Ok(run) = response.workflow_id.parse::<RunId>() else { return };
    let decided = user.decide(run, &response.step_id, response.approved, response.reason, None).await;
    if let Err(error) = decided {
        tracing::warn!(%run, step = response.step_id, %error, "an approveResponse was refused");
    }
}
