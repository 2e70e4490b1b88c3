//! Clients that others wrote, over both transports and in both eras.

use std::process::Command;

use serde_json::{Value, json};

use super::support::{Daemon, client, output, steprail, test_file};

/// What each smoke test is run with, and the eras that its client speaks.
const SMOKES: [(&str, &str, &[&str]); 4] = [
    ("python-mcp", "smoke.py", &["legacy", "modern"]),
    ("python-fastmcp", "smoke_fastmcp.py", &["legacy", "modern"]),
    ("node", "smoke_v1.mjs", &["legacy"]),
    ("node", "smoke_v2.mjs", &["legacy", "modern"]),
];

fn smoke(transport: &[&str]) {
    for (program, script, eras) in SMOKES {
        for era in eras {
            let mut command = Command::new(client(program));
            command.env("ERA", era).arg(test_file("clients").join(script)).args(transport);
            let said = output(&mut command);
            let last: Value =
                serde_json::from_str(said.lines().last().unwrap_or_default()).expect("a verdict");
            assert_eq!((&last["ok"], last["era"].as_str()), (&json!(true), Some(*era)), "{script}: {said}");
        }
    }
}

#[test]
fn sdk_clients_drive_workflows_over_http() {
    let daemon = Daemon::start(&["--ask-clients"]);
    smoke(&["http", &daemon.url]);
}

#[test]
fn sdk_clients_drive_workflows_over_a_pipe() {
    let daemon = Daemon::start(&["--ask-clients"]);
    let data = daemon.folder.path().display().to_string();
    smoke(&["stdio", steprail(), "mcp", "--data", &data]);
}

/// A client with a folder of its own, where it keeps what it likes.
fn at_home(daemon: &Daemon, program: &str) -> Command {
    let mut command = Command::new(client(program));
    command.env("HOME", daemon.folder.path()).env("MCP_INSPECTOR_SECRET_STORE", "memory");
    command.current_dir(daemon.folder.path()).stdin(std::process::Stdio::null());
    command
}

#[test]
fn the_inspector_calls_tools() {
    let daemon = Daemon::start(&[]);
    let data = daemon.folder.path().display().to_string();
    let spec = "name: quick\nsteps: [{ id: nap, kind: sleep, for: 1ms }]\noutput: done\n";
    let args = json!({ "spec_yaml": spec, "input": {} }).to_string();
    for era in ["legacy", "modern"] {
        let call = ["--protocol-era", era, "--method", "tools/call", "--tool-name", "workflow_start"];
        let mut over_http = at_home(&daemon, "mcp-inspector");
        over_http.args(["--cli", &daemon.url, "--transport", "http"]).args(call);
        let mut over_pipe = at_home(&daemon, "mcp-inspector");
        over_pipe.arg("--cli").args(call);
        over_http.args(["--tool-args-json", &args, "--format", "json"]);
        over_pipe.args(["--tool-args-json", &args, "--format", "json"]);
        over_pipe.args(["--", steprail(), "mcp", "--data", &data]);
        for mut command in [over_http, over_pipe] {
            let said: Value = serde_json::from_str(&output(&mut command)).expect("JSON");
            let facts = &said["result"]["structuredContent"];
            assert_eq!((&facts["status"], &facts["output"]), (&json!("completed"), &json!("done")), "{said}");
        }
    }
}

const GATE: &str =
    "name: gate\nsteps: [{ id: ask, kind: approve, prompt: 'Go on?', allow_self: true }]\noutput: went on\n";

/// An approval is a question to the client's user: of a session, or of a task.
#[test]
fn mcpdo_answers_an_approval_and_the_input_of_a_task() {
    let daemon = Daemon::start(&["--ask-clients"]);
    let mcpdo = |arguments: &[&str]| {
        let said = output(at_home(&daemon, "mcpdo").args(["--format", "json"]).args(arguments));
        serde_json::from_str::<Value>(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    };
    let args = json!({ "spec_yaml": GATE, "wait_s": 5 }).to_string();
    for era in ["legacy", "modern"] {
        output(at_home(&daemon, "mcpdo").args(["--connection", era, "--format", "json", "connect"]).args([
            &daemon.url,
            "--era",
            era,
        ]));
        let connection = format!("@{era}");
        let asked = mcpdo(&[&connection, "tools/call", "workflow_start", &args]);
        let question = asked["elicitationPending"]["elicitationId"].as_str();
        let question = question.unwrap_or_else(|| panic!("no question: {asked}"));
        let ended = mcpdo(&[&connection, "elicitation/respond", question, "confirm:=true"]);
        let text = ended.to_string();
        assert!(text.contains("completed") && text.contains("went on"), "{era}: {ended}");
    }
    let _ = at_home(&daemon, "mcpdo").args(["daemon", "stop"]).output();
}
