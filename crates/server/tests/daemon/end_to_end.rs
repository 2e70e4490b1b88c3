//! A workflow with third-party servers, started by a third-party client. The daemon is killed twice, and every effect
//! happens once.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use serde_json::{Value, json};

use super::support::{Daemon, Rpc, client, output, server, steprail};

const NOTE: &str = "\
name: note
inputs: { root: string, page: string }
steps:
  - { id: log, tool: git__git_log, args: { repo_path: '{{inputs.root}}/repo' } }
  - { id: page, tool: fetch__fetch, args: { url: '{{inputs.page}}' }, effects: read }
  - { id: ask, kind: approve, prompt: 'Write {{steps.page.output}}?' }
  - id: write
    tool: files__write_file
    args: { path: '{{inputs.root}}/repo/note.txt', content: '{{steps.page.output}}' }
  - { id: row, tool: db__write_query, args: { query: \"INSERT INTO notes VALUES ('note.txt')\" } }
  - { id: add, tool: git__git_add, args: { repo_path: '{{inputs.root}}/repo', files: [note.txt] } }
  - { id: commit, tool: git__git_commit, args: { repo_path: '{{inputs.root}}/repo', message: a note } }
output: '{{steps.commit.output}}'
";

fn git(root: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=ann", "-c", "user.email=ann@localhost", "-C", "repo"]).args(arguments);
    output(command.current_dir(root))
}

/// A repository, and servers for git, web pages, files and a database.
fn prepare(root: &Path) {
    std::fs::create_dir(root.join("repo")).expect("a folder");
    git(root, &["init", "--quiet"]);
    git(root, &["commit", "--quiet", "--allow-empty", "--message", "first"]);
    let entry =
        |name: &str, args: Value| json!({ "command": server(&format!("mcp-server-{name}")), "args": args });
    let mut servers = json!({
        "git": entry("git", json!([])),
        "fetch": entry("fetch", json!(["--allow-private-ips", "--ignore-robots-txt"])),
        "files": entry("filesystem", json!([root])),
        "db": entry("sqlite", json!(["--db-path", root.join("notes.db")])),
    });
    servers["git"]["env"] = json!({
        "GIT_AUTHOR_NAME": "ann", "GIT_AUTHOR_EMAIL": "ann@localhost",
        "GIT_COMMITTER_NAME": "ann", "GIT_COMMITTER_EMAIL": "ann@localhost",
    });
    std::fs::write(root.join("servers.json"), json!({ "mcpServers": servers }).to_string())
        .expect("a config");
}

/// A web page. Each request is handed to the test, which answers it.
fn page() -> (String, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/note.txt", listener.local_addr().expect("an address"));
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if sender.send(stream).is_err() {
                return;
            }
        }
    });
    (url, requests)
}

fn answer(mut stream: TcpStream) {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request);
    let body = "what happened today";
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).expect("sent");
}

/// Calls a tool with the MCP inspector.
fn inspector(daemon: &Daemon, tool: &str, args: &Value) -> Value {
    let mut command = Command::new(client("mcp-inspector"));
    command.env("HOME", daemon.folder.path()).env("MCP_INSPECTOR_SECRET_STORE", "memory");
    command.args([
        "--cli",
        &daemon.url,
        "--transport",
        "http",
        "--method",
        "tools/call",
        "--tool-name",
        tool,
    ]);
    command.args(["--tool-args-json", &args.to_string(), "--format", "json"]);
    let response: Value = serde_json::from_str(&output(&mut command)).expect("JSON");
    response["result"]["structuredContent"].clone()
}

#[tokio::test]
async fn run_has_each_effect_once_although_the_daemon_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_owned();
    prepare(&root);
    let (url, requests) = page();
    let mut daemon = Daemon::start_in(folder, &[]);
    let rpc = Rpc::new(&daemon.url);
    let table = json!({ "spec_yaml": "name: table\nsteps: [{ id: t, tool: db__create_table, args: { query: 'CREATE TABLE notes (name TEXT)' } }]" });
    assert_eq!(inspector(&daemon, "workflow_start", &table)["status"], "completed");

    let start = json!({ "spec_yaml": NOTE, "input": { "root": root, "page": url }, "wait_s": 0 });
    let run = inspector(&daemon, "workflow_start", &start)["run_id"].as_str().expect("a run").to_owned();
    // A call is in flight: the page was requested and has not responded.
    let in_flight = requests.recv().expect("a request");
    daemon.kill();
    drop(in_flight);
    daemon.restart();
    answer(requests.recv().expect("the page is requested again"));
    let status = async |wait: u32| {
        let call = json!({ "name": "workflow_status", "arguments": { "run_id": run, "wait_s": wait } });
        rpc.modern("tools/call", call).await["result"]["structuredContent"].clone()
    };
    let waits = status(45).await;
    assert_eq!(
        (&waits["status"], &waits["waiting"][0]["step"]),
        (&json!("paused"), &json!("ask")),
        "{waits}"
    );

    // An agent cannot decide. A human at the terminal can.
    let denied = json!({ "name": "workflow_approve", "arguments": { "run_id": run, "step_name": "ask" } });
    let denied = rpc.modern("tools/call", denied).await;
    assert_eq!(denied["result"]["isError"], true, "{denied}");
    daemon.kill_and_restart();
    let mut approve = Command::new(steprail());
    output(approve.args(["approve", &run, "ask", "--yes", "--data"]).arg(&root));
    let ended = status(45).await;
    assert_eq!(ended["status"], "completed", "{ended}");

    assert_eq!(git(&root, &["log", "--format=%s"]), "a note\nfirst\n");
    let note = std::fs::read_to_string(root.join("repo/note.txt")).expect("a note");
    assert!(note.contains("what happened today"), "{note}");
    let count = json!({ "spec_yaml": "name: count\nsteps: [{ id: c, tool: db__read_query, args: { query: 'SELECT count(*) AS n FROM notes' } }]" });
    let counted = inspector(&daemon, "workflow_start", &count)["output"].to_string();
    let digits: String = counted.chars().filter(char::is_ascii_digit).collect();
    assert_eq!(digits, "1", "{counted}");
}
