//! The HTTP surface as its users and its enemies see it, on a real database and with a clock that the test holds.

mod matrix;
mod rest;
mod secrets;
mod security;
mod sockets;
mod streams;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use steprail_engine::{
    Annotations, Durability, Engine, ManualClock, Options, Principal, Right, SqliteStore, TokenScope,
    ToolCall, Tools,
};
use steprail_mcp::{MemorySecrets, Server, Settings};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::accounts::{DAY_MS, LoadedAccounts, NewToken, Role, SessionLifetime, UserRecord};
use crate::peer::Peer;
use crate::views::Tool;
use crate::{AccessPolicy, App, public_router};

/// A gate, then a call.
const GATED: &str = "
name: gated
steps:
  - { id: ask, kind: approve, prompt: Go on? }
  - { id: act, tool: crm__write, args: { n: 1 } }
";

/// The tools of a house: a read, a write that returns its arguments, and a call that does not return.
fn tools() -> Tools {
    let echo = |call: ToolCall| async move { Ok(call.args.value().clone()) };
    Tools::new()
        .tool_with("crm__read", Annotations::READ_ONLY, |_| async { Ok(json!({ "rows": 3 })) })
        .tool("crm__write", echo)
        .tool("slow__call", |_| std::future::pending())
}

/// The tools as the gateway would list them.
fn listed_tools() -> Vec<Tool> {
    let tool = |name: &str, read_only: bool| Tool {
        name: name.to_owned(),
        description: "test".to_owned(),
        input_schema: json!({ "type": "object" }),
        read_only,
        destructive: !read_only,
        idempotent: read_only,
    };
    vec![tool("crm__read", true), tool("crm__write", false), tool("slow__call", false)]
}

/// A server without a port.
pub(super) struct House {
    pub app: App,
    pub clock: Arc<ManualClock>,
    /// Whether requests come from programs of the owner.
    pub is_own: bool,
    server: Server,
    router: Router,
    stop: CancellationToken,
    _folder: TempDir,
}

impl House {
    /// One where everybody signs in.
    pub(super) fn new() -> Self {
        Self::with(AccessPolicy { requires_sign_in: true, ..AccessPolicy::default() })
    }

    pub(super) fn with(access_policy: AccessPolicy) -> Self {
        let options = Options { durability: Durability::Process, ..Options::default() };
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path().join("steprail.db"), &options).expect("a store");
        let owner = Principal { alone: !access_policy.requires_sign_in, ..Principal::user("owner") };
        let accounts = LoadedAccounts::load(&store.readers().expect("readers"), owner).expect("accounts");
        let clock = Arc::new(ManualClock::at(1_800_000_000_000));
        let builder = Engine::builder().store(store).tools(tools()).clock(clock.clone());
        let engine = builder.authorizer(accounts.access()).spawn().expect("an engine");
        let stop = CancellationToken::new();
        let app = App::new(
            crate::Options {
                engine: engine.clone(),
                accounts,
                session_lifetime: SessionLifetime { idle: DAY_MS / 2, max: 7 * DAY_MS },
                gateway: None,
                tools: Arc::new(listed_tools),
                logins: None,
                secrets: Arc::new(MemorySecrets::default()),
                access_policy,
                oidc: None,
                metrics: None,
                url: Some("http://localhost".to_owned()),
                max_body_bytes: 1024 * 1024,
            },
            stop.clone(),
        );
        let server = Server::new(engine, None, Settings::default());
        let router = public_router(&app, &server, &stop);
        Self { app, clock, is_own: true, server, router, stop, _folder: folder }
    }

    /// A port of this machine where it is served.
    pub(super) async fn port(&self) -> std::net::SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        self.app.serve_port(&self.server, listener, &self.stop).expect("a port");
        address
    }

    fn owner(&self) -> steprail_engine::User {
        self.app.engine.as_user(self.app.accounts.owner().clone())
    }

    /// Adds a user with a role and a token in person.
    pub(super) async fn user(&self, id: &str, role: Role) -> String {
        let tools = vec!["crm__*".to_owned()];
        let person = UserRecord { roles: [role].into(), tools, ..UserRecord::default() };
        self.app.accounts.put_user(&self.owner(), id, person, None).await.expect("a user");
        self.token(id, false, None).await
    }

    pub(super) async fn token(&self, user: &str, agent: bool, scope: Option<TokenScope>) -> String {
        let new = NewToken { user: user.to_owned(), name: "a test".to_owned(), days: 30, agent, scope };
        self.app.accounts.create_token(&self.owner(), new).await.expect("a token").2
    }

    /// A token that is for one right only.
    pub(super) async fn scoped(&self, user: &str, right: Right) -> String {
        self.token(user, false, Some(TokenScope { may: Some([right].into()), tools: None })).await
    }

    /// Sends a request as it stands.
    pub(super) async fn send(&self, mut request: Request<Body>) -> Response<Body> {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        request.extensions_mut().insert(ConnectInfo(Peer { ip, is_owner: self.is_own }));
        self.router.clone().oneshot(request).await.expect("an answer")
    }

    /// Asks for something with a token, and gives the status and what was said.
    pub(super) async fn ask(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.send(request(token, method, path, body)).await;
        let status = answer.status().as_u16();
        (status, said(answer).await)
    }

    /// Has something done that must succeed.
    pub(super) async fn done(&self, token: &str, method: &str, path: &str, body: &Value) -> Value {
        let (status, said) = self.ask(token, method, path, body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {said}");
        said
    }

    /// The number of the last event.
    pub(super) fn cursor(&self) -> u64 {
        u64::try_from(self.app.engine.cursor()).expect("a number")
    }

    /// A run of somebody's that waits at its gate; its id and the digest of the question.
    pub(super) async fn gated_run(&self, token: &str) -> (String, String) {
        let run = self.done(token, "POST", "/api/v1/runs", &json!({ "text": GATED, "wait_s": 10 })).await;
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        (text(&run["run_id"]), text(&run["approvals"][0]["digest"]))
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A request with a token, or without one.
pub(super) fn request(token: &str, method: &str, path: &str, body: &Value) -> Request<Body> {
    let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).expect("a method"));
    request = request.uri(path).header("host", "localhost");
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    request.header("content-type", "application/json").body(body).expect("a request")
}

/// With one more header.
pub(super) fn with(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().insert(name, value.parse().expect("a header"));
    request
}

/// What an answer says.
pub(super) async fn said(answer: Response<Body>) -> Value {
    let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
    serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into())
}

/// The cookie that an answer sets, as a browser sends it.
pub(super) fn cookie(headers: &HeaderMap) -> String {
    let set = headers.get("set-cookie").and_then(|cookie| cookie.to_str().ok()).expect("a cookie");
    set.split(';').next().unwrap_or_default().to_owned()
}
