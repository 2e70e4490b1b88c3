//! Several users on one address: nobody reaches what is another's.

use rmcp::model::{CallToolRequestParams, GetTaskParams};
use serde_json::{Value, json};
use steprail_engine::Principal;
use tokio_util::sync::CancellationToken;

use super::support::{House, call, facts, principal, verdict};

/// Serves a house over HTTP: a token is a user's name.
async fn address(house: &House) -> String {
    let identify = |request: &axum::extract::Request| {
        let name = request.headers().get("authorization")?.to_str().ok()?.strip_prefix("Bearer ")?;
        Some(principal(name))
    };
    let app = steprail_mcp::router(
        &house.server,
        identify,
        steprail_mcp::Hosts::ThisMachine,
        CancellationToken::new(),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn post(url: &str, user: Option<&str>, session: Option<&str>, body: &Value) -> reqwest::RequestBuilder {
    let mut request =
        reqwest::Client::new().post(url).header("accept", "application/json, text/event-stream");
    request = request.header("content-type", "application/json").body(body.to_string());
    if let Some(user) = user {
        request = request.header("authorization", format!("Bearer {user}"));
    }
    match session {
        Some(session) => {
            request.header("mcp-session-id", session).header("mcp-protocol-version", "2025-11-25")
        }
        None => request,
    }
}

#[tokio::test]
async fn a_session_belongs_to_its_user() {
    let house = House::new();
    let url = address(&house).await;
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } });
    let nobody = post(&url, None, None, &hello).send().await.expect("an answer");
    assert_eq!(nobody.status(), 401);
    assert_eq!(nobody.headers()["www-authenticate"], "Bearer realm=\"steprail\"");
    let begun = post(&url, Some("starter"), None, &hello).send().await.expect("an answer");
    let session = begun.headers()["mcp-session-id"].to_str().expect("text").to_owned();
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
    let own = post(&url, Some("starter"), Some(&session), &list).send().await.expect("an answer");
    assert_eq!(own.status(), 200);
    let other = post(&url, Some("runner"), Some(&session), &list).send().await.expect("an answer");
    assert_eq!(other.status(), 404, "whoever has the id is not its user");
    let elsewhere = reqwest::Client::new().get(url.replace("/mcp", "/.well-known/oauth-protected-resource"));
    let elsewhere = elsewhere.header("authorization", "Bearer starter").send().await.expect("an answer");
    assert_eq!(elsewhere.status(), 404);
    let page = post(&url, Some("starter"), Some(&session), &list).header("origin", "https://evil.example");
    assert_eq!(page.send().await.expect("an answer").status(), 403, "no page of another origin");
}

#[tokio::test]
async fn a_run_is_seen_by_those_who_may() {
    let house = House::new();
    let run = house.waiting_run().await.to_string();
    for (user, expected) in [("starter", "ok"), ("runner", "not_found"), ("viewer", "ok"), ("admin", "ok")] {
        let client = house.client(user).await;
        assert_eq!(
            verdict(&call(&client, "workflow_status", json!({ "run_id": run })).await),
            expected,
            "{user}"
        );
    }
    let runner = house.client("runner").await;
    assert_eq!(facts(&call(&runner, "workflow_list_runs", json!({})).await)["runs"], json!([]));
}

#[tokio::test]
async fn a_grant_that_is_taken_away_is_gone_at_once() {
    let house = House::new();
    let client = house.client("starter").await;
    let spec = json!({ "spec_yaml": "name: hello\nsteps: [{ id: read, tool: crm__read }]" });
    assert_eq!(verdict(&call(&client, "workflow_start", spec.clone()).await), "ok");
    house.access.revoke("starter");
    assert_eq!(verdict(&call(&client, "workflow_start", spec).await), "denied");
    assert!(client.list_all_tools().await.expect("tools").is_empty());
}

/// Tasks are runs: the same eyes, the same hands.
#[tokio::test]
async fn a_task_is_its_users() {
    use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, ProtocolVersion};
    use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _};

    let house = House::new();
    let today = async |name: &str| {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(ours);
        tokio::spawn(house.server.for_user(Principal::user(name)).serve(read, write));
        let knows_tasks = ClientCapabilities::builder().enable_tasks().build();
        let config = ClientConfig::new(knows_tasks, Implementation::new("t", "1"));
        let lifecycle =
            ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
        config.serve_with_lifecycle(theirs, lifecycle).await.expect("a client")
    };
    let starter = today("starter").await;
    let start = CallToolRequestParams::new("workflow_start");
    let spec = json!({ "spec_yaml": "name: slow\nsteps: [{ id: slow, tool: crm__slow }]", "wait_s": 0 });
    let answered =
        starter.call_tool_once(start.with_arguments(spec.as_object().cloned().expect("a map"))).await;
    let rmcp::model::CallToolResponse::Task(created) = answered.expect("an answer") else {
        panic!("no task")
    };
    let id = created.task.task_id;
    let runner = today("runner").await;
    assert!(runner.get_task(GetTaskParams::new(id.clone())).await.is_err(), "another's task is not there");
    let working = starter.get_task(GetTaskParams::new(id.clone())).await.expect("a task");
    assert_eq!(serde_json::to_value(&working).expect("JSON")["status"], "working");
    starter.cancel_task(rmcp::model::CancelTaskParams::new(id.clone())).await.expect("cancelled");
    let ended = starter.get_task(GetTaskParams::new(id)).await.expect("a task");
    assert_eq!(serde_json::to_value(&ended).expect("JSON")["status"], "cancelled");
}
