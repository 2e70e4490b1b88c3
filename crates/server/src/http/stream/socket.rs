//! Events and decisions over a WebSocket: what a page needs to show a run and to ask its user.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Extension;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use steprail_engine::{Event, RunId, User};

use super::ALIVE;
use super::follower::Follower;
use super::page::Frame;
use crate::http::App;
use crate::http::door::Credential;
use crate::http::extract::Asker;
use crate::http::problem::Problem;
use crate::http::routes::approvals::{self, Decision};
use crate::view;

/// Bytes that one message of a client has at most.
const MESSAGE_BYTES: usize = 64 * 1024;

/// Opens a WebSocket.
pub(crate) async fn socket(
    State(app): State<App>,
    Asker(user): Asker,
    Extension(credential): Extension<Credential>,
    request: Request,
) -> Result<Response, Problem> {
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &app).await;
    let upgrade = upgrade.map_err(|rejection| Problem::bad(format!("this is a WebSocket: {rejection}")))?;
    let upgrade = upgrade.max_message_size(MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(move |socket| serve(app, user, credential, socket)).into_response())
}

/// What a client asks.
#[derive(Deserialize)]
struct Call {
    id: Value,
    method: String,
    #[serde(default)]
    params: Option<Box<RawValue>>,
}

/// Where to follow from: a run, or everything.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    run_id: Option<RunId>,
    after: Option<i64>,
}

async fn serve(app: App, mut user: User, credential: Credential, mut socket: WebSocket) {
    let mut following: Option<Following> = None;
    let mut alive = tokio::time::interval(ALIVE);
    loop {
        let said = tokio::select! {
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
                Some(frame) => Some(told(&user, &frame).await),
                None => return,
            },
            _ = alive.tick() => {
                let is_welcome = renew(&app, &mut user, &credential, &mut following).await;
                if !is_welcome || socket.send(Message::Ping(Vec::new().into())).await.is_err() {
                    return;
                }
                None
            }
        };
        for text in said.into_iter().flatten() {
            if socket.send(Message::Text(text.into())).await.is_err() {
                return;
            }
        }
    }
}

/// What a client follows, and what it is still to be told of a page: between two events it can say something.
struct Following {
    follower: Follower,
    waiting: VecDeque<Arc<Frame>>,
}

/// Looks again who it is. False if they may no longer be here, or no longer see what they follow.
async fn renew(
    app: &App,
    user: &mut User,
    credential: &Credential,
    following: &mut Option<Following>,
) -> bool {
    let Some(principal) = credential.renewed(app, user.principal()) else { return false };
    *user = app.engine.as_user(principal);
    match following {
        Some(following) => following.follower.renew(user.clone()).await,
        None => true,
    }
}

/// The next event, once the client follows something.
async fn next(following: &mut Option<Following>) -> Option<Arc<Frame>> {
    let Some(Following { follower, waiting }) = following else { return std::future::pending().await };
    if waiting.is_empty() {
        let page = follower.next().await.ok().flatten()?;
        waiting.extend(page.frames().iter().cloned());
    }
    waiting.pop_front()
}

/// An event; and, where it asks whoever listens, the question itself: a call that the page answers by deciding.
async fn told(user: &User, frame: &Frame) -> Vec<String> {
    let mut said = vec![format!("{{\"method\":\"event\",\"params\":{}}}", frame.json)];
    if frame.kind() == "approval_requested" {
        said.extend(asked(user, frame).await);
    }
    said
}

/// The question that an event is about, if it is open and for this user.
async fn asked(user: &User, frame: &Frame) -> Option<String> {
    let Event::ApprovalRequested { step, .. } = frame.event()? else { return None };
    let path = step.path.to_string();
    if !user.may_decide(frame.run, &path).await {
        return None;
    }
    let open = user.run_approvals(frame.run).await.ok()?;
    let asked = open.into_iter().find(|open| open.run_id == frame.run && open.path == path)?;
    let params = view::Approval { may_decide: Some(true), ..asked.into() };
    Some(json!({ "method": "approval_requested", "params": params }).to_string())
}

/// Carries a call out.
async fn answer(app: &App, user: &User, following: &mut Option<Following>, text: &str) -> Vec<String> {
    let call: Call = match serde_json::from_str(text) {
        Ok(call) => call,
        Err(error) => return vec![failed(&Value::Null, &Problem::bad(format!("this is no call: {error}")))],
    };
    let result = match &*call.method {
        "subscribe" => subscribe(app, user, following, call.params.as_deref()).await,
        "approve" => decide(user, true, call.params.as_deref()).await,
        "deny" => decide(user, false, call.params.as_deref()).await,
        "approvals" => approvals::open(user).await.map(|open| json!(open)),
        other => Err(Problem::bad(format!("there is no method `{other}`"))
            .hint("there are subscribe, approve, deny and approvals")),
    };
    vec![match result {
        Ok(result) => json!({ "id": call.id, "result": result }).to_string(),
        Err(problem) => failed(&call.id, &problem),
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
    let hub = app.hub.clone();
    let follower = match run_id {
        Some(run) => {
            let after = u64::try_from(after.unwrap_or_default()).unwrap_or_default();
            Follower::of_run(hub, user.clone(), &user.row(run).await?, after)?
        }
        None => Follower::of_all(hub, user.clone(), after.unwrap_or_else(|| app.engine.cursor()))?,
    };
    *following = Some(Following { follower, waiting: VecDeque::new() });
    Ok(json!({ "subscribed": true }))
}

#[derive(Deserialize)]
struct Decided {
    run_id: RunId,
    #[serde(flatten)]
    decision: Decision,
}

async fn decide(user: &User, approved: bool, params: Option<&RawValue>) -> Result<Value, Problem> {
    let Decided { run_id, decision } = read(params)?;
    approvals::decide(user, run_id, approved, decision).await.map(|decided| json!(decided))
}

fn read<T: serde::de::DeserializeOwned>(params: Option<&RawValue>) -> Result<T, Problem> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|error| Problem::bad(format!("the parameters do not fit: {error}")))
}
