//! Presence: factors are set, verified and locked out; decisions and account changes without them are refused.

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use serde_json::{Value, json};
use steprail_engine::{Cursor, Presence};
use tower::ServiceExt;

use super::{Browser, TestServer, json_body, request, with};
use crate::accounts::{Role, code_at};
use crate::peer::Peer;

const HEADER: &str = "x-steprail-presence";
const PIN: &str = "314159";

fn prove(request: Request<Body>, proof: &str) -> Request<Body> {
    with(request, HEADER, proof)
}

/// The status and the code of the problem of a request.
async fn outcome(server: &TestServer, request: Request<Body>) -> (u16, String) {
    let response = server.send(request).await;
    let status = response.status().as_u16();
    (status, json_body(response).await["code"].as_str().unwrap_or_default().to_owned())
}

async fn set_pin(server: &TestServer, token: &str) {
    server.call_ok(token, "PUT", "/api/v1/presence/pin", &json!({ "pin": PIN })).await;
}

/// The administrative actions of a type.
async fn actions(server: &TestServer, name: &str) -> Vec<Value> {
    let actions = server.app.engine.registry().actions(Cursor::START, 1_000).await.expect("actions").events;
    let actions = actions.iter().filter(|stored| stored.event.action.name() == name);
    actions.map(|stored| json!(stored.event)).collect()
}

/// A server that needs a PIN, with a run of `ann` that waits, and its decision.
async fn waiting() -> (TestServer, String, Value) {
    let server = TestServer::with_presence(Presence::Pin);
    let ann = server.user("ann", Role::Author).await;
    let (run, digest) = server.start_gated_run(&ann).await;
    (server, run, json!({ "step": "ask", "digest": digest }))
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_needs_the_pin_and_the_log_states_it() {
    let (server, run, decision) = waiting().await;
    let paul = server.user("paul", Role::Approver).await;
    let path = format!("/api/v1/runs/{run}/approve");
    let approve = || request(&paul, "POST", &path, &decision);
    let (status, reply) = server.call(&paul, "POST", &path, &decision).await;
    assert_eq!(
        (status, &reply["code"], &reply["presence"]),
        (403, &json!("presence_required"), &json!("pin"))
    );
    assert!(reply["hint"].as_str().is_some_and(|hint| hint.contains("X-Steprail-Presence: pin")), "{reply}");
    assert_eq!(actions(&server, "decision_rejected").await.len(), 1);
    let not_set = outcome(&server, prove(approve(), "pin 314159")).await;
    assert_eq!(not_set, (403, "presence_not_set".to_owned()));
    set_pin(&server, &paul).await;
    assert_eq!(outcome(&server, prove(approve(), "314159")).await, (400, "bad_input".to_owned()));
    assert_eq!(outcome(&server, prove(approve(), "pin 314158")).await, (403, "presence_rejected".to_owned()));
    let agent = server.token("paul", true, None).await;
    let by_agent = prove(request(&agent, "POST", &path, &decision), "pin 314159");
    assert_eq!(outcome(&server, by_agent).await, (403, "denied".to_owned()), "an agent cannot prove it");
    assert_eq!(outcome(&server, prove(approve(), "pin 314159")).await.0, 200);
    let events = server.call_ok(&paul, "GET", &format!("/api/v1/runs/{run}/events"), &Value::Null).await;
    let decided = events["items"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|event| event["event"]["type"] == "approval_granted");
    let provenance = &decided.expect("a decision")["event"]["provenance"];
    assert_eq!(
        (&provenance["surface"], &provenance["presence"]),
        (&json!("rest"), &json!("pin")),
        "{events}"
    );
    assert!(!events.to_string().contains(PIN));
    let rows = actions(&server, "presence_rejected").await;
    assert_eq!(rows.len(), 1, "{rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_pins_lock_out_and_the_lockout_is_durable() {
    let (server, run, decision) = waiting().await;
    let paul = server.user("paul", Role::Approver).await;
    set_pin(&server, &paul).await;
    let path = format!("/api/v1/runs/{run}/approve");
    let attempt =
        |proof: &'static str| outcome(&server, prove(request(&paul, "POST", &path, &decision), proof));
    for _ in 0..5 {
        assert_eq!(attempt("pin 000000").await, (403, "presence_rejected".to_owned()));
    }
    assert_eq!(
        attempt("pin 314159").await,
        (429, "too_many_attempts".to_owned()),
        "the right one is refused, too"
    );
    let rows = actions(&server, "presence_rejected").await;
    assert_eq!((rows.len(), &rows[4]["locked"]), (5, &json!(true)), "{rows:?}");
    let stored = server.app.accounts.presence_of("paul");
    assert!(format!("{stored:?}").contains("failures: 5"), "in the row of the user: {stored:?}");
    server.clock.advance(60_000);
    assert_eq!(attempt("pin 000000").await.0, 403);
    server.clock.advance(60_000);
    assert_eq!(attempt("pin 314159").await.0, 429, "the next lockout is longer");
    server.clock.advance(60_000);
    assert_eq!(attempt("pin 314159").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_guesses_do_not_exceed_the_limit() {
    let (server, run, decision) = waiting().await;
    let paul = server.user("paul", Role::Approver).await;
    set_pin(&server, &paul).await;
    let path = format!("/api/v1/runs/{run}/approve");
    let guess =
        |n: u32| outcome(&server, prove(request(&paul, "POST", &path, &decision), &format!("pin {n:06}")));
    let outcomes = futures::future::join_all((0..20).map(guess)).await;
    let checked = outcomes.iter().filter(|(status, _)| *status == 403).count();
    assert_eq!(checked, 5, "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_time_code_works_once() {
    let (server, run, decision) = waiting().await;
    let paul = server.user("paul", Role::Approver).await;
    let new = server.call_ok(&paul, "POST", "/api/v1/presence/totp", &json!({})).await;
    let secret = new["secret"].as_str().expect("a secret").to_owned();
    assert!(new["uri"].as_str().is_some_and(|uri| uri.starts_with("otpauth://totp/Steprail:paul?secret=")));
    let code = |server: &TestServer| code_at(&secret, server.app.engine.now());
    let confirm = |code: String| json!({ "code": code });
    let wrong = server.call(&paul, "POST", "/api/v1/presence/totp/confirm", &confirm("x".to_owned())).await;
    assert_eq!(wrong.0, 400);
    let repeated = server.call(&paul, "POST", "/api/v1/presence/totp/confirm", &confirm(code(&server))).await;
    assert_eq!(repeated.0, 409, "a wrong code ends the enrollment");
    let new = server.call_ok(&paul, "POST", "/api/v1/presence/totp", &json!({})).await;
    let secret = new["secret"].as_str().expect("a secret").to_owned();
    let code = |server: &TestServer| code_at(&secret, server.app.engine.now());
    server.call_ok(&paul, "POST", "/api/v1/presence/totp/confirm", &confirm(code(&server))).await;
    let path = format!("/api/v1/runs/{run}/approve");
    let attempt = |code: String| {
        outcome(&server, prove(request(&paul, "POST", &path, &decision), &format!("totp {code}")))
    };
    assert_eq!(attempt(code(&server)).await, (403, "presence_rejected".to_owned()), "used by the enrollment");
    server.clock.advance(30_000);
    let current = code(&server);
    let stale = prove(
        request(&paul, "POST", &path, &json!({ "step": "ask", "digest": "0".repeat(64) })),
        &format!("totp {current}"),
    );
    assert_eq!(outcome(&server, stale).await.0, 409);
    assert_eq!(
        attempt(current).await,
        (403, "presence_rejected".to_owned()),
        "a code is used up by any request"
    );
    server.clock.advance(30_000);
    assert_eq!(attempt(code(&server)).await.0, 200, "a one-time code satisfies a PIN");
}

#[tokio::test(flavor = "multi_thread")]
async fn account_changes_need_the_factor() {
    let server = TestServer::with_presence(Presence::Pin);
    let admin = server.user("adam", Role::Admin).await;
    set_pin(&server, &admin).await;
    let changes = [
        ("POST", "/api/v1/tokens", json!({ "name": "t", "agent": false })),
        ("DELETE", "/api/v1/tokens/0123456789abcdef", Value::Null),
        ("PUT", "/api/v1/users/eve", json!({ "roles": ["admin"] })),
        ("DELETE", "/api/v1/users/eve", Value::Null),
        ("PUT", "/api/v1/groups/g", json!({ "roles": ["admin"] })),
        ("DELETE", "/api/v1/groups/g", Value::Null),
        ("DELETE", "/api/v1/policy/freeze", Value::Null),
        ("DELETE", "/api/v1/users/owner/presence", Value::Null),
        ("POST", "/api/v1/definitions", json!({ "text": super::GATED })),
        ("PUT", "/api/v1/definitions/gated/published", json!({ "published": true })),
        ("DELETE", "/api/v1/definitions/gated", Value::Null),
        ("PUT", "/api/v1/secrets/key", json!({ "value": "a secret", "shared": true })),
        ("DELETE", "/api/v1/secrets/key?shared=true", Value::Null),
        ("POST", "/api/v1/definitions/x/adopt", Value::Null),
        ("POST", "/api/v1/proposals/x/accept", json!({ "digest": "0".repeat(64) })),
        ("POST", "/api/v1/proposals/x/reject", json!({ "digest": "0".repeat(64) })),
        ("PUT", "/api/v1/presence/pin", json!({ "pin": "271828" })),
        ("POST", "/api/v1/presence/totp", json!({})),
    ];
    for (method, path, body) in changes {
        let refused = outcome(&server, request(&admin, method, path, &body)).await;
        assert_eq!(refused, (403, "presence_required".to_owned()), "{method} {path}");
        let (status, code) =
            outcome(&server, prove(request(&admin, method, path, &body), "pin 314159")).await;
        assert_ne!(code, "presence_required", "{method} {path}: {status}");
        if (method, path) == ("PUT", "/api/v1/presence/pin") {
            let restored = prove(request(&admin, method, path, &json!({ "pin": PIN })), "pin 271828");
            assert_eq!(outcome(&server, restored).await.0, 204);
        }
    }
    let freeze = request(&admin, "PUT", "/api/v1/policy/freeze", &json!({}));
    assert_ne!(outcome(&server, freeze).await.1, "presence_required", "an emergency stop needs no factor");
    let listed = server.call_ok(&admin, "GET", "/api/v1/users", &Value::Null).await.to_string();
    assert!(!listed.contains("pbkdf2") && !listed.contains("\"owner\""), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_keeps_every_right_after_setting_a_pin() {
    let server = TestServer::with_presence(Presence::Pin);
    server.app.accounts.set_pin(&server.owner(), PIN.to_owned()).await.expect("set");
    assert_eq!(actions(&server, "presence_enrolled").await.len(), 1);
    assert!(server.owner().may(steprail_engine::Right::Manage));
    let token = server.user("eve", Role::Viewer).await;
    assert_eq!(server.call(&token, "GET", "/api/v1/me", &Value::Null).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_and_socket_prove_presence_per_request() {
    let (server, run, decision) = waiting().await;
    let paul = server.user("paul", Role::Approver).await;
    set_pin(&server, &paul).await;
    let browser = Browser::of(&server, &paul).await;
    let path = format!("/api/v1/runs/{run}/approve");
    let me = prove(browser.request("GET", "/api/v1/me", &Value::Null), "pin 314159");
    assert_eq!(server.send(me).await.status(), 200);
    let later = outcome(&server, browser.request("POST", &path, &decision)).await;
    assert_eq!(later, (403, "presence_required".to_owned()), "a proof does not last");
    let now = prove(browser.request("POST", &path, &decision), "pin 314159");
    assert_eq!(outcome(&server, now).await.0, 200);
}

/// Calls a tool over MCP. Returns the result.
async fn call_tool(server: &TestServer, token: &str, name: &str, args: &Value) -> Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "name": name, "arguments": args, "_meta": meta });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let mut call = request(token, "POST", "/mcp", &body);
    for (name, value) in [
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
    ] {
        call = with(call, name, value);
    }
    let reply = json_body(server.send(with(call, "mcp-name", name)).await).await;
    let text = reply.as_str().map_or_else(|| reply.to_string(), str::to_owned);
    let messages = text.lines().map(|line| line.strip_prefix("data:").unwrap_or(line));
    let parsed = messages.filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok());
    parsed.into_iter().find(|message| message["id"] == 1).unwrap_or_else(|| panic!("{text}"))["result"]
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn code_of_the_page_decides_over_mcp() {
    let (server, run, decision) = waiting().await;
    let paul = server.user("paul", Role::Approver).await;
    set_pin(&server, &paul).await;
    let agent = server.token("paul", true, None).await;
    let codes = format!("/api/v1/runs/{run}/codes");
    assert_eq!(server.call(&agent, "POST", &codes, &decision).await.0, 403, "an agent gets no code");
    let (status, reply) = server.call(&paul, "POST", &codes, &decision).await;
    assert_eq!((status, &reply["code"]), (403, &json!("presence_required")));
    let browser = Browser::of(&server, &paul).await;
    let issued = prove(browser.request("POST", &codes, &decision), "pin 314159");
    let issued = json_body(server.send(issued).await).await;
    let code = issued["code"].as_str().expect("a code").to_owned();
    let args = |code: &str| json!({ "run_id": run, "step_name": "ask", "code": code });
    let wrong = call_tool(&server, &agent, "workflow_approve", &args("0000-0000")).await;
    assert_eq!(wrong["structuredContent"]["error"]["code"], "denied", "{wrong}");
    let missing =
        call_tool(&server, &agent, "workflow_approve", &json!({ "run_id": run, "step_name": "ask" })).await;
    assert_eq!(missing["structuredContent"]["error"]["code"], "code_required", "{missing}");
    for refused in [&wrong, &missing] {
        let text = refused.to_string();
        assert!(!text.contains(&code) && !text.contains("steprail approv"), "{text}");
    }
    let done = call_tool(&server, &agent, "workflow_approve", &args(&code)).await;
    assert_eq!(done["structuredContent"]["decision"], "approved", "{done}");
    let replayed = call_tool(&server, &agent, "workflow_approve", &args(&code)).await;
    assert_eq!(replayed["structuredContent"]["error"]["code"], "denied", "{replayed}");
    assert_eq!(actions(&server, "code_rejected").await.len(), 2);
    let events = server.call_ok(&paul, "GET", &format!("/api/v1/runs/{run}/events"), &Value::Null).await;
    let decided = events["items"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|event| event["event"]["type"] == "approval_granted");
    let data = &decided.expect("a decision")["event"];
    assert_eq!(data["by"], "paul", "{data}");
    let provenance = &data["provenance"];
    assert_eq!(
        (&provenance["surface"], &provenance["code"], &provenance["presence"]),
        (&json!("mcp"), &json!(true), &json!("pin"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn enrollment_that_began_before_a_factor_was_set_needs_the_factor() {
    let server = TestServer::with_presence(Presence::Pin);
    let paul = server.user("paul", Role::Approver).await;
    let begin = || request(&paul, "POST", "/api/v1/presence/totp", &json!({}));
    let secret = |reply: Value| reply["secret"].as_str().expect("a secret").to_owned();
    let confirm = |secret: &str| {
        let code = json!({ "code": code_at(secret, server.app.engine.now()) });
        request(&paul, "POST", "/api/v1/presence/totp/confirm", &code)
    };
    let early = secret(json_body(server.send(begin()).await).await);
    set_pin(&server, &paul).await;
    assert_eq!(outcome(&server, confirm(&early)).await, (403, "presence_required".to_owned()));
    let proved = outcome(&server, prove(confirm(&early), "pin 314159")).await;
    assert_eq!(proved, (409, "conflict".to_owned()), "the PIN ended the enrollment");
    let later = secret(json_body(server.send(prove(begin(), "pin 314159")).await).await);
    assert_eq!(outcome(&server, confirm(&later)).await, (403, "presence_required".to_owned()));
    assert_eq!(outcome(&server, prove(confirm(&later), "pin 314159")).await.0, 204);
    assert_eq!(actions(&server, "presence_enrolled").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_two_first_pins_is_set() {
    let server = TestServer::with_presence(Presence::Pin);
    let paul = server.user("paul", Role::Approver).await;
    let set = |pin: &'static str| {
        outcome(&server, request(&paul, "PUT", "/api/v1/presence/pin", &json!({ "pin": pin })))
    };
    let mut outcomes: Vec<u16> = futures::future::join_all(["314159", "271828"].map(set))
        .await
        .iter()
        .map(|(status, _)| *status)
        .collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, [204, 403]);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_changes_definitions_without_the_factor() {
    let server = TestServer::with_presence(Presence::Pin);
    server.user("ann", Role::Author).await;
    let agent = server.token("ann", true, None).await;
    server.call_ok(&agent, "POST", "/api/v1/definitions", &json!({ "text": super::GATED })).await;
    server.call_ok(&agent, "DELETE", "/api/v1/definitions/gated", &Value::Null).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn socket_refuses_a_peer_whose_process_is_unknown() {
    let server = TestServer::with_presence(Presence::None);
    let mut ended = std::process::Command::new("true").spawn().expect("a process");
    ended.wait().expect("the end");
    let own = std::process::id().cast_signed();
    for (pid, expected) in [(None, 403), (Some(ended.id().cast_signed()), 403), (Some(own), 200)] {
        let mut request = request("", "GET", "/api/v1/me", &Value::Null);
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        request.extensions_mut().insert(ConnectInfo(Peer { ip, os_user: None, is_owner: true, pid }));
        let response = crate::owner_router(&server.app).oneshot(request).await.expect("a response");
        assert_eq!(response.status(), expected, "{pid:?}");
        if expected == 403 {
            assert_eq!(json_body(response).await["code"], "agent_process");
        }
    }
    assert_eq!(actions(&server, "peer_rejected").await.len(), 2);
}
