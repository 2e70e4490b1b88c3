//! Faults of servers, over stdio and HTTP, with the outcome of the step. Outages of many minutes are simulated in virtual
//! time (`engine/tests/scenarios/server_wait.txt`).

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Daemon, steprail, test_file};

/// A daemon with one faulty server, `rude`, over stdio or HTTP.
struct Fixture {
    daemon: Daemon,
    /// A shell that restarts the HTTP server when it dies.
    http: Option<Child>,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

impl Fixture {
    /// `before` is a shell command that runs before the server starts.
    fn new(transport: &str, before: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (script, log) = (test_file("servers/ledger.py"), folder.path().join("log"));
        let run = format!("python3 '{}' '{}'", script.display(), log.display());
        let (entry, http) = if transport == "http" {
            let port = free_port();
            let forever = format!("{before}; while :; do {run} http {port}; done");
            (json!({ "url": format!("http://127.0.0.1:{port}/mcp") }), Some(shell(&forever)))
        } else {
            (json!({ "command": "sh", "args": ["-c", format!("{before}; exec {run} stdio")] }), None)
        };
        let servers = json!({ "mcpServers": { "rude": entry } });
        std::fs::write(folder.path().join("servers.json"), servers.to_string()).expect("a config");
        Self { daemon: Daemon::start_in(folder, &[]), http }
    }

    fn steprail(&self, arguments: &[&str]) -> Value {
        let data = self.daemon.folder.path();
        // The exit code depends on the status of the run.
        let output = Command::new(steprail()).args(arguments).args(["--json", "--data"]).arg(data).output();
        serde_json::from_slice(&output.expect("an output").stdout).expect("JSON")
    }

    /// Starts a run of the given steps. Returns its id.
    fn start(&self, steps: &str) -> String {
        let file = self.daemon.folder.path().join("fault.yaml");
        std::fs::write(&file, format!("name: fault\nsteps:\n{steps}")).expect("a definition");
        let run = self.steprail(&["run", &file.display().to_string(), "--detach"]);
        run["run_id"].as_str().expect("an id").to_owned()
    }

    /// Waits until `is_expected` holds for the status of the run and of its last step. Returns both with the error.
    fn wait_for(&self, run: &str, is_expected: impl Fn(&str, &str) -> bool) -> String {
        loop {
            let view = self.steprail(&["show", run]);
            let status = view["status"].as_str().expect("a status");
            let empty = Vec::new();
            let step = view["steps"].as_array().unwrap_or(&empty).last();
            let step = step.map_or(Value::Null, Value::clone);
            let state = step["status"].as_str().unwrap_or_default();
            if is_expected(status, state) {
                let error = step["error"]["message"].as_str().unwrap_or_default();
                return format!("{status}, step {state}: {error}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs one step until it ends or needs a human. Returns the outcome.
    fn outcome(&self, step: &str) -> String {
        let run = self.start(&format!("  - {{ id: call, {step} }}\n"));
        self.wait_for(&run, |status, _| !matches!(status, "running" | "pending"))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(http) = &mut self.http {
            // The shell and the server that it started.
            let group = format!("-{}", http.id());
            let _ = Command::new("kill").args(["-9", "--", &group]).status();
            let _ = http.wait();
        }
    }
}

/// Starts a shell in its own process group.
fn shell(script: &str) -> Child {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("sh");
    command.args(["-c", script]).process_group(0).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("a shell")
}

fn faults_of(transport: &str) -> String {
    let fixture = Fixture::new(transport, ":");
    let mut table = Vec::new();
    let mut add = |fault: &str, outcome: String| table.push(format!("{fault}: {outcome}"));
    add("dies", fixture.outcome("tool: rude__die"));
    add("hangs", fixture.outcome("tool: rude__work, args: { n: 1, seconds: 1000 }, timeout: 1s"));
    add("hangs, read-only", fixture.outcome("tool: rude__read, args: { n: 1, seconds: 1000 }, timeout: 1s"));
    add("garbage", fixture.outcome("tool: rude__garbage, timeout: 1s"));
    add("oversized response", fixture.outcome("tool: rude__big, retry: 2"));
    if transport == "http" {
        add("429 with Retry-After, once", fixture.outcome("tool: rude__refuse, args: { status: 429 }"));
        add("404", fixture.outcome("tool: rude__refuse, args: { status: 404 }"));
        add("500", fixture.outcome("tool: rude__refuse, args: { status: 500 }"));
    }
    let poison = "  - id: all\n    branches:\n      - [{ id: a, tool: rude__read, args: { n: a, seconds: 1 } }]\n      \
                  - [{ id: poison, tool: rude__die, on_uncertain: skip }]\n      \
                  - [{ id: b, tool: rude__read, args: { n: b, seconds: 1 } }]\n";
    let run = fixture.start(poison);
    add("poison call beside others", fixture.wait_for(&run, |status, _| status == "completed"));
    table.join("\n")
}

#[test]
fn each_fault_of_a_stdio_server_has_its_outcome() {
    insta::assert_snapshot!(faults_of("stdio"));
}

#[test]
fn each_fault_of_an_http_server_has_its_outcome() {
    insta::assert_snapshot!(faults_of("http"));
}

/// Runs a step whose server starts seconds later. Returns the outcome while it waits and at the end.
fn delayed_server(transport: &str) -> String {
    let flag = tempfile::tempdir().expect("a folder");
    let ready = flag.path().join("ready");
    let wait = format!("[ -e '{}' ] || {{ sleep 0.2; exit 7; }}", ready.display());
    let wait = if transport == "http" {
        format!("while ! [ -e '{}' ]; do sleep 0.1; done", ready.display())
    } else {
        wait
    };
    let fixture = Fixture::new(transport, &wait);
    let run = fixture.start("  - { id: call, tool: rude__work, args: { n: 1 } }\n");
    let waiting_outcome = |fixture: &Fixture| fixture.wait_for(&run, |_, step| step == "waiting");
    let mut waiting = waiting_outcome(&fixture);
    while !waiting.contains("cannot be reached") && !waiting.contains("is starting") {
        waiting = waiting_outcome(&fixture);
    }
    std::thread::sleep(Duration::from_secs(3));
    write(&ready);
    let end = fixture.wait_for(&run, |status, _| status == "completed");
    let reason =
        if waiting.contains("is starting") { "running, step waiting: rude is starting" } else { &waiting };
    format!(
        "{}\n{end}",
        reason.replace("rude cannot be reached: its process ended with exit code 7", "rude is starting")
    )
}

fn write(file: &Path) {
    std::fs::write(file, "").expect("a flag");
}

#[test]
fn step_waits_for_a_server_that_is_down_for_seconds() {
    assert_eq!(delayed_server("stdio"), "running, step waiting: rude is starting\ncompleted, step done: ");
    let http = delayed_server("http");
    assert!(
        http.starts_with("running, step waiting: rude") && http.ends_with("completed, step done: "),
        "{http}"
    );
}

#[test]
fn step_waits_for_a_server_that_starts_in_45_seconds() {
    for transport in ["stdio", "http"] {
        let fixture = Fixture::new(transport, "sleep 45");
        assert_eq!(
            fixture.outcome("tool: rude__work, args: { n: 1 }"),
            "completed, step done: ",
            "{transport}"
        );
    }
}

#[test]
fn step_fails_after_server_wait() {
    for (transport, before) in [("stdio", "exit 3"), ("http", "sleep 1000")] {
        let fixture = Fixture::new(transport, before);
        let outcome = fixture.outcome("tool: rude__work, server_wait: 1s");
        let expected =
            "failed, step failed: the server did not accept the call within `server_wait`; nothing was sent";
        assert_eq!(outcome, expected, "{transport}");
    }
}

/// The call is made with the edited arguments, unless the input schema of the tool rejects them.
#[test]
fn edited_arguments_of_an_approval_are_checked_against_the_schema_of_the_tool() {
    let fixture = Fixture::new("stdio", ":");
    let run = fixture.start("  - { id: act, tool: rude__typed, args: { n: 1 }, needs_human: true }\n");
    fixture.wait_for(&run, |status, _| status == "paused");
    let approve = |args: &str| {
        let mut command = Command::new(steprail());
        command.args(["approve", &run, "--yes", "--args", args, "--data"]).arg(fixture.daemon.folder.path());
        String::from_utf8(command.output().expect("an output").stderr).expect("text")
    };
    let refused = approve(r#"{"n": "many"}"#);
    assert!(refused.contains("invalid arguments for `rude__typed`"), "{refused}");
    let approved = approve(r#"{"n": 2}"#);
    assert!(!approved.contains("error"), "{approved}");
    fixture.wait_for(&run, |status, _| status == "completed");
    let calls = std::fs::read_to_string(fixture.daemon.folder.path().join("log")).expect("the log");
    assert_eq!(calls, "typed 2\n");
}
