//! Tests of the HTTP surface, with a real database and a manual clock.

mod headers;
mod links;
mod matrix;
mod ownership;
mod presence;
mod quotas;
mod rest;
mod routes;
mod scopes;
mod secrets;
mod security;
mod sessions;
mod sockets;
mod steps;
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
    Annotations, Durability, Engine, Limits, ManualClock, Options, Presence, Principal, Quotas, Right,
    SqliteStore, TokenScope, ToolCall, Tools,
};
use steprail_mcp::{MemorySecrets, Server, Settings};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::accounts::{DAY_MS, LoadedAccounts, NewToken, Role, SessionLifetime, UserRecord};
use crate::peer::Peer;
use crate::views::Tool;
use crate::{AccessPolicy, App, ConnectionLimits, LinkSigner, public_router};

/// A definition with a gate and a call after it.
const GATED: &str = "
name: gated
steps:
  - { id: ask, kind: approve, prompt: Go on? }
  - { id: act, tool: crm__write, args: { n: 1 } }
";

/// Tools: a read, a write that returns its arguments, and a call that never returns.
fn tools() -> Tools {
    let echo = |call: ToolCall| async move { Ok(call.args.value().clone()) };
    Tools::new()
        .tool_with("crm__read", Annotations::READ_ONLY, |_| async { Ok(json!({ "rows": 3 })) })
        .tool("crm__write", echo)
        .tool("slow__call", |_| std::future::pending())
}

/// The tools as a gateway lists them.
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

/// A server with its router, called without a port.
pub(super) struct TestServer {
    pub app: App,
    pub clock: Arc<ManualClock>,
    /// Whether the peer of requests is a program of the owner.
    pub peer_is_owner: bool,
    /// The user of the operating system that requests come from.
    pub os_user: Option<u32>,
    mcp: Server,
    pub router: Router,
    stop: CancellationToken,
    _folder: TempDir,
}

impl TestServer {
    /// A server where requests must authenticate.
    pub(super) fn new() -> Self {
        Self::with(AccessPolicy { requires_sign_in: true, ..AccessPolicy::default() })
    }

    pub(super) fn with(access_policy: AccessPolicy) -> Self {
        Self::with_quotas(access_policy, Quotas::default())
    }

    pub(super) fn with_quotas(access_policy: AccessPolicy, quotas: Quotas) -> Self {
        Self::build(access_policy, quotas, Presence::None)
    }

    /// A server where decisions and account changes need a factor.
    pub(super) fn with_presence(presence: Presence) -> Self {
        Self::build(
            AccessPolicy { requires_sign_in: true, ..AccessPolicy::default() },
            Quotas::default(),
            presence,
        )
    }

    fn build(access_policy: AccessPolicy, quotas: Quotas, presence: Presence) -> Self {
        let options = Options { durability: Durability::Process, ..Options::default() };
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path().join("steprail.db"), &options).expect("a store");
        let owner = Principal { sole_user: !access_policy.requires_sign_in, ..Principal::user("owner") };
        let accounts = LoadedAccounts::load(&store.readers().expect("readers"), owner).expect("accounts");
        let clock = Arc::new(ManualClock::at(1_800_000_000_000));
        let builder = Engine::builder().store(store).tools(tools()).clock(clock.clone());
        let builder = builder.limits(Limits { quotas, ..Limits::default() }).presence(presence);
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
                links: LinkSigner::new(&[7; 32], "https://steprail.example"),
                max_body_bytes: 1024 * 1024,
                connections: ConnectionLimits::default(),
            },
            stop.clone(),
        );
        let mcp = Server::new(engine, None, Settings::default());
        let router = public_router(&app, &mcp, &stop);
        Self { app, clock, peer_is_owner: true, os_user: Some(1_000), mcp, router, stop, _folder: folder }
    }

    /// Serves a port on loopback. Returns its address.
    pub(super) async fn listen(&self) -> std::net::SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        self.app.serve_port(&self.mcp, listener, &self.stop).expect("a port");
        address
    }

    /// The owner in person, who proved the factor that is required.
    fn owner(&self) -> steprail_engine::User {
        let mut owner = self.app.accounts.owner().clone();
        owner.provenance.presence = self.app.engine.presence();
        self.app.engine.as_user(owner)
    }

    /// Adds a user with a role. Returns a token of the user in person.
    pub(super) async fn user(&self, id: &str, role: Role) -> String {
        let tools = vec!["crm__*".to_owned()];
        let record = UserRecord { roles: [role].into(), tools, ..UserRecord::default() };
        self.app.accounts.put_user(&self.owner(), id, record, None).await.expect("a user");
        self.token(id, false, None).await
    }

    pub(super) async fn token(&self, user: &str, agent: bool, scope: Option<TokenScope>) -> String {
        let new = NewToken { user: user.to_owned(), name: "a test".to_owned(), days: 30, agent, scope };
        self.app.accounts.create_token(&self.owner(), new).await.expect("a token").2
    }

    /// Creates a token whose scope is one right.
    pub(super) async fn scoped_token(&self, user: &str, right: Right) -> String {
        self.token(user, false, Some(TokenScope { may: Some([right].into()), tools: None })).await
    }

    /// Sends a request.
    pub(super) async fn send(&self, mut request: Request<Body>) -> Response<Body> {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        request.extensions_mut().insert(ConnectInfo(Peer {
            ip,
            os_user: self.os_user,
            is_owner: self.peer_is_owner,
            pid: None,
        }));
        self.router.clone().oneshot(request).await.expect("a response")
    }

    /// Sends a request with a token. Returns the status and the body.
    pub(super) async fn call(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let response = self.send(request(token, method, path, body)).await;
        (response.status().as_u16(), json_body(response).await)
    }

    /// Sends a request that must succeed. Returns the body.
    pub(super) async fn call_ok(&self, token: &str, method: &str, path: &str, body: &Value) -> Value {
        let (status, reply) = self.call(token, method, path, body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {reply}");
        reply
    }

    /// The cursor of the last event.
    pub(super) fn cursor(&self) -> String {
        self.app.engine.cursor().to_string()
    }

    /// Starts a run that waits at its gate. Returns its id and the digest of the approval.
    pub(super) async fn start_gated_run(&self, token: &str) -> (String, String) {
        let run = self.call_ok(token, "POST", "/api/v1/runs", &json!({ "text": GATED, "wait_s": 10 })).await;
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        (text(&run["run_id"]), text(&run["approvals"][0]["digest"]))
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A request, with a token unless it is empty.
pub(super) fn request(token: &str, method: &str, path: &str, body: &Value) -> Request<Body> {
    let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).expect("a method"));
    request = request.uri(path).header("host", "localhost");
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    request.header("content-type", "application/json").body(body).expect("a request")
}

/// Adds a header.
pub(super) fn with(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().insert(name, value.parse().expect("a header"));
    request
}

/// The body as JSON, or as text.
pub(super) async fn json_body(response: Response<Body>) -> Value {
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into())
}

/// A browser that signed in: its cookie, and the secret of its page.
pub(super) struct Browser {
    pub cookie: String,
    pub page_secret: String,
}

impl Browser {
    /// Reads the response to a sign-in.
    pub(super) async fn signed_in(response: Response<Body>) -> Self {
        assert_eq!(response.status(), 201);
        let cookie = cookie(response.headers());
        let reply = json_body(response).await;
        Self { cookie, page_secret: reply["page_secret"].as_str().expect("a page secret").to_owned() }
    }

    /// Signs in with a token.
    pub(super) async fn of(server: &TestServer, token: &str) -> Self {
        Self::signed_in(server.send(request(token, "POST", "/api/v1/session", &Value::Null)).await).await
    }

    /// A request with the cookie only, as any server on another port of the host can send it.
    pub(super) fn cookie_only(&self, method: &str, path: &str, body: &Value) -> Request<Body> {
        with(request("", method, path, body), "cookie", &self.cookie)
    }

    /// A request of the page.
    pub(super) fn request(&self, method: &str, path: &str, body: &Value) -> Request<Body> {
        with(self.cookie_only(method, path, body), "x-steprail-page", &self.page_secret)
    }

    /// A ticket for a stream.
    pub(super) async fn ticket(&self, server: &TestServer) -> String {
        let reply = json_body(server.send(self.request("POST", "/api/v1/tickets", &Value::Null)).await).await;
        reply["ticket"].as_str().expect("a ticket").to_owned()
    }
}

/// The cookie that a response sets, as a browser sends it back.
pub(super) fn cookie(headers: &HeaderMap) -> String {
    let set = headers.get("set-cookie").and_then(|cookie| cookie.to_str().ok()).expect("a cookie");
    set.split(';').next().unwrap_or_default().to_owned()
}
