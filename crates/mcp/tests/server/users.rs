//! Several users on one address: sessions, runs and tasks of one user are hidden from others.

use rmcp::model::{CallToolRequestParams, GetTaskParams};
use serde_json::{Value, json};
use steprail_engine::{Principal, Quotas};
use tokio_util::sync::CancellationToken;

use super::support::{Fixture, call, fields, outcome, principal};

/// Serves a fixture over HTTP, with user names as tokens. Returns its URL.
async fn serve_http(fixture: &Fixture) -> String {
    let identify = |request: &axum::extract::Request| {
        let name = request.headers().get("authorization")?.to_str().ok()?.strip_prefix("Bearer ")?;
        Some(principal(name))
    };
    let app = steprail_mcp::router(
        &fixture.server,
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
async fn session_belongs_to_its_user() {
    let fixture = Fixture::new();
    let url = serve_http(&fixture).await;
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } });
    let anonymous = post(&url, None, None, &hello).send().await.expect("a response");
    assert_eq!(anonymous.status(), 401);
    assert_eq!(anonymous.headers()["www-authenticate"], "Bearer realm=\"steprail\"");
    let initialized = post(&url, Some("starter"), None, &hello).send().await.expect("a response");
    let session = initialized.headers()["mcp-session-id"].to_str().expect("text").to_owned();
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
    let own = post(&url, Some("starter"), Some(&session), &list).send().await.expect("a response");
    assert_eq!(own.status(), 200);
    let other = post(&url, Some("runner"), Some(&session), &list).send().await.expect("a response");
    assert_eq!(other.status(), 404, "the id does not grant access");
    let elsewhere = reqwest::Client::new().get(url.replace("/mcp", "/.well-known/oauth-protected-resource"));
    let elsewhere = elsewhere.header("authorization", "Bearer starter").send().await.expect("a response");
    assert_eq!(elsewhere.status(), 404);
    let page = post(&url, Some("starter"), Some(&session), &list).header("origin", "https://evil.example");
    assert_eq!(page.send().await.expect("a response").status(), 403, "another origin");
}

#[tokio::test]
async fn run_is_visible_with_the_right() {
    let fixture = Fixture::new();
    let run = fixture.waiting_run().await.to_string();
    for (user, expected) in [("starter", "ok"), ("runner", "not_found"), ("viewer", "ok"), ("admin", "ok")] {
        let client = fixture.client(user).await;
        assert_eq!(
            outcome(&call(&client, "workflow_status", json!({ "run_id": run })).await),
            expected,
            "{user}"
        );
    }
    let runner = fixture.client("runner").await;
    assert_eq!(fields(&call(&runner, "workflow_list_runs", json!({})).await)["runs"], json!([]));
}

#[tokio::test]
async fn revoked_grant_applies_at_once() {
    let fixture = Fixture::new();
    let client = fixture.client("starter").await;
    let spec = json!({ "spec_yaml": "name: hello\nsteps: [{ id: read, tool: crm__read }]" });
    assert_eq!(outcome(&call(&client, "workflow_start", spec.clone()).await), "ok");
    fixture.access.revoke("starter");
    assert_eq!(outcome(&call(&client, "workflow_start", spec).await), "denied");
    assert!(client.list_all_tools().await.expect("tools").is_empty());
}

#[tokio::test]
async fn task_is_hidden_from_other_users() {
    use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, ProtocolVersion};
    use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _};

    let fixture = Fixture::new();
    let connect = async |name: &str| {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(ours);
        tokio::spawn(fixture.server.for_user(Principal::user(name)).serve(read, write));
        let capabilities = ClientCapabilities::builder().enable_tasks().build();
        let config = ClientConfig::new(capabilities, Implementation::new("t", "1"));
        let lifecycle =
            ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
        config.serve_with_lifecycle(theirs, lifecycle).await.expect("a client")
    };
    let starter = connect("starter").await;
    let start = CallToolRequestParams::new("workflow_start");
    let spec = json!({ "spec_yaml": "name: slow\nsteps: [{ id: slow, tool: crm__slow }]", "wait_s": 0 });
    let response =
        starter.call_tool_once(start.with_arguments(spec.as_object().cloned().expect("a map"))).await;
    let rmcp::model::CallToolResponse::Task(created) = response.expect("a response") else {
        panic!("no task")
    };
    let id = created.task.task_id;
    let runner = connect("runner").await;
    assert!(runner.get_task(GetTaskParams::new(id.clone())).await.is_err(), "the task of another user");
    let working = starter.get_task(GetTaskParams::new(id.clone())).await.expect("a task");
    assert_eq!(serde_json::to_value(&working).expect("JSON")["status"], "working");
    starter.cancel_task(rmcp::model::CancelTaskParams::new(id.clone())).await.expect("cancelled");
    let ended = starter.get_task(GetTaskParams::new(id)).await.expect("a task");
    assert_eq!(serde_json::to_value(&ended).expect("JSON")["status"], "cancelled");
}

#[tokio::test]
async fn exhausted_quota_is_an_error_with_a_hint() {
    let fixture = Fixture::with_quotas(Quotas { active_runs: Some(1), ..Quotas::default() });
    let client = fixture.client("starter").await;
    let waits = "name: waits\nsteps: [{ id: w, kind: wait, event: go }]";
    let start = || call(&client, "workflow_start", json!({ "spec_yaml": waits, "wait_s": 0 }));
    assert_eq!(outcome(&start().await), "ok");
    let rejected = start().await;
    assert_eq!(outcome(&rejected), "quota_exceeded");
    let hint = fields(&rejected)["error"]["hint"].as_str().expect("a hint").to_owned();
    assert_eq!(hint, "wait until runs end, or cancel some; the operator can raise `quota.active_runs`");
    let other = fixture.client("runner").await;
    assert_eq!(
        outcome(&call(&other, "workflow_start", json!({ "spec_yaml": waits, "wait_s": 0 })).await),
        "ok"
    );
}

#[tokio::test]
async fn a_proposal_waits_for_a_person_and_names_no_command() {
    let fixture = Fixture::new();
    let policy = "{ default: allow, definitions: { by_agents: proposed } }";
    let source = steprail_core::source::Source::new("policy.yaml", policy);
    fixture.engine.policy().replace(steprail_engine::compile_policy(&source).0);
    let client = fixture.client("agent").await;
    let spec = "name: hello\npublish: true\nsteps: [{ id: read, tool: crm__read }]";
    let defined = call(&client, "workflow_define", json!({ "spec_yaml": spec })).await;
    let reply = fields(&defined);
    assert_eq!((&reply["proposed"], &reply["runnable"]), (&json!(true), &json!(false)), "{reply}");
    let text = serde_json::to_string(&defined).expect("JSON");
    assert!(text.contains("a person accepts it") && !text.contains("steprail "), "{text}");
    assert_eq!(outcome(&call(&client, "workflow_start", json!({ "name": "hello" })).await), "not_found");
    let inline = json!({ "spec_yaml": "name: x\nsteps: [{ id: read, tool: crm__read }]" });
    assert_eq!(outcome(&call(&client, "workflow_start", inline).await), "denied");
    let tools = client.list_all_tools().await.expect("tools");
    assert!(tools.iter().all(|tool| tool.name != "wf_hello"), "it is not published");
}
