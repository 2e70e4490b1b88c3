//! REST in scenarios: requests in, statuses and answers out.

use serde_json::{Value, json};

use super::{House, request, said, with};
use crate::accounts::Role;

#[tokio::test(flavor = "multi_thread")]
async fn definitions_have_versions_and_nobody_overwrites_what_they_have_not_seen() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let text = |description: &str| json!({ "text": format!("name: d\ndescription: {description}\nsteps: [{{ id: r, tool: crm__read }}]") });
    let define = |description: &str| request(&ann, "POST", "/api/v1/definitions", &text(description));
    let first = house.send(with(define("one"), "if-none-match", "*")).await;
    assert_eq!((first.status().as_u16(), &first.headers()["etag"]), (201, &"\"1\"".parse().expect("a tag")));
    assert_eq!(house.send(with(define("two"), "if-none-match", "*")).await.status(), 412, "there is one");
    assert_eq!(house.send(with(define("two"), "if-match", "\"1\"")).await.status(), 201);
    let lost = house.send(with(define("three"), "if-match", "\"1\"")).await;
    assert_eq!(lost.status(), 412);
    insta::assert_json_snapshot!(said(lost).await);
    let versions = house.done(&ann, "GET", "/api/v1/definitions/d/versions", &Value::Null).await;
    let versions: Vec<&Value> =
        versions["items"].as_array().expect("a list").iter().map(|one| &one["version"]).collect();
    assert_eq!(versions, [2, 1]);
    let old = house.done(&ann, "GET", "/api/v1/definitions/d/versions/1", &Value::Null).await;
    assert_eq!(old["description"], "one");
    let published =
        house.done(&ann, "PUT", "/api/v1/definitions/d/published", &json!({ "published": true })).await;
    assert_eq!(published["version"], 3);
    assert_eq!(house.ask(&ann, "DELETE", "/api/v1/definitions/d", &Value::Null).await.0, 204);
    assert_eq!(house.ask(&ann, "GET", "/api/v1/definitions/d", &Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told_with_a_code_and_every_place() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let wrong =
        json!({ "text": "name: d\nsteps:\n  - tol: crm__read\n  - { tool: crm__read, retry: many }\n" });
    let (status, said) = house.ask(&ann, "POST", "/api/v1/definitions", &wrong).await;
    assert_eq!(status, 422);
    insta::assert_json_snapshot!("a_definition_with_errors", said);
    let checked = house.done(&ann, "POST", "/api/v1/definitions/validate", &wrong).await;
    assert_eq!(
        (&checked["valid"], checked["problems"].as_array().map(Vec::len)),
        (&json!(false), said["problems"].as_array().map(Vec::len))
    );
    let mut told = Vec::new();
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
        let (status, said) = house.ask(&ann, method, path, &body).await;
        told.push(json!({ "asked": format!("{method} {path}"), "status": status, "said": said }));
    }
    insta::assert_json_snapshot!("what_is_refused", told);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_the_same_key_is_the_first_run() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let start = || request(&ann, "POST", "/api/v1/runs", &json!({ "text": super::GATED }));
    let first = said(house.send(with(start(), "idempotency-key", "k")).await).await;
    let second = said(house.send(with(start(), "idempotency-key", "k")).await).await;
    assert_eq!(first["run_id"], second["run_id"]);
    assert_ne!(said(house.send(start()).await).await["run_id"], first["run_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_page_by_page() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let mut started = Vec::new();
    for n in 0..5 {
        let text = format!("name: n{}\nsteps: [{{ id: r, tool: crm__read }}]", n % 2);
        let run = house.done(&ann, "POST", "/api/v1/runs", &json!({ "text": text, "wait_s": 10 })).await;
        started.insert(0, run["run_id"].clone());
    }
    let mut seen: Vec<Value> = Vec::new();
    let mut path = "/api/v1/runs?limit=2&status=completed".to_owned();
    loop {
        let page = house.done(&ann, "GET", &path, &Value::Null).await;
        seen.extend(page["items"].as_array().expect("a list").iter().map(|run| run["run_id"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/runs?limit=2&status=completed&cursor={next}");
    }
    assert_eq!(seen, started);
    let named = house.done(&ann, "GET", "/api/v1/runs?name=n1", &Value::Null).await;
    assert_eq!(named["items"].as_array().map(Vec::len), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_paused_resumed_signalled_and_run_again() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let text = "name: w\nsteps:\n  - { id: hold, kind: wait, event: paid }\n  - { id: act, tool: crm__write, args: { got: '{{steps.hold.output}}' } }";
    let run = house.done(&ann, "POST", "/api/v1/runs", &json!({ "text": text })).await["run_id"].clone();
    let path = format!("/api/v1/runs/{}", run.as_str().expect("an id"));
    assert_eq!(house.done(&ann, "POST", &format!("{path}/pause"), &Value::Null).await["status"], "paused");
    assert_eq!(house.done(&ann, "POST", &format!("{path}/resume"), &Value::Null).await["status"], "running");
    house
        .done(&ann, "POST", &format!("{path}/signal"), &json!({ "event": "paid", "payload": { "sum": 3 } }))
        .await;
    let ended = house.done(&ann, "GET", &format!("{path}?wait_s=10"), &Value::Null).await;
    assert_eq!(
        (&ended["status"], &ended["steps"][1]["input"]),
        (&json!("completed"), &json!({ "got": { "sum": 3 } }))
    );
    let again = house.done(&ann, "POST", &format!("{path}/rerun"), &json!({ "reuse": true })).await;
    assert_ne!(again["run_id"], run);
    let stopped = format!("/api/v1/runs/{}/cancel", again["run_id"].as_str().expect("an id"));
    assert_eq!(
        house.done(&ann, "POST", &stopped, &json!({ "reason": "enough" })).await["status"],
        "cancelled"
    );
    assert_eq!(house.ask(&ann, "POST", &stopped, &Value::Null).await.0, 409, "that is final");
}

#[tokio::test(flavor = "multi_thread")]
async fn older_words_do_the_same() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let paul = house.user("paul", Role::Approver).await;
    let flow = json!({ "start": "hold", "steps": {
        "hold": { "tool": null, "prompt": "Go on?", "next": "act" },
        "act": { "tool": "crm__read", "done": true },
    } });
    let started =
        house.done(&ann, "POST", "/api/workflow", &json!({ "name": "old", "flow": flow, "input": {} })).await;
    assert_eq!(started["status"], "started");
    let id = started["id"].as_str().expect("an id");
    house.done(&ann, "GET", &format!("/api/v1/runs/{id}?wait_s=10"), &Value::Null).await;
    let run = house.done(&ann, "GET", &format!("/api/workflow/{id}"), &Value::Null).await;
    assert_eq!(run["name"], "old");
    let step = run["steps"][0]["step_id"].as_str().expect("a step");
    let ready = format!("/api/workflow/{step}/ready");
    assert_eq!(house.ask(&ann, "POST", &ready, &Value::Null).await.0, 403, "a gate is decided by who may");
    house.done(&paul, "POST", &ready, &Value::Null).await;
    let ended = house.done(&ann, "GET", &format!("/api/v1/runs/{id}?wait_s=10"), &Value::Null).await;
    assert_eq!(ended["status"], "completed");
    let waits = json!({ "name": "waits", "steps": [{ "id": "hold", "kind": "wait", "event": "paid" }] });
    let id = house.done(&ann, "POST", "/api/workflows", &waits).await["id"].clone();
    let id = id.as_str().expect("an id");
    let act = |action: &str| format!("/api/workflows/{id}/{action}");
    assert_eq!(house.done(&ann, "POST", &act("interrupt"), &Value::Null).await["status"], "paused");
    assert_eq!(house.done(&ann, "POST", &act("resume"), &Value::Null).await["status"], "running");
    let step =
        house.done(&ann, "GET", &format!("/api/workflows/{id}"), &Value::Null).await["steps"][0]["step_id"]
            .clone();
    let ready = format!("/api/workflow/{}/ready", step.as_str().expect("a step"));
    house.done(&ann, "POST", &ready, &json!({ "sum": 3 })).await;
    let ended = house.done(&ann, "GET", &format!("/api/v1/runs/{id}?wait_s=10"), &Value::Null).await;
    assert_eq!((&ended["status"], &ended["steps"][0]["output"]), (&json!("completed"), &json!({ "sum": 3 })));
    assert_eq!(house.ask(&ann, "POST", &ready, &Value::Null).await.0, 409, "it waits no longer");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_change_a_user_at_once_do_not_overwrite_each_other() {
    let house = House::new();
    let adam = house.user("adam", Role::Admin).await;
    let put = |tag: &str, role: &str| {
        with(request(&adam, "PUT", "/api/v1/users/ann", &json!({ "roles": [role] })), "if-match", tag)
    };
    assert_eq!(house.send(put("\"0\"", "author")).await.status(), 200);
    assert_eq!(house.send(put("\"1\"", "viewer")).await.status(), 200);
    assert_eq!(house.send(put("\"1\"", "admin")).await.status(), 409);
    let known = house.done(&adam, "GET", "/api/v1/users", &Value::Null).await;
    let ann =
        known["items"].as_array().expect("a list").iter().find(|user| user["id"] == "ann").expect("ann");
    assert_eq!((&ann["revision"], &ann["is"]["roles"]), (&json!(2), &json!(["viewer"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_belong_to_whoever_makes_them() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let carl = house.user("carl", Role::Author).await;
    house.done(&ann, "POST", "/api/v1/definitions", &json!({ "text": super::GATED })).await;
    let planned = json!({ "definition": "gated", "cron": "0 8 * * 1-5", "zone": "Europe/Berlin" });
    let made = house.done(&ann, "PUT", "/api/v1/schedules/mornings", &planned).await;
    assert_eq!(made["due_at"], "2027-01-18T07:00:00.000Z", "{made}");
    assert_eq!(house.ask(&carl, "DELETE", "/api/v1/schedules/mornings", &Value::Null).await.0, 403);
    assert_eq!(house.done(&carl, "GET", "/api/v1/schedules", &Value::Null).await["items"], json!([]));
    assert_eq!(house.ask(&ann, "DELETE", "/api/v1/schedules/mornings", &Value::Null).await.0, 204);
}
