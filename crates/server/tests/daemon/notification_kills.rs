//! `kill -9` of the daemon while approvals are requested and decided and the receiver fails at times: every approval is
//! delivered at least once, and a repeated message has the same key.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::notifications::{private, steprail_json};
use super::receiver::{Received, Receiver, Reply, any_port};
use super::support::{Daemon, output, steprail};

/// Users, each of whom gets few messages, so that they are not collected in digests.
const USERS: usize = 400;

/// The messages that the receiver accepted.
#[derive(Default)]
struct Accepted {
    /// Keys of notifications, by run.
    notified: BTreeMap<String, BTreeSet<String>>,
    /// Approvals that can be decided: the run, and the step, the digest and the id of its message.
    open: Vec<(String, Value)>,
    /// Ids of messages that were withdrawn.
    withdrawn: BTreeSet<String>,
    messages: usize,
    /// Keys of the requests that were refused. Each is refused once, so that nobody waits for several delays.
    refused: BTreeSet<String>,
}

impl Accepted {
    /// Refuses every fourth request, and records the others.
    fn answer(&mut self, received: &Received) -> Reply {
        let (body, key) = (received.json(), received.header("Idempotency-Key").expect("a key").to_owned());
        if fastrand::u8(0..4) == 0 && self.refused.insert(format!("{key} {}", body["event"])) {
            return Reply::Status(503);
        }
        self.messages += 1;
        if body["event"] == "withdrawal" {
            self.withdrawn.insert(body["id"].as_str().expect("an id").to_owned());
            return Reply::Status(200);
        }
        let message = &body["message"];
        let run = message["run"].as_str().expect("a run").to_owned();
        let decision = json!({ "step": message["step"], "digest": message["digest"], "id": message["id"] });
        if self.notified.entry(run.clone()).or_default().insert(key) {
            self.open.push((run, decision));
        }
        Reply::Status(200)
    }
}

fn settings() -> String {
    let mut text = "[store.secrets]
hook-url = { file = \"hook-url\" }
hook-key = { file = \"hook-key\" }
[notify]
allow = ['127.0.0.1']
channels.hook = { type = 'webhook', url = { secret = 'hook-url' }, key = { secret = 'hook-key' }, withdraw = true }
"
    .to_owned();
    (0..USERS).for_each(|user| text += &format!("users.u{user}.addresses = {{ hook = 'u{user}' }}\n"));
    text
}

/// Calls the API while the daemon is killed and restarted. Requests can fail.
struct Requests {
    http: reqwest::Client,
    api: String,
    token: String,
}

impl Requests {
    async fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let request = self.http.post(format!("{}{path}", self.api)).bearer_auth(&self.token).json(body);
        let response = request.timeout(Duration::from_secs(10)).send().await.ok()?;
        response.error_for_status().ok()?.json().await.ok()
    }

    /// Requests approvals, and decides some of those that the receiver was told of, until it is stopped. Returns the ids of
    /// the messages of decided approvals.
    async fn work(self, accepted: Arc<Mutex<Accepted>>, stop: Arc<AtomicBool>) -> BTreeSet<String> {
        let mut decided = BTreeSet::new();
        for number in 0.. {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            let gate = json!({
                "id": "ask", "kind": "approve", "prompt": "Go on?", "notify_user": format!("u{}", number % USERS),
            });
            self.post("/runs", &json!({ "spec": { "name": "gate", "steps": [gate] } })).await;
            let open = accepted.lock().expect("the messages").open.pop();
            if let Some((run, decision)) = open.filter(|_| number % 2 == 0) {
                let body = json!({ "step": decision["step"], "digest": decision["digest"] });
                // The response can be lost in a kill.
                if self.post(&format!("/runs/{run}/approve"), &body).await.is_some() {
                    decided.insert(decision["id"].as_str().expect("an id").to_owned());
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        decided
    }
}

/// Waits until no message of a run waits for its delivery or its withdrawal.
fn settle(daemon: &Daemon, run: &str) {
    let waits = |delivery: &Value| delivery["status"] == "queued" || delivery["status"] == "withdrawing";
    let is_open = |notification: &Value| {
        notification["deliveries"].as_array().is_some_and(|deliveries| deliveries.iter().any(waits))
    };
    while steprail_json(daemon, &["notifications", run]).as_array().expect("a list").iter().any(is_open) {
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn daemon(receiver: &Receiver) -> Daemon {
    let folder = TempDir::new().expect("a folder");
    private(&folder.path().join("hook-url"), &receiver.url("/hook"));
    private(&folder.path().join("hook-key"), "a key of at least 16 bytes");
    std::fs::write(folder.path().join("steprail.toml"), settings()).expect("written");
    Daemon::start_in(folder, &[])
}

fn requests(daemon: &Daemon) -> Requests {
    let mut token = Command::new(steprail());
    let token =
        output(token.args(["token", "create", "kills", "--person", "--data"]).arg(daemon.folder.path()));
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client");
    Requests { http, api: daemon.url.replace("/mcp", "/api/v1"), token: token.trim().to_owned() }
}

#[test]
fn approvals_are_delivered_although_the_daemon_is_killed() {
    let kills = std::env::var("NOTIFICATION_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let accepted = Arc::new(Mutex::new(Accepted::default()));
    let recorded = accepted.clone();
    let script = move |received: &Received| recorded.lock().expect("the messages").answer(received);
    let receiver = Receiver::scripted(any_port(), Box::new(script));
    let mut daemon = daemon(&receiver);
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let working = runtime.spawn(requests(&daemon).work(accepted.clone(), stop.clone()));
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(fastrand::u64(20..700)));
        daemon.kill_and_restart();
    }
    stop.store(true, Ordering::SeqCst);
    let decided = runtime.block_on(working).expect("no panic");

    let runs = steprail_json(&daemon, &["runs", "--limit", "1000"]);
    let runs: Vec<&str> =
        runs.as_array().expect("runs").iter().filter_map(|run| run["run_id"].as_str()).collect();
    runs.iter().for_each(|run| settle(&daemon, run));
    let accepted = accepted.lock().expect("the messages");
    for run in &runs {
        let keys = accepted.notified.get(*run).unwrap_or_else(|| panic!("nobody was told of run {run}"));
        assert_eq!(keys.len(), 1, "run {run} has messages with the keys {keys:?}");
    }
    let left: Vec<_> = decided.difference(&accepted.withdrawn).collect();
    assert!(left.is_empty(), "messages of decided approvals were not withdrawn: {left:?}");
    println!(
        "{kills} kills: {} approvals, {} decided, {} messages accepted, {} refused",
        runs.len(),
        decided.len(),
        accepted.messages,
        accepted.refused.len()
    );
}
