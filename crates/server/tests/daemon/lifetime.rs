//! What outlives what: runs their clients, sessions and tasks the daemon, a bridge the daemon.

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
async fn a_session_outlives_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let mut client = Rpc::new(&daemon.url);
    client.initialize().await;
    daemon.kill_and_start();
    let answer = client.legacy("tools/call", call("workflow_list_runs", json!({}))).await;
    assert_eq!(answer["result"]["structuredContent"]["runs"], json!([]), "{answer}");
}

#[tokio::test]
async fn what_a_session_watches_outlives_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let mut client = Rpc::new(&daemon.url);
    client.initialize().await;
    client.legacy("tools/call", call("workflow_define", json!({ "spec_yaml": NAP }))).await;
    let (kept, left) = ("workflow://definitions/nap", "workflow://approvals");
    for uri in [kept, left] {
        client.legacy("resources/subscribe", json!({ "uri": uri })).await;
    }
    client.legacy("resources/unsubscribe", json!({ "uri": left })).await;
    daemon.kill_and_start();
    let mut stream = client.stream().await;
    assert!(stream.status().is_success(), "{}", stream.status());
    let changed = NAP.replace("2s", "3s");
    client.legacy("tools/call", call("workflow_define", json!({ "spec_yaml": changed }))).await;
    let mut heard = String::new();
    while !heard.contains(kept) {
        let chunk = stream.chunk().await.expect("a chunk").expect("more");
        heard.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(heard.contains("notifications/resources/updated") && !heard.contains(left), "{heard}");
}

#[tokio::test]
async fn a_task_outlives_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let client = Rpc::new(&daemon.url);
    client.modern("tools/call", call("workflow_define", json!({ "spec_yaml": NAP }))).await;
    let created = client.modern("tools/call", call("wf_nap", json!({}))).await;
    assert_eq!(created["result"]["resultType"], "task", "{created}");
    let id = created["result"]["taskId"].clone();
    daemon.kill_and_start();
    let waited = call("workflow_status", json!({ "run_id": id, "wait_s": 30 }));
    client.modern("tools/call", waited).await;
    let ended = client.modern("tasks/get", json!({ "taskId": id })).await;
    assert_eq!(ended["result"]["status"], "completed", "{ended}");
    assert_eq!(ended["result"]["result"]["content"][0]["text"], "rested");
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_stop_its_run() {
    let daemon = Daemon::start(&[]);
    let client = Rpc::new(&daemon.url);
    client.modern("tools/call", call("workflow_define", json!({ "spec_yaml": NAP }))).await;
    let start = call("workflow_start", json!({ "name": "nap", "wait_s": 45 }));
    let mut gone = Rpc::new(&daemon.url);
    gone.initialize().await;
    // It waits for the run, and is dropped as soon as the run is there.
    let started = async {
        loop {
            let listed = client.modern("tools/call", call("workflow_list_runs", json!({}))).await;
            if let Some(run) = listed["result"]["structuredContent"]["runs"][0]["run_id"].as_str() {
                return run.to_owned();
            }
        }
    };
    let run = tokio::select! {
        answer = gone.legacy("tools/call", start) => panic!("it ended early: {answer}"),
        run = started => run,
    };
    let ended =
        client.modern("tools/call", call("workflow_status", json!({ "run_id": run, "wait_s": 30 }))).await;
    assert_eq!(ended["result"]["structuredContent"]["status"], "completed", "{ended}");
}

/// A client on a pipe.
struct Pipe {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Pipe {
    fn open(data: &Path) -> Self {
        let mut command = Command::new(steprail());
        command.arg("mcp").arg("--data").arg(data).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a bridge");
        let (to, from) = (child.stdin.take().expect("in"), child.stdout.take().expect("out"));
        Self { child, to, from: BufReader::new(from) }
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.to, "{message}").expect("said");
    }

    fn ask(&mut self, id: u32, method: &str, params: &Value) -> Value {
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).expect("a line") > 0, "the bridge is gone");
            let answer: Value = serde_json::from_str(&line).expect("JSON");
            if answer["id"] == id {
                return answer;
            }
        }
    }

    fn initialize(&mut self) {
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" }
        });
        self.ask(1, "initialize", &params);
        self.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    }

    fn close(mut self) {
        drop(self.to);
        self.child.wait().expect("its end");
    }
}

/// Ends a daemon that was started in the background.
struct Background<'b>(&'b Path);

impl Drop for Background<'_> {
    fn drop(&mut self) {
        let process = std::fs::read_to_string(self.0.join("daemon.pid")).unwrap_or_default();
        let _ = Command::new("kill").args(["-9", &process]).status();
    }
}

#[test]
fn five_clients_share_one_engine_and_a_run_outlives_its_client() {
    let folder = tempfile::tempdir().expect("a folder");
    let _daemon = Background(folder.path());
    let mut clients: Vec<Pipe> = (0..5).map(|_| Pipe::open(folder.path())).collect();
    for client in &mut clients {
        client.initialize();
    }
    let start = call("workflow_start", json!({ "spec_yaml": NAP, "wait_s": 0 }));
    let mut first = clients.remove(0);
    let started = first.ask(2, "tools/call", &start);
    let run = started["result"]["structuredContent"]["run_id"].clone();
    first.close();
    let asked = call("workflow_status", json!({ "run_id": run, "wait_s": 30 }));
    let ended = clients[0].ask(2, "tools/call", &asked);
    assert_eq!(ended["result"]["structuredContent"]["status"], "completed", "{ended}");
    clients.into_iter().for_each(Pipe::close);
    let log = std::fs::read_to_string(folder.path().join("daemon.log")).expect("a log");
    assert_eq!(log.matches("ready").count(), 1, "{log}");
}

#[test]
fn a_bridge_outlives_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let folder = daemon.folder.path().to_owned();
    let mut client = Pipe::open(&folder);
    client.initialize();
    daemon.kill();
    let _background = Background(&folder);
    let listed = client.ask(2, "tools/list", &json!({}));
    assert!(listed["result"]["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "{listed}");
    client.close();
}

#[test]
fn an_embedded_server_wants_the_database_for_itself() {
    let daemon = Daemon::start(&[]);
    let mut command = Command::new(steprail());
    command.args(["mcp", "--embedded", "--data"]).arg(daemon.folder.path()).stdin(Stdio::null());
    let refused = command.output().expect("an end");
    assert_eq!(refused.status.code(), Some(73), "{}", String::from_utf8_lossy(&refused.stderr));
}
