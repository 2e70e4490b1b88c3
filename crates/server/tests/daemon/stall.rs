//! Expensive runs of one user do not keep the daemon from answering others. `scripts/scale BINARY stall` measures how long
//! they wait.

use std::process::Command;

use serde_json::{Value, json};

use super::support::{Daemon, output, steprail};

const SMALL: &str = "name: small\nsteps: [{ id: a, kind: pass }]\n";
const PARKED: &str = "name: parked\nsteps: [{ id: nap, kind: sleep, for: 1d }]\n";

/// A REST client with a token.
#[derive(Clone)]
struct Client {
    http: reqwest::Client,
    base: String,
    token: String,
}

impl Client {
    fn new(daemon: &Daemon, user: Option<&str>) -> Self {
        let command = |arguments: &[&str]| {
            output(Command::new(steprail()).args(arguments).arg("--data").arg(daemon.folder.path()))
        };
        let mut create = vec!["token", "create", "test", "--person"];
        if let Some(user) = user {
            command(&["user", "add", user, "--role", "author"]);
            create.extend(["--user", user]);
        }
        let token = command(&create).trim().to_owned();
        let base = daemon.url.replace("/mcp", "/api/v1");
        Self { http: reqwest::Client::new(), base, token }
    }

    async fn call(&self, method: reqwest::Method, path: &str, body: &Value) -> (u16, Value) {
        let request = self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token);
        let request = request.header("content-type", "application/json").body(body.to_string());
        let response = request.send().await.expect("a response");
        let status = response.status().as_u16();
        let text = response.text().await.expect("a body");
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.call(reqwest::Method::POST, path, &body).await
    }

    /// Starts a run and waits for its end. Returns its status and error, or the status and detail of a rejection.
    async fn outcome(self, spec: Value, input: Value) -> String {
        let (mut code, mut run) = self.post("/runs", json!({ "spec": spec, "input": input })).await;
        while code < 300 && run["status"] == "running" {
            let path = format!("/runs/{}?wait_s=20", run["run_id"].as_str().expect("an id"));
            (code, run) = self.call(reqwest::Method::GET, &path, &Value::Null).await;
        }
        let detail = run["detail"].as_str().or_else(|| run["error"]["message"].as_str()).unwrap_or_default();
        format!("{} {detail}", run["status"])
    }
}

/// A schema that doubles the evaluations at each level.
fn nested(levels: usize) -> Value {
    let mut definitions = serde_json::Map::new();
    for level in 0..levels {
        let next = json!({ "$ref": format!("#/$defs/l{}", level + 1) });
        definitions.insert(format!("l{level}"), json!({ "anyOf": [next.clone(), next] }));
    }
    definitions.insert(format!("l{levels}"), json!({ "type": "boolean" }));
    let input = json!({ "$ref": "#/$defs/l0", "$defs": definitions });
    json!({ "name": "nested", "inputs": { "v": input }, "steps": [{ "id": "a", "kind": "pass" }] })
}

fn looped(name: &str, step: &Value) -> Value {
    let each = json!({
        "id": "all", "kind": "foreach", "items": "{{inputs.big}}", "concurrency": 64, "steps": [step],
    });
    json!({ "name": name, "inputs": { "big": { "type": "array" } }, "steps": [each] })
}

fn regexes(count: usize) -> Value {
    let step = |number| {
        let condition = format!("matches(inputs.text, '(a|b|ab)*c{number}')");
        json!({ "id": format!("s{number}"), "if": condition, "then": [], "else": [] })
    };
    let steps: Vec<Value> = (0..count).map(step).collect();
    json!({ "name": "regexes", "inputs": { "text": { "type": "string" } }, "steps": steps })
}

fn numbers(count: usize) -> Vec<usize> {
    (10_000..10_000 + count).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn expensive_runs_do_not_block_others() {
    let daemon = Daemon::start(&["--auth", "users", "--durability", "process"]);
    let (ann, bob) = (Client::new(&daemon, Some("ann")), Client::new(&daemon, Some("bob")));
    let owner = Client::new(&daemon, None);
    for text in [SMALL, PARKED] {
        assert_eq!(owner.post("/definitions", json!({ "text": text })).await.0, 201);
    }
    let member = json!({ "id": "check", "if": "7 in inputs.big", "then": [], "else": [] });
    let cases = [
        (nested(26), json!({ "v": 1 }), "exceeds the limit"),
        (looped("member", &member), json!({ "big": numbers(20_000) }), "exceeds the limit"),
        (regexes(99), json!({ "text": "ab".repeat(10_000) }), "completed"),
        (
            looped("each", &json!({ "id": "one", "kind": "pass" })),
            json!({ "big": numbers(100_000) }),
            "completed",
        ),
    ];
    for (spec, input, expected) in cases {
        let name = spec["name"].clone();
        let running = tokio::spawn(ann.clone().outcome(spec, input));
        let mut answers = 0;
        while answers < 3 || !running.is_finished() {
            assert_eq!(bob.post("/runs", json!({ "name": "small" })).await.0, 201, "{name}");
            let (code, parked) = bob.post("/runs", json!({ "name": "parked" })).await;
            assert_eq!(code, 201, "{name}: {parked}");
            let cancel = format!("/runs/{}/cancel", parked["run_id"].as_str().expect("an id"));
            let (code, cancelled) = owner.post(&cancel, json!({})).await;
            assert_eq!((code, &cancelled["status"]), (200, &json!("cancelled")), "{name}: {cancelled}");
            answers += 1;
        }
        let outcome = running.await.expect("an outcome");
        assert!(outcome.contains(expected), "{name}: {outcome}");
    }
}
