//! Every route for every kind of user: what each may do, in one table.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Value, json};
use steprail_engine::Right;

use super::House;
use crate::accounts::Role;
use crate::openapi;

/// What stands in the place of a parameter, and what is sent. `RUN` is a run of ann's that waits at a gate.
fn body(method: &str, path: &str) -> Value {
    match (method, path) {
        ("post", "/api/v1/definitions" | "/api/v1/definitions/validate") => {
            json!({ "text": "name: other\nsteps: [{ id: r, tool: crm__read }]" })
        }
        ("put", "/api/v1/definitions/{name}/published") => json!({ "published": false }),
        ("post", "/api/v1/runs" | "/api/workflows" | "/api/workflow") => json!({ "name": "gated" }),
        ("post", "/api/v1/runs/{run_id}/intervene" | "/api/workflows/{run_id}/intervene") => {
            json!({ "action": "set_inputs", "value": {} })
        }
        ("post", "/api/v1/runs/{run_id}/signal" | "/api/v1/signals") => json!({ "event": "paid" }),
        ("post", "/api/v1/runs/{run_id}/approve" | "/api/v1/runs/{run_id}/deny") => {
            json!({ "step": "ask", "digest": "DIGEST" })
        }
        ("put", "/api/v1/schedules/{name}") => json!({ "definition": "gated", "cron": "0 8 * * *" }),
        ("post", "/api/workflows/recurring") => {
            json!({ "name": "s", "definition": "gated", "cron": "0 8 * * *" })
        }
        ("put", "/api/v1/users/{id}" | "/api/v1/groups/{id}") => json!({ "roles": ["viewer"] }),
        ("post", "/api/v1/tokens") => json!({ "name": "t" }),
        ("put", "/api/v1/secrets/{name}") => json!({ "value": "s3cret" }),
        ("post", "/api/v1/servers/{name}/login") => json!({ "redirect_uri": "http://127.0.0.1:9/callback" }),
        ("post", "/api/v1/servers/{name}/login/finish") => {
            json!({ "redirect_url": "http://127.0.0.1:9/?state=1" })
        }
        _ => Value::Null,
    }
}

fn filled(path: &str, run: &str) -> String {
    let path = path.replace("{run_id}", run).replace("{version}", "1");
    let path = match &*path {
        "/api/workflow/{id}/ready" => format!("/api/workflow/{run}:1:1/ready"),
        "/api/workflow/{id}" => format!("/api/workflow/{run}"),
        "/api/v1/users/{id}" => "/api/v1/users/bob".to_owned(),
        "/api/v1/groups/{id}" => "/api/v1/groups/ops".to_owned(),
        "/api/v1/tokens/{id}" => "/api/v1/tokens/0123456789abcdef".to_owned(),
        "/api/v1/servers/{name}/restart" => "/api/v1/servers/none/restart".to_owned(),
        other => other.to_owned(),
    };
    path.replace("{name}", "gated")
}

/// A house in which ann, an author, has a definition and a run at a gate.
async fn furnished() -> (House, String, String) {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    house.done(&ann, "POST", "/api/v1/definitions", &json!({ "text": super::GATED })).await;
    let planned = json!({ "definition": "gated", "cron": "0 8 * * *" });
    house.done(&ann, "PUT", "/api/v1/schedules/gated", &planned).await;
    let (run, digest) = house.gated_run(&ann).await;
    (house, run, digest)
}

/// Who asks: a name for the column, and the token.
async fn token(house: &House, who: &str) -> String {
    match who {
        "nobody" => String::new(),
        "forged" => "sr_0123456789abcdef_".to_owned() + &"0".repeat(64),
        "ann" => house.token("ann", false, None).await,
        "ann's agent" => house.token("ann", true, None).await,
        "author" => house.user("carl", Role::Author).await,
        "viewer" => house.user("vera", Role::Viewer).await,
        "approver" => house.user("paul", Role::Approver).await,
        "operator" => house.user("olga", Role::Operator).await,
        "admin" => house.user("adam", Role::Admin).await,
        "admin's agent" => {
            house.user("adam", Role::Admin).await;
            house.token("adam", true, None).await
        }
        "admin to view" => {
            house.user("adam", Role::Admin).await;
            house.scoped("adam", Right::View).await
        }
        other => panic!("nobody is called {other}"),
    }
}

const WHO: [&str; 11] = [
    "nobody",
    "forged",
    "ann",
    "ann's agent",
    "author",
    "viewer",
    "approver",
    "operator",
    "admin",
    "admin's agent",
    "admin to view",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_route_for_every_kind_of_user() {
    let document = openapi();
    let mut table = format!("{:<58}{}\n", "", WHO.map(|who| format!("{who:<15}")).concat());
    let paths = document["paths"].as_object().expect("paths");
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys().filter(|_| !path.ends_with("/stream")) {
            let mut row = format!("{:<58}", format!("{} {path}", method.to_uppercase()));
            for who in WHO {
                // Everybody finds everything as it was: what one does, the next does not see.
                let (house, run, digest) = furnished().await;
                let token = token(&house, who).await;
                let body: Value =
                    serde_json::from_str(&body(method, path).to_string().replace("DIGEST", &digest))
                        .expect("JSON");
                let (status, said) =
                    house.ask(&token, &method.to_uppercase(), &filled(path, &run), &body).await;
                let code = said["code"].as_str().map(|code| format!(" {code}")).unwrap_or_default();
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
async fn nobody_sees_the_runs_of_another_unless_that_is_granted() {
    let (house, run, _) = furnished().await;
    let carl = token(&house, "author").await;
    let of_run = ["", "/events", "/stream"];
    for path in of_run.map(|end| format!("/api/v1/runs/{run}{end}")) {
        assert_eq!(house.ask(&carl, "GET", &path, &Value::Null).await.0, 404, "{path}");
    }
    for path in
        ["/api/v1/runs", "/api/v1/runs?user=ann", "/api/v1/audit", "/api/v1/approvals", "/api/workflows"]
    {
        let seen = house.done(&carl, "GET", path, &Value::Null).await;
        assert_eq!(seen["items"], json!([]), "{path}");
    }
    let vera = token(&house, "viewer").await;
    let seen = house.done(&vera, "GET", "/api/v1/runs", &Value::Null).await;
    assert_eq!(seen["items"].as_array().expect("a list").len(), 1, "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_of_the_router_is_described() {
    let house = House::new();
    let document = openapi();
    let known: BTreeSet<&String> = document["paths"].as_object().expect("paths").keys().collect();
    assert!(known.len() > 40, "{} routes", known.len());
    for path in known {
        let (status, said) = house.ask("", "PATCH", &filled(path, &uuid()), &Value::Null).await;
        // Nobody gets as far as a route, and no route takes this method.
        assert!(matches!(status, 401 | 405), "{path}: {status} {said}");
    }
}

fn uuid() -> String {
    "01a1e1d7-5812-75b1-816e-c4fed3e789fc".to_owned()
}
