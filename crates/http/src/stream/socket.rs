//! WebSocket: events, approvals and decisions for web pages.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Extension;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use steprail_core::presence::Presence;
use steprail_engine::{Cursor, Event, Principal, RunId, User};

use super::HEARTBEAT;
use super::batch::Frame;
use super::follower::Follower;
use crate::App;
use crate::authentication::Credential;
use crate::extract::Caller;
use crate::page;
use crate::problem::Problem;
use crate::request_binding::RequestBinding;
use crate::routes::approvals::{self, Approval, DecisionRequest};

/// The maximum size of a client's message.
const MESSAGE_BYTES: usize = 64 * 1024;

/// Upgrades to a WebSocket.
pub(crate) async fn socket(
    State(app): State<App>,
    Caller(user): Caller,
    Extension(credential): Extension<Credential>,
    request: Request,
) -> Result<Response, Problem> {
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &app).await;
    let upgrade = upgrade
        .map_err(|rejection| Problem::bad(format!("this route needs a WebSocket handshake: {rejection}")))?;
    let upgrade = upgrade.max_message_size(MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(move |socket| serve(app, user, credential, socket)).into_response())
}

/// A request of a client.
#[derive(Deserialize)]
struct ClientRequest {
    id: Value,
    method: String,
    #[serde(default)]
    params: Option<Box<RawValue>>,
}

/// Parameters of `subscribe`: one run, or all runs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    run_id: Option<RunId>,
    after: Option<String>,
}

async fn serve(app: App, mut user: User, credential: Credential, mut socket: WebSocket) {
    // A proof of presence counts for one request, not for a connection.
    user = app.engine.as_user(without_presence(user.principal().clone()));
    let mut following: Option<Following> = None;
    let mut heartbeat = tokio::time::interval(HEARTBEAT);
    let mut changes = app.accounts.watch();
    loop {
        let replies = tokio::select! {
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) => {
                    if !renew(&app, &mut user, &credential, &mut following).await {
                        return;
                    }
                    Some(answer(&app, &user, &mut following, &text).await)
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => None,
            },
            frame = next(&mut following) => match frame {
                Some(frame) => Some(messages(&user, &frame).await),
                None => return,
            },
            // Rights that were revoked end the socket at once. The sender lives as long as the server.
            _ = changes.changed() => {
                if !renew(&app, &mut user, &credential, &mut following).await {
                    return;
                }
                None
            }
            _ = heartbeat.tick() => {
                let is_valid = renew(&app, &mut user, &credential, &mut following).await;
                if !is_valid || socket.send(Message::Ping(Vec::new().into())).await.is_err() {
                    return;
                }
                None
            }
        };
        for text in replies.into_iter().flatten() {
            if socket.send(Message::Text(text.into())).await.is_err() {
                return;
            }
        }
    }
}

/// The subscription of a client, with the rest of the current batch: requests are read between two events.
struct Following {
    follower: Follower,
    waiting: VecDeque<Arc<Frame>>,
}

/// Re-checks the credential. Returns false if it is invalid or the subscribed run is not visible any more.
async fn renew(
    app: &App,
    user: &mut User,
    credential: &Credential,
    following: &mut Option<Following>,
) -> bool {
    let Some(principal) = credential.renewed(app, user.principal()) else { return false };
    let provenance = user.principal().provenance.clone();
    *user = app.engine.as_user(Principal { provenance, ..principal });
    match following {
        Some(following) => following.follower.renew(user.clone()).await,
        None => true,
    }
}

/// The next event; pending while the client has no subscription.
async fn next(following: &mut Option<Following>) -> Option<Arc<Frame>> {
    let Some(Following { follower, waiting }) = following else { return std::future::pending().await };
    if waiting.is_empty() {
        let batch = follower.next().await.ok().flatten()?;
        waiting.extend(batch.frames().iter().cloned());
    }
    waiting.pop_front()
}

/// The messages for an event: the event itself and, if the user may decide, the approval that it requests.
async fn messages(user: &User, frame: &Frame) -> Vec<String> {
    let mut messages = vec![format!("{{\"method\":\"event\",\"params\":{}}}", frame.json)];
    if frame.kind() == "approval_requested" {
        messages.extend(approval(user, frame).await);
    }
    messages
}

/// The approval that an event requests, if it is open and the user may decide.
async fn approval(user: &User, frame: &Frame) -> Option<String> {
    let Event::ApprovalRequested { step, .. } = frame.event()? else { return None };
    let path = step.path.to_string();
    if !user.may_decide(frame.run, &path).await {
        return None;
    }
    let open = user.run_approvals(frame.run).await.ok()?;
    let approval = open.into_iter().find(|open| open.run_id == frame.run && open.path == path)?;
    let params = Approval { may_decide: Some(true), ..approval.into() };
    Some(json!({ "method": "approval_requested", "params": params }).to_string())
}

/// Handles a request.
async fn answer(app: &App, user: &User, following: &mut Option<Following>, text: &str) -> Vec<String> {
    let request: ClientRequest = match serde_json::from_str(text) {
        Ok(request) => request,
        Err(error) => return vec![failed(&Value::Null, &Problem::bad(format!("invalid request: {error}")))],
    };
    let result = match &*request.method {
        "subscribe" => subscribe(app, user, following, request.params.as_deref()).await,
        "approve" => decide(app, user, true, request.params.as_deref()).await,
        "deny" => decide(app, user, false, request.params.as_deref()).await,
        "approvals" => approvals::open(user).await.map(|open| json!(open)),
        other => Err(Problem::bad(format!("there is no method `{other}`"))
            .hint("the methods are subscribe, approve, deny and approvals")),
    };
    vec![match result {
        Ok(result) => json!({ "id": request.id, "result": result }).to_string(),
        Err(problem) => failed(&request.id, &problem),
    }]
}

fn failed(id: &Value, problem: &Problem) -> String {
    json!({ "id": id, "error": problem }).to_string()
}

async fn subscribe(
    app: &App,
    user: &User,
    following: &mut Option<Following>,
    params: Option<&RawValue>,
) -> Result<Value, Problem> {
    let Subscribe { run_id, after } = read(params)?;
    let after: Option<Cursor> = page::cursor(after.as_deref())?;
    let (hub, user) = (app.hub.clone(), user.clone());
    if let Some(run) = run_id {
        user.row(run).await?;
    }
    // The slot of the previous subscription is free for this one.
    *following = None;
    let follower = match run_id {
        Some(run) => Follower::of_run(hub, user, run, after.unwrap_or(Cursor::START)).await?,
        None => Follower::of_all(hub, user, after.unwrap_or_else(|| app.engine.cursor())).await?,
    };
    *following = Some(Following { follower, waiting: VecDeque::new() });
    Ok(json!({ "subscribed": true }))
}

#[derive(Deserialize)]
struct DecisionParams {
    run_id: RunId,
    /// Proof that the user is present: `pin …`, `totp …` or `passkey …`.
    presence: Option<String>,
    #[serde(flatten)]
    decision: DecisionRequest,
}

async fn decide(app: &App, user: &User, approved: bool, params: Option<&RawValue>) -> Result<Value, Problem> {
    let DecisionParams { run_id, presence, decision } = read(params)?;
    let mut by = user.principal().clone();
    if let Some(proof) = presence.filter(|_| !by.agent) {
        let binding = binding_of(run_id, approved, params);
        by.provenance.presence = app.accounts.verify_presence(&by, &proof, Some(&binding)).await?;
    }
    let decided = approvals::decide(&app.engine.as_user(by), run_id, approved, decision).await?;
    Ok(json!(decided))
}

/// A passkey confirms the same decision over the WebSocket and over REST: the parameters without those of the envelope are the body.
fn binding_of(run: RunId, approved: bool, params: Option<&RawValue>) -> RequestBinding {
    let mut body: Value =
        params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default();
    if let Some(body) = body.as_object_mut() {
        body.retain(|name, _| name != "run_id" && name != "presence");
    }
    let action = if approved { "approve" } else { "deny" };
    RequestBinding::new("POST", &format!("/api/v1/runs/{run}/{action}"), &body)
}

fn without_presence(mut principal: Principal) -> Principal {
    principal.provenance.presence = Presence::None;
    principal
}

fn read<T: serde::de::DeserializeOwned>(params: Option<&RawValue>) -> Result<T, Problem> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|error| Problem::bad(format!("invalid parameters: {error}")))
}
