//! REST scenarios: requests in, statuses and bodies out.

use serde_json::{Value, json};

use super::{TestServer, json_body, request, with};
use crate::accounts::Role;

#[tokio::test(flavor = "multi_thread")]
async fn definitions_are_versioned_and_conditional_requests_prevent_lost_updates() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let text = |description: &str| json!({ "text": format!("name: d\ndescription: {description}\nsteps: [{{ id: r, tool: crm__read }}]") });
    let define = |description: &str| request(&ann, "POST", "/api/v1/definitions", &text(description));
    let first = server.send(with(define("one"), "if-none-match", "*")).await;
    assert_eq!((first.status().as_u16(), &first.headers()["etag"]), (201, &"\"1\"".parse().expect("a tag")));
    assert_eq!(server.send(with(define("two"), "if-none-match", "*")).await.status(), 412, "the name exists");
    assert_eq!(server.send(with(define("two"), "if-match", "\"1\"")).await.status(), 201);
    let lost = server.send(with(define("three"), "if-match", "\"1\"")).await;
    assert_eq!(lost.status(), 412);
    insta::assert_json_snapshot!(json_body(lost).await);
    let versions = server.call_ok(&ann, "GET", "/api/v1/definitions/d/versions", &Value::Null).await;
    let versions: Vec<&Value> =
        versions["items"].as_array().expect("a list").iter().map(|one| &one["version"]).collect();
    assert_eq!(versions, [2, 1]);
    let old = server.call_ok(&ann, "GET", "/api/v1/definitions/d/versions/1", &Value::Null).await;
    assert_eq!(old["description"], "one");
    let olga = server.user("olga", Role::Operator).await;
    let published =
        server.call_ok(&olga, "PUT", "/api/v1/definitions/d/published", &json!({ "published": true })).await;
    assert_eq!(published["version"], 3);
    assert_eq!(server.call(&olga, "DELETE", "/api/v1/definitions/d", &Value::Null).await.0, 204);
    assert_eq!(server.call(&ann, "GET", "/api/v1/definitions/d", &Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejections_have_codes_and_every_problem_its_position() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let invalid =
        json!({ "text": "name: d\nsteps:\n  - tol: crm__read\n  - { tool: crm__read, retry: many }\n" });
    let (status, reply) = server.call(&ann, "POST", "/api/v1/definitions", &invalid).await;
    assert_eq!(status, 422);
    insta::assert_json_snapshot!("a_definition_with_errors", reply);
    let checked = server.call_ok(&ann, "POST", "/api/v1/definitions/validate", &invalid).await;
    assert_eq!(
        (&checked["valid"], checked["problems"].as_array().map(Vec::len)),
        (&json!(false), reply["problems"].as_array().map(Vec::len))
    );
    let mut rejections = Vec::new();
    for (method, path, body) in [
        ("POST", "/api/v1/runs", json!({ "name": "none" })),
        ("POST", "/api/v1/runs", json!({ "nam": "none" })),
        ("POST", "/api/v1/runs", json!([1])),
        ("GET", "/api/v1/runs/1", Value::Null),
        ("GET", "/api/v1/runs?limit=0", Value::Null),
        ("GET", "/api/v1/runs?colour=red", Value::Null),
        ("GET", "/api/v1/nowhere", Value::Null),
        ("PUT", "/api/v1/schedules/s", json!({ "definition": "none", "cron": "often" })),
    ] {
        let (status, reply) = server.call(&ann, method, path, &body).await;
        rejections.push(json!({ "request": format!("{method} {path}"), "status": status, "problem": reply }));
    }
    insta::assert_json_snapshot!("rejections", rejections);
}

#[tokio::test(flavor = "multi_thread")]
async fn start_with_the_same_idempotency_key_returns_the_first_run() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let start = || request(&ann, "POST", "/api/v1/runs", &json!({ "text": super::GATED }));
    let first = json_body(server.send(with(start(), "idempotency-key", "k")).await).await;
    let second = json_body(server.send(with(start(), "idempotency-key", "k")).await).await;
    assert_eq!(first["run_id"], second["run_id"]);
    assert_ne!(json_body(server.send(start()).await).await["run_id"], first["run_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_in_pages() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let mut started = Vec::new();
    for n in 0..5 {
        let text = format!("name: n{}\nsteps: [{{ id: r, tool: crm__read }}]", n % 2);
        let run = server.call_ok(&ann, "POST", "/api/v1/runs", &json!({ "text": text, "wait_s": 10 })).await;
        started.insert(0, run["run_id"].clone());
    }
    let mut listed: Vec<Value> = Vec::new();
    let mut path = "/api/v1/runs?limit=2&status=completed".to_owned();
    loop {
        let page = server.call_ok(&ann, "GET", &path, &Value::Null).await;
        listed.extend(page["items"].as_array().expect("a list").iter().map(|run| run["run_id"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/runs?limit=2&status=completed&cursor={next}");
    }
    assert_eq!(listed, started);
    for garbled in ["", "1", "e1008", &path[path.len() - 4..]] {
        let (status, reply) =
            server.call(&ann, "GET", &format!("/api/v1/runs?cursor={garbled}"), &Value::Null).await;
        assert_eq!((status, &reply["code"]), (400, &json!("invalid_cursor")), "{garbled}");
    }
    let named = server.call_ok(&ann, "GET", "/api/v1/runs?name=n1", &Value::Null).await;
    assert_eq!(named["items"].as_array().map(Vec::len), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_are_listed_in_pages() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    for name in ["b", "c", "a", "a b", "ä"] {
        let text = format!("name: {name}\nsteps: [{{ id: r, tool: crm__read }}]");
        server.call_ok(&ann, "POST", "/api/v1/definitions", &json!({ "text": text })).await;
    }
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/api/v1/definitions?limit=2{cursor}");
        let page = server.call_ok(&ann, "GET", &path, &Value::Null).await;
        names.extend(page["items"].as_array().expect("a list").iter().map(|item| item["name"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(names, ["a", "a b", "b", "c", "ä"]);
    let (status, reply) = server.call(&ann, "GET", "/api/v1/definitions?cursor=b", &Value::Null).await;
    assert_eq!((status, &reply["code"]), (400, &json!("invalid_cursor")), "a name is not a cursor");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_is_paused_resumed_signalled_and_rerun() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let text = "name: w\nsteps:\n  - { id: hold, kind: wait, event: paid }\n  - { id: act, tool: crm__write, args: { got: '{{steps.hold.output}}' } }";
    let run = server.call_ok(&ann, "POST", "/api/v1/runs", &json!({ "text": text })).await["run_id"].clone();
    let path = format!("/api/v1/runs/{}", run.as_str().expect("an id"));
    assert_eq!(
        server.call_ok(&ann, "POST", &format!("{path}/pause"), &Value::Null).await["status"],
        "paused"
    );
    assert_eq!(
        server.call_ok(&ann, "POST", &format!("{path}/resume"), &Value::Null).await["status"],
        "running"
    );
    server
        .call_ok(
            &ann,
            "POST",
            &format!("{path}/signal"),
            &json!({ "event": "paid", "payload": { "sum": 3 } }),
        )
        .await;
    let ended = server.call_ok(&ann, "GET", &format!("{path}?wait_s=10"), &Value::Null).await;
    assert_eq!(
        (&ended["status"], &ended["steps"][1]["input"]),
        (&json!("completed"), &json!({ "got": { "sum": 3 } }))
    );
    let rerun = server.call_ok(&ann, "POST", &format!("{path}/rerun"), &json!({ "reuse": true })).await;
    assert_ne!(rerun["run_id"], run);
    let cancel = format!("/api/v1/runs/{}/cancel", rerun["run_id"].as_str().expect("an id"));
    assert_eq!(
        server.call_ok(&ann, "POST", &cancel, &json!({ "reason": "enough" })).await["status"],
        "cancelled"
    );
    assert_eq!(
        server.call(&ann, "POST", &cancel, &Value::Null).await.0,
        409,
        "a cancelled run stays cancelled"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn compatibility_routes_do_the_same_as_v1() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let paul = server.user("paul", Role::Approver).await;
    let flow = json!({ "start": "hold", "steps": {
        "hold": { "tool": null, "prompt": "Go on?", "next": "act" },
        "act": { "tool": "crm__read", "done": true },
    } });
    let started = server
        .call_ok(&ann, "POST", "/api/workflow", &json!({ "name": "old", "flow": flow, "input": {} }))
        .await;
    assert_eq!(started["status"], "started");
    let id = started["id"].as_str().expect("an id");
    server.call_ok(&ann, "GET", &format!("/api/v1/runs/{id}?wait_s=10"), &Value::Null).await;
    let run = server.call_ok(&ann, "GET", &format!("/api/workflow/{id}"), &Value::Null).await;
    assert_eq!(run["name"], "old");
    let step = run["steps"][0]["step_id"].as_str().expect("a step");
    let ready = format!("/api/workflow/{step}/ready");
    assert_eq!(
        server.call(&ann, "POST", &ready, &Value::Null).await.0,
        403,
        "a gate needs the right to decide"
    );
    server.call_ok(&paul, "POST", &ready, &Value::Null).await;
    let ended = server.call_ok(&ann, "GET", &format!("/api/v1/runs/{id}?wait_s=10"), &Value::Null).await;
    assert_eq!(ended["status"], "completed");
    let waits = json!({ "name": "waits", "steps": [{ "id": "hold", "kind": "wait", "event": "paid" }] });
    let id = server.call_ok(&ann, "POST", "/api/workflows", &waits).await["id"].clone();
    let id = id.as_str().expect("an id");
    let act = |action: &str| format!("/api/workflows/{id}/{action}");
    assert_eq!(server.call_ok(&ann, "POST", &act("interrupt"), &Value::Null).await["status"], "paused");
    assert_eq!(server.call_ok(&ann, "POST", &act("resume"), &Value::Null).await["status"], "running");
    let step =
        server.call_ok(&ann, "GET", &format!("/api/workflows/{id}"), &Value::Null).await["steps"][0]["step_id"]
            .clone();
    let ready = format!("/api/workflow/{}/ready", step.as_str().expect("a step"));
    server.call_ok(&ann, "POST", &ready, &json!({ "sum": 3 })).await;
    let ended = server.call_ok(&ann, "GET", &format!("/api/v1/runs/{id}?wait_s=10"), &Value::Null).await;
    assert_eq!((&ended["status"], &ended["steps"][0]["output"]), (&json!("completed"), &json!({ "sum": 3 })));
    assert_eq!(server.call(&ann, "POST", &ready, &Value::Null).await.0, 409, "it does not wait any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_of_a_user_conflict() {
    let server = TestServer::new();
    let adam = server.user("adam", Role::Admin).await;
    let put = |tag: &str, role: &str| {
        with(request(&adam, "PUT", "/api/v1/users/ann", &json!({ "roles": [role] })), "if-match", tag)
    };
    assert_eq!(server.send(put("\"0\"", "author")).await.status(), 200);
    assert_eq!(server.send(put("\"1\"", "viewer")).await.status(), 200);
    assert_eq!(server.send(put("\"1\"", "admin")).await.status(), 409);
    let known = server.call_ok(&adam, "GET", "/api/v1/users", &Value::Null).await;
    let ann =
        known["items"].as_array().expect("a list").iter().find(|user| user["id"] == "ann").expect("ann");
    assert_eq!((&ann["revision"], &ann["is"]["roles"]), (&json!(2), &json!(["viewer"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_belong_to_their_creators() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let carl = server.user("carl", Role::Author).await;
    server.call_ok(&ann, "POST", "/api/v1/definitions", &json!({ "text": super::GATED })).await;
    let schedule = json!({ "definition": "gated", "cron": "0 8 * * 1-5", "zone": "Europe/Berlin" });
    let stored = server.call_ok(&ann, "PUT", "/api/v1/schedules/mornings", &schedule).await;
    assert_eq!(stored["due_at"], "2027-01-18T07:00:00.000Z", "{stored}");
    assert_eq!(server.call(&carl, "DELETE", "/api/v1/schedules/mornings", &Value::Null).await.0, 403);
    assert_eq!(server.call_ok(&carl, "GET", "/api/v1/schedules", &Value::Null).await["items"], json!([]));
    assert_eq!(server.call(&ann, "DELETE", "/api/v1/schedules/mornings", &Value::Null).await.0, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_state_why_they_wait_and_how_they_ended() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let paul = server.user("paul", Role::Approver).await;
    let gate = "prompt: Go on?, approvers: [paul], timeout: 4h, escalate: [{ after: 2h, notify: [olga] }]";
    let text = super::GATED.replace("prompt: Go on?", gate);
    let run = server.call_ok(&ann, "POST", "/api/v1/runs", &json!({ "text": text, "wait_s": 10 })).await;
    let path = format!("/api/v1/runs/{}", run["run_id"].as_str().expect("an id"));
    server.clock.advance(3 * 60_000);
    let expected = json!({
        "sentence": "`ask` waits for paul since 3 min; escalates to olga at 2027-01-15T10:00:00.000Z",
        "kind": "approval", "step": "ask", "for": ["paul"], "since": "2027-01-15T08:00:00.000Z",
        "next": { "what": "escalates to olga", "at": "2027-01-15T10:00:00.000Z" },
    });
    let shown = server.call_ok(&ann, "GET", &path, &Value::Null).await;
    assert_eq!(shown["reason"], expected);
    let listed = server.call_ok(&ann, "GET", "/api/v1/runs", &Value::Null).await;
    assert_eq!(listed["items"][0]["reason"], expected);
    let digest = &shown["approvals"][0]["digest"];
    let deny = json!({ "step": "ask", "digest": digest, "reason": "too early" });
    server.call_ok(&paul, "POST", &format!("{path}/deny"), &deny).await;
    let listed = server.call_ok(&ann, "GET", "/api/v1/runs", &Value::Null).await;
    let reason = &listed["items"][0]["reason"];
    assert_eq!(
        reason["sentence"], "`ask` was denied by paul at 2027-01-15T08:03:00.000Z: too early",
        "{listed}"
    );
    assert_eq!((&reason["kind"], &reason["by"]), (&json!("denied"), &json!("paul")));
}
