//! A run with many steps: pages, filters and counts.

use serde_json::{Value, json};

use super::TestServer;
use crate::accounts::Role;

const LOOP: &str = "
name: many
inputs: { items: { type: array } }
steps:
  - id: all
    kind: foreach
    items: '{{inputs.items}}'
    concurrency: 256
    steps:
      - { id: one, kind: pass }
";

const GATES: &str = "
name: gates
inputs: { items: { type: array } }
steps:
  - id: all
    kind: foreach
    items: '{{inputs.items}}'
    concurrency: 256
    steps:
      - { id: ask, kind: approve, prompt: Go on? }
";

async fn run(server: &TestServer, token: &str, text: &str, items: usize) -> Value {
    let items: Vec<usize> = (0..items).collect();
    let start = json!({ "text": text, "input": { "items": items }, "wait_s": 60 });
    server.call_ok(token, "POST", "/api/v1/runs", &start).await
}

fn paths(steps: &Value) -> Vec<String> {
    let steps = steps.as_array().expect("steps");
    steps.iter().map(|step| step["path"].as_str().expect("a path").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_a_run_are_paged() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let view = run(&server, &ann, LOOP, 250).await;
    assert_eq!((&view["status"], &view["steps_total"]), (&json!("completed"), &json!(251)), "{view}");
    assert_eq!((&view["steps_by_status"], &view["retries"]), (&json!({ "done": 251 }), &json!(0)));
    let mut found = paths(&view["steps"]);
    assert_eq!(found.len(), 100);
    let list = format!("/api/v1/runs/{}/steps", view["run_id"].as_str().expect("an id"));
    let mut next = view["steps_next"].clone();
    while let Some(cursor) = next.as_str() {
        let page = format!("{list}?limit=90&cursor={cursor}");
        let page = server.call_ok(&ann, "GET", &page, &Value::Null).await;
        found.extend(paths(&page["items"]));
        next = page["next"].clone();
    }
    let all = server.call_ok(&ann, "GET", &format!("{list}?limit=1000"), &Value::Null).await;
    assert_eq!((found.len(), found), (251, paths(&all["items"])), "no step is missing or repeated");
    let failed = server.call_ok(&ann, "GET", &format!("{list}?status=failed"), &Value::Null).await;
    assert_eq!(failed, json!({ "items": [] }));
    let done = server.call_ok(&ann, "GET", &format!("{list}?status=done&limit=2"), &Value::Null).await;
    assert_eq!(paths(&done["items"]), ["all", "all[0].one"]);
    for wrong in ["limit=0", "cursor=s1x", "status=lost", "colour=red"] {
        let path = format!("{list}?{wrong}");
        assert_eq!(server.call(&ann, "GET", &path, &Value::Null).await.0, 400, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_of_a_run_are_bounded() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let view = run(&server, &ann, GATES, 150).await;
    let len = |name: &str| view[name].as_array().map(Vec::len);
    assert_eq!((len("approvals"), len("waiting"), len("steps")), (Some(100), Some(100), Some(100)));
    assert_eq!(view["more_waiting"], json!(true));
    assert_eq!(view["steps_by_status"]["waiting"], json!(150), "{}", view["steps_by_status"]);
}
