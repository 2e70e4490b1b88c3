//! Attacks with narrow tokens, and what the revocation of a token, right or user ends.

use futures::StreamExt;
use serde_json::{Value, json};
use steprail_engine::{Right, TokenScope};

use super::{Browser, TestServer, request};
use crate::accounts::{DAY_MS, Role};

fn crm_read() -> TokenScope {
    TokenScope { may: Some([Right::Workflow].into()), tools: Some(vec!["crm__read".to_owned()]) }
}

#[tokio::test(flavor = "multi_thread")]
async fn narrow_token_reads_signals_and_follows_nothing_outside_its_scope() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let narrow = server.token("ann", true, Some(crm_read())).await;
    let (outside, _) = server.start_gated_run(&ann).await;
    let (own, _) = server.start_gated_run(&narrow).await;
    for suffix in ["", "/events", "/stream"] {
        let path = format!("/api/v1/runs/{outside}{suffix}");
        assert_eq!(server.call(&narrow, "GET", &path, &Value::Null).await.0, 404, "{path}");
    }
    for path in ["/api/v1/runs", "/api/v1/audit", "/api/v1/approvals", "/api/workflows"] {
        let list = server.call_ok(&narrow, "GET", path, &Value::Null).await.to_string();
        assert!(list.contains(&own) && !list.contains(&outside), "{path}: {list}");
    }
    let signal = json!({ "event": "paid" });
    let path = format!("/api/v1/runs/{outside}/signal");
    assert_eq!(server.call(&narrow, "POST", &path, &signal).await.0, 404);
    assert_eq!(server.call(&narrow, "POST", "/api/v1/signals", &signal).await.0, 403);
    let stream = server.send(request(&narrow, "GET", "/api/v1/stream?after=start", &Value::Null)).await;
    let mut chunks = stream.into_body().into_data_stream();
    let mut seen = String::new();
    while !seen.contains(&own) {
        seen.push_str(&String::from_utf8_lossy(&chunks.next().await.expect("more").expect("a chunk")));
    }
    assert!(!seen.contains(&outside), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn narrow_token_gets_no_cached_result() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let narrow = server.token("ann", true, Some(crm_read())).await;
    let text = "name: k\nsteps: [{ id: pay, tool: crm__write, args: { n: 1 }, idempotency_key: k, idempotency_scope: global }]";
    let run = json!({ "text": text, "wait_s": 10 });
    assert_eq!(server.call_ok(&ann, "POST", "/api/v1/runs", &run).await["status"], "completed");
    let reply = server.call_ok(&narrow, "POST", "/api/v1/runs", &run).await;
    assert_eq!(
        (&reply["status"], &reply["error"]["kind"]),
        (&json!("failed"), &json!("permission")),
        "{reply}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule_of_a_revoked_token_ends_at_once() {
    let server = TestServer::new();
    let admin = server.user("adam", Role::Admin).await;
    let ann = server.user("ann", Role::Author).await;
    server.call_ok(&ann, "POST", "/api/v1/definitions", &json!({ "text": super::GATED })).await;
    let second = server.token("ann", true, None).await;
    let schedule = json!({ "definition": "gated", "cron": "0 8 * * *" });
    server.call_ok(&ann, "PUT", "/api/v1/schedules/kept", &schedule).await;
    server.call_ok(&second, "PUT", "/api/v1/schedules/ended", &schedule).await;
    let due = async || {
        let list = server.call_ok(&admin, "GET", "/api/v1/schedules", &Value::Null).await;
        let due =
            |item: &Value| (item["name"].clone(), item["due_at"].is_string(), item["last"]["error"].clone());
        list["items"].as_array().expect("a list").iter().map(due).collect::<Vec<_>>()
    };
    server.call_ok(&admin, "DELETE", &format!("/api/v1/tokens/{}", &second[3..19]), &Value::Null).await;
    let reason = json!(
        "ended: the token that created the schedule was revoked; store the schedule again to continue it"
    );
    assert_eq!(due().await, [(json!("ended"), false, reason), (json!("kept"), true, Value::Null)]);
    server.call_ok(&admin, "DELETE", "/api/v1/users/ann", &Value::Null).await;
    assert!(due().await.iter().all(|(_, is_due, _)| !is_due), "the user was deleted");
    server.clock.advance(2 * DAY_MS);
    server.app.engine.ready().await.expect("an engine");
    let runs =
        server.call_ok(&server.token("adam", false, None).await, "GET", "/api/v1/runs", &Value::Null).await;
    assert_eq!(runs["items"], json!([]), "nothing was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn id_of_a_deleted_user_is_never_used_again() {
    let server = TestServer::new();
    let admin = server.user("adam", Role::Admin).await;
    server.user("ann", Role::Author).await;
    server.call_ok(&admin, "DELETE", "/api/v1/users/ann", &Value::Null).await;
    let (status, reply) =
        server.call(&admin, "PUT", "/api/v1/users/ann", &json!({ "roles": ["admin"] })).await;
    assert_eq!(status, 409, "{reply}");
    assert!(reply["detail"].as_str().is_some_and(|detail| detail.contains("never used again")), "{reply}");
    let users = server.call_ok(&admin, "GET", "/api/v1/users", &Value::Null).await.to_string();
    assert!(!users.contains("ann"), "a deleted user is not listed: {users}");
    let known = crate::accounts::UserRecord::default();
    assert!(
        server.app.accounts.by_provider("ann", known).await.is_err(),
        "not by the identity provider, either"
    );
    assert_eq!(server.call(&admin, "DELETE", "/api/v1/users/ann", &Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn revocation_ends_streams_and_browser_sessions_at_once() {
    let server = TestServer::new();
    let admin = server.user("adam", Role::Admin).await;
    let ann = server.user("ann", Role::Operator).await;
    let (run, _) = server.start_gated_run(&ann).await;
    let browser = Browser::of(&server, &ann).await;
    let mut streams = Vec::new();
    for path in ["/api/v1/stream".to_owned(), format!("/api/v1/runs/{run}/stream")] {
        streams.push(server.send(request(&ann, "GET", &path, &Value::Null)).await);
        streams.push(server.send(browser.request("GET", &path, &Value::Null)).await);
    }
    server.call_ok(&admin, "DELETE", &format!("/api/v1/tokens/{}", &ann[3..19]), &Value::Null).await;
    for stream in streams {
        assert_eq!(stream.status(), 200);
        let mut chunks = stream.into_body().into_data_stream();
        while chunks.next().await.is_some() {}
    }
    assert_eq!(server.send(browser.request("GET", "/api/v1/me", &Value::Null)).await.status(), 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_of_a_run_ends_when_the_right_to_view_is_revoked() {
    let server = TestServer::new();
    let admin = server.user("adam", Role::Admin).await;
    let (run, _) = server.start_gated_run(&admin).await;
    let vera = server.user("vera", Role::Viewer).await;
    let stream =
        server.send(request(&vera, "GET", &format!("/api/v1/runs/{run}/stream"), &Value::Null)).await;
    server.call_ok(&admin, "PUT", "/api/v1/users/vera", &json!({ "roles": ["author"] })).await;
    let mut chunks = stream.into_body().into_data_stream();
    while chunks.next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_session_belongs_to_the_token_that_opened_it() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let narrow = server.token("ann", true, Some(crm_read())).await;
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } });
    let accept = |request| super::with(request, "accept", "application/json, text/event-stream");
    let response = server.send(accept(request(&ann, "POST", "/mcp", &initialize))).await;
    let session = response.headers()["mcp-session-id"].to_str().expect("text").to_owned();
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
    let call = |token: &str| {
        let request = accept(request(token, "POST", "/mcp", &list));
        server.send(super::with(request, "mcp-session-id", &session))
    };
    assert_eq!(call(&ann).await.status(), 200);
    assert_eq!(call(&narrow).await.status(), 404, "another token of the same user");
}
