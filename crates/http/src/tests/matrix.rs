//! The access matrix: the status of every route for every kind of caller.

use std::fmt::Write;

use serde_json::{Value, json};
use steprail_engine::Right;

use super::TestServer;
use crate::accounts::Role;
use crate::openapi;

/// The body of a request. `DIGEST` stands for the digest of the open approval.
fn body(method: &str, path: &str) -> Value {
    match (method, path) {
        ("post", "/api/v1/definitions" | "/api/v1/definitions/validate") => {
            json!({ "text": "name: other\nsteps: [{ id: r, tool: crm__read }]" })
        }
        ("put", "/api/v1/definitions/{name}/published") => json!({ "published": false }),
        ("post", "/api/v1/proposals/{name}/accept" | "/api/v1/proposals/{name}/reject") => {
            json!({ "digest": "DIGEST" })
        }
        ("post", "/api/v1/runs" | "/api/workflows" | "/api/workflow") => json!({ "name": "gated" }),
        ("post", "/api/v1/runs/{run_id}/intervene" | "/api/workflows/{run_id}/intervene") => {
            json!({ "action": "set_inputs", "value": {} })
        }
        ("post", "/api/v1/runs/{run_id}/signal" | "/api/v1/signals") => json!({ "event": "paid" }),
        (
            "post",
            "/api/v1/runs/{run_id}/approve" | "/api/v1/runs/{run_id}/deny" | "/api/v1/runs/{run_id}/codes",
        ) => {
            json!({ "step": "ask", "digest": "DIGEST" })
        }
        ("post", "/api/v1/policy/explain") => json!({ "tool": "demo__echo", "user": "someone" }),
        ("put", "/api/v1/policy/freeze") => json!({ "reason": "an incident" }),
        ("put", "/api/v1/schedules/{name}") => json!({ "definition": "gated", "cron": "0 8 * * *" }),
        ("post", "/api/workflows/recurring") => {
            json!({ "name": "s", "definition": "gated", "cron": "0 8 * * *" })
        }
        ("put", "/api/v1/users/{id}" | "/api/v1/groups/{id}") => json!({ "roles": ["viewer"] }),
        ("post", "/api/v1/notifications/test") => json!({}),
        ("put", "/api/v1/presence/pin") => json!({ "pin": "314159" }),
        ("post", "/api/v1/presence/totp/confirm") => json!({ "code": "000000" }),
        ("post", "/api/v1/me/passkeys/finish") => json!({ "name": "key", "credential": {} }),
        ("post", "/api/v1/me/presence/challenge") => {
            json!({ "method": "DELETE", "path": "/api/v1/tokens/0123456789abcdef" })
        }
        ("post", "/api/v1/tokens") => json!({ "name": "t" }),
        ("put", "/api/v1/secrets/{name}") => json!({ "value": "s3cret" }),
        ("post", "/api/v1/servers/{name}/login") => json!({ "redirect_uri": "http://127.0.0.1:9/callback" }),
        ("post", "/api/v1/servers/{name}/login/finish") => {
            json!({ "redirect_url": "http://127.0.0.1:9/?state=1" })
        }
        _ => Value::Null,
    }
}

/// The path with its parameters replaced.
pub(super) fn with_parameters(path: &str, run: &str) -> String {
    let path = path.replace("{run_id}", run).replace("{version}", "1");
    let path = match &*path {
        "/api/workflow/{id}/ready" => format!("/api/workflow/{run}:1:1/ready"),
        "/api/workflow/{id}" => format!("/api/workflow/{run}"),
        "/api/v1/users/{id}" => "/api/v1/users/bob".to_owned(),
        "/api/v1/users/{id}/presence" => "/api/v1/users/bob/presence".to_owned(),
        "/api/v1/me/passkeys/{id}" => "/api/v1/me/passkeys/0123456789abcdef".to_owned(),
        "/api/v1/groups/{id}" => "/api/v1/groups/ops".to_owned(),
        "/api/v1/tokens/{id}" => "/api/v1/tokens/0123456789abcdef".to_owned(),
        "/api/v1/servers/{name}/restart" => "/api/v1/servers/none/restart".to_owned(),
        other => other.to_owned(),
    };
    path.replace("{name}", "gated").replace("{delivery}", "1")
}

/// A server where ann, an author, has a definition, a schedule and a run at a gate. Returns the run and its digest.
async fn server_with_gated_run() -> (TestServer, String, String) {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    server.call_ok(&ann, "POST", "/api/v1/definitions", &json!({ "text": super::GATED })).await;
    let schedule = json!({ "definition": "gated", "cron": "0 8 * * *" });
    server.call_ok(&ann, "PUT", "/api/v1/schedules/gated", &schedule).await;
    let (run, digest) = server.start_gated_run(&ann).await;
    (server, run, digest)
}

/// The token of a caller.
async fn token(server: &TestServer, caller: &str) -> String {
    match caller {
        "no token" => String::new(),
        "forged" => "sr_0123456789abcdef_".to_owned() + &"0".repeat(64),
        "ann" => server.token("ann", false, None).await,
        "ann's agent" => server.token("ann", true, None).await,
        "author" => server.user("carl", Role::Author).await,
        "viewer" => server.user("vera", Role::Viewer).await,
        "approver" => server.user("paul", Role::Approver).await,
        "operator" => server.user("olga", Role::Operator).await,
        "admin" => server.user("adam", Role::Admin).await,
        "admin's agent" => {
            server.user("adam", Role::Admin).await;
            server.token("adam", true, None).await
        }
        "admin, view" => {
            server.user("adam", Role::Admin).await;
            server.scoped_token("adam", Right::View).await
        }
        other => panic!("unknown caller {other}"),
    }
}

const CALLERS: [&str; 11] = [
    "no token",
    "forged",
    "ann",
    "ann's agent",
    "author",
    "viewer",
    "approver",
    "operator",
    "admin",
    "admin's agent",
    "admin, view",
];

#[tokio::test(flavor = "multi_thread")]
async fn access_matrix() {
    let document = openapi();
    let mut table = format!("{:<58}{}\n", "", CALLERS.map(|caller| format!("{caller:<15}")).concat());
    let paths = document["paths"].as_object().expect("paths");
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys().filter(|_| !path.ends_with("/stream")) {
            let mut row = format!("{:<58}", format!("{} {path}", method.to_uppercase()));
            for caller in CALLERS {
                // A new server for each request, because requests change state.
                let (server, run, digest) = server_with_gated_run().await;
                let token = token(&server, caller).await;
                let body: Value =
                    serde_json::from_str(&body(method, path).to_string().replace("DIGEST", &digest))
                        .expect("JSON");
                let (status, reply) =
                    server.call(&token, &method.to_uppercase(), &with_parameters(path, &run), &body).await;
                let problem = Some(&reply).filter(|_| status >= 400);
                let code = problem.and_then(|problem| problem["code"].as_str());
                let code = code.map(|code| format!(" {code}")).unwrap_or_default();
                write!(row, "{:<15}", shortened(&format!("{status}{code}"))).expect("text");
            }
            table.push_str(row.trim_end());
            table.push('\n');
        }
    }
    insta::assert_snapshot!(table);
}

fn shortened(text: &str) -> String {
    text.replace("unauthenticated", "unknown").chars().take(14).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_others_are_hidden_without_the_right_to_view() {
    let (server, run, _) = server_with_gated_run().await;
    let carl = token(&server, "author").await;
    let suffixes = ["", "/steps", "/events", "/stream"];
    for path in suffixes.map(|suffix| format!("/api/v1/runs/{run}{suffix}")) {
        assert_eq!(server.call(&carl, "GET", &path, &Value::Null).await.0, 404, "{path}");
    }
    for path in
        ["/api/v1/runs", "/api/v1/runs?user=ann", "/api/v1/audit", "/api/v1/approvals", "/api/workflows"]
    {
        let list = server.call_ok(&carl, "GET", path, &Value::Null).await;
        assert_eq!(list["items"], json!([]), "{path}");
    }
    let vera = token(&server, "viewer").await;
    let list = server.call_ok(&vera, "GET", "/api/v1/runs", &Value::Null).await;
    assert_eq!(list["items"].as_array().expect("a list").len(), 1, "{list}");
}
