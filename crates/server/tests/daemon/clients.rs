//! Third-party clients, over both transports and in both eras.

use std::process::Command;

use serde_json::{Value, json};

use super::support::{Daemon, client, output, steprail, test_file};

/// The interpreter, the script and the eras of each smoke test.
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
            let printed = output(&mut command);
            let last: Value =
                serde_json::from_str(printed.lines().last().unwrap_or_default()).expect("a verdict");
            assert_eq!(
                (&last["ok"], last["era"].as_str()),
                (&json!(true), Some(*era)),
                "{script}: {printed}"
            );
        }
    }
}

#[test]
fn sdk_clients_drive_workflows_over_http() {
    let daemon = Daemon::start(&["--ask-clients"]);
    smoke(&["http", &daemon.url]);
}

#[test]
fn sdk_clients_drive_workflows_over_stdio() {
    let daemon = Daemon::start(&["--ask-clients"]);
    let data = daemon.folder.path().display().to_string();
    smoke(&["stdio", steprail(), "mcp", "--data", &data]);
}

/// A client whose home directory is the data directory of the daemon.
fn isolated_client(daemon: &Daemon, program: &str) -> Command {
    let mut command = Command::new(client(program));
    command.env("HOME", daemon.folder.path()).env("MCP_INSPECTOR_SECRET_STORE", "memory");
    command.current_dir(daemon.folder.path()).stdin(std::process::Stdio::null());
    command
}

#[test]
fn inspector_calls_tools() {
    let daemon = Daemon::start(&[]);
    let data = daemon.folder.path().display().to_string();
    let spec = "name: quick\nsteps: [{ id: nap, kind: sleep, for: 1ms }]\noutput: done\n";
    let args = json!({ "spec_yaml": spec, "input": {} }).to_string();
    for era in ["legacy", "modern"] {
        let call = ["--protocol-era", era, "--method", "tools/call", "--tool-name", "workflow_start"];
        let mut over_http = isolated_client(&daemon, "mcp-inspector");
        over_http.args(["--cli", &daemon.url, "--transport", "http"]).args(call);
        let mut over_stdio = isolated_client(&daemon, "mcp-inspector");
        over_stdio.arg("--cli").args(call);
        over_http.args(["--tool-args-json", &args, "--format", "json"]);
        over_stdio.args(["--tool-args-json", &args, "--format", "json"]);
        over_stdio.args(["--", steprail(), "mcp", "--data", &data]);
        for mut command in [over_http, over_stdio] {
            let response: Value = serde_json::from_str(&output(&mut command)).expect("JSON");
            let facts = &response["result"]["structuredContent"];
            assert_eq!(
                (&facts["status"], &facts["output"]),
                (&json!("completed"), &json!("done")),
                "{response}"
            );
        }
    }
}

const GATE: &str =
    "name: gate\nsteps: [{ id: ask, kind: approve, prompt: 'Go on?', allow_self: true }]\noutput: went on\n";

/// An approval reaches the client as an elicitation, in a session and in a task.
#[test]
fn mcpdo_answers_elicitations_of_sessions_and_tasks() {
    let daemon = Daemon::start(&["--ask-clients"]);
    let mcpdo = |arguments: &[&str]| {
        let printed = output(isolated_client(&daemon, "mcpdo").args(["--format", "json"]).args(arguments));
        serde_json::from_str::<Value>(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    };
    let args = json!({ "spec_yaml": GATE, "wait_s": 5 }).to_string();
    for era in ["legacy", "modern"] {
        output(
            isolated_client(&daemon, "mcpdo")
                .args(["--connection", era, "--format", "json", "connect"])
                .args([&daemon.url, "--era", era]),
        );
        let connection = format!("@{era}");
        let response = mcpdo(&[&connection, "tools/call", "workflow_start", &args]);
        let elicitation = response["elicitationPending"]["elicitationId"].as_str();
        let elicitation = elicitation.unwrap_or_else(|| panic!("no elicitation: {response}"));
        let ended = mcpdo(&[&connection, "elicitation/respond", elicitation, "confirm:=true"]);
        let text = ended.to_string();
        assert!(text.contains("completed") && text.contains("went on"), "{era}: {ended}");
    }
    let _ = isolated_client(&daemon, "mcpdo").args(["daemon", "stop"]).output();
}
