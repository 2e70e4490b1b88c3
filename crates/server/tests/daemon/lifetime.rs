//! Runs survive their clients. Sessions, tasks and bridges survive the daemon.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::support::{Daemon, Rpc, steprail};

const NAP: &str = "name: nap\npublish: true\nsteps: [{ id: nap, kind: sleep, for: 2s }]\noutput: rested\n";

#[expect(clippy::needless_pass_by_value, reason = "written in place")]
fn call(tool: &str, arguments: Value) -> Value {
    json!({ "name": tool, "arguments": arguments })
}

#[tokio::test]
async fn session_survives_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let mut client = Rpc::new(&daemon.url);
    client.initialize().await;
    daemon.kill_and_restart();
    let answer = client.legacy("tools/call", call("workflow_list_runs", json!({}))).await;
    assert_eq!(answer["result"]["structuredContent"]["runs"], json!([]), "{answer}");
}

#[tokio::test]
async fn resource_subscriptions_survive_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let mut client = Rpc::new(&daemon.url);
    client.initialize().await;
    client.legacy("tools/call", call("workflow_define", json!({ "spec_yaml": NAP }))).await;
    let (subscribed, unsubscribed) = ("workflow://definitions/nap", "workflow://approvals");
    for uri in [subscribed, unsubscribed] {
        client.legacy("resources/subscribe", json!({ "uri": uri })).await;
    }
    client.legacy("resources/unsubscribe", json!({ "uri": unsubscribed })).await;
    daemon.kill_and_restart();
    let mut stream = client.stream().await;
    assert!(stream.status().is_success(), "{}", stream.status());
    let changed = NAP.replace("2s", "3s");
    client.legacy("tools/call", call("workflow_define", json!({ "spec_yaml": changed }))).await;
    let mut received = String::new();
    while !received.contains(subscribed) {
        let chunk = stream.chunk().await.expect("a chunk").expect("more");
        received.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(
        received.contains("notifications/resources/updated") && !received.contains(unsubscribed),
        "{received}"
    );
}

#[tokio::test]
async fn task_survives_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let client = Rpc::new(&daemon.url);
    client.modern("tools/call", call("workflow_define", json!({ "spec_yaml": NAP }))).await;
    let created = client.modern("tools/call", call("wf_nap", json!({}))).await;
    assert_eq!(created["result"]["resultType"], "task", "{created}");
    let id = created["result"]["taskId"].clone();
    daemon.kill_and_restart();
    let waited = call("workflow_status", json!({ "run_id": id, "wait_s": 30 }));
    client.modern("tools/call", waited).await;
    let ended = client.modern("tasks/get", json!({ "taskId": id })).await;
    assert_eq!(ended["result"]["status"], "completed", "{ended}");
    assert_eq!(ended["result"]["result"]["content"][0]["text"], "rested");
}

#[tokio::test]
async fn run_survives_the_disconnect_of_its_client() {
    let daemon = Daemon::start(&[]);
    let client = Rpc::new(&daemon.url);
    client.modern("tools/call", call("workflow_define", json!({ "spec_yaml": NAP }))).await;
    let start = call("workflow_start", json!({ "name": "nap", "wait_s": 45 }));
    let mut disconnected = Rpc::new(&daemon.url);
    disconnected.initialize().await;
    // The client waits for the run and is dropped as soon as the run exists.
    let started = async {
        loop {
            let listed = client.modern("tools/call", call("workflow_list_runs", json!({}))).await;
            if let Some(run) = listed["result"]["structuredContent"]["runs"][0]["run_id"].as_str() {
                return run.to_owned();
            }
        }
    };
    let run = tokio::select! {
        response = disconnected.legacy("tools/call", start) => panic!("the run ended early: {response}"),
        run = started => run,
    };
    let ended =
        client.modern("tools/call", call("workflow_status", json!({ "run_id": run, "wait_s": 30 }))).await;
    assert_eq!(ended["result"]["structuredContent"]["status"], "completed", "{ended}");
}

/// A client of a bridge, over stdio.
struct StdioClient {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl StdioClient {
    fn open(data: &Path) -> Self {
        let mut command = Command::new(steprail());
        command.arg("mcp").arg("--data").arg(data).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a bridge");
        let (stdin, stdout) = (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin, "{message}").expect("written");
    }

    fn request(&mut self, id: u32, method: &str, params: &Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).expect("a line") > 0, "the bridge has ended");
            let response: Value = serde_json::from_str(&line).expect("JSON");
            if response["id"] == id {
                return response;
            }
        }
    }

    fn initialize(&mut self) {
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" }
        });
        self.request(1, "initialize", &params);
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    }

    fn close(mut self) {
        drop(self.stdin);
        self.child.wait().expect("its end");
    }
}

/// Kills a daemon that was started in the background.
struct Background<'b>(&'b Path);

impl Drop for Background<'_> {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(self.0.join("daemon.pid")).unwrap_or_default();
        let _ = Command::new("kill").args(["-9", &pid]).status();
    }
}

#[test]
fn five_clients_share_one_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let _daemon = Background(folder.path());
    let mut clients: Vec<StdioClient> = (0..5).map(|_| StdioClient::open(folder.path())).collect();
    for client in &mut clients {
        client.initialize();
    }
    let start = call("workflow_start", json!({ "spec_yaml": NAP, "wait_s": 0 }));
    let mut first = clients.remove(0);
    let started = first.request(2, "tools/call", &start);
    let run = started["result"]["structuredContent"]["run_id"].clone();
    first.close();
    let status = call("workflow_status", json!({ "run_id": run, "wait_s": 30 }));
    let ended = clients[0].request(2, "tools/call", &status);
    assert_eq!(ended["result"]["structuredContent"]["status"], "completed", "{ended}");
    clients.into_iter().for_each(StdioClient::close);
    let log = std::fs::read_to_string(folder.path().join("daemon.log")).expect("a log");
    assert_eq!(log.matches("ready").count(), 1, "{log}");
}

#[test]
fn bridge_survives_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let folder = daemon.folder.path().to_owned();
    let mut client = StdioClient::open(&folder);
    client.initialize();
    daemon.kill();
    let _background = Background(&folder);
    let mut listed = client.request(2, "tools/list", &json!({}));
    // The bridge may have passed the request to the socket of the dead daemon. Then it asks the client to send it again.
    if listed["error"]["code"] == -32000 {
        listed = client.request(3, "tools/list", &json!({}));
    }
    assert!(listed["result"]["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "{listed}");
    client.close();
}

#[test]
fn embedded_server_needs_exclusive_access_to_the_database() {
    let daemon = Daemon::start(&[]);
    let mut command = Command::new(steprail());
    command.args(["mcp", "--embedded", "--data"]).arg(daemon.folder.path()).stdin(Stdio::null());
    let rejected = command.output().expect("an end");
    assert_eq!(rejected.status.code(), Some(73), "{}", String::from_utf8_lossy(&rejected.stderr));
}
