//! Every way in which a server fails, over stdio and over HTTP, with what becomes of the step. Absences of many minutes are
//! played in virtual time (`engine/tests/scenarios/server_wait.txt`).

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Daemon, steprail, test_file};

/// A daemon with one server, `rude`, over stdio or HTTP.
struct Stage {
    daemon: Daemon,
    /// Keeps the HTTP server running, also after it died.
    web: Option<Child>,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

impl Stage {
    /// `before` is a shell command that runs before the server starts.
    fn new(transport: &str, before: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (script, log) = (test_file("servers/ledger.py"), folder.path().join("log"));
        let run = format!("python3 '{}' '{}'", script.display(), log.display());
        let (entry, web) = if transport == "http" {
            let port = free_port();
            let forever = format!("{before}; while :; do {run} http {port}; done");
            (json!({ "url": format!("http://127.0.0.1:{port}/mcp") }), Some(shell(&forever)))
        } else {
            (json!({ "command": "sh", "args": ["-c", format!("{before}; exec {run} stdio")] }), None)
        };
        let servers = json!({ "mcpServers": { "rude": entry } });
        std::fs::write(folder.path().join("servers.json"), servers.to_string()).expect("a config");
        Self { daemon: Daemon::start_in(folder, &[]), web }
    }

    fn steprail(&self, arguments: &[&str]) -> Value {
        let data = self.daemon.folder.path();
        // The exit code tells how the run stands.
        let shown = Command::new(steprail()).args(arguments).args(["--json", "--data"]).arg(data).output();
        serde_json::from_slice(&shown.expect("an output").stdout).expect("JSON")
    }

    /// Starts a run of some steps; gives its id.
    fn start(&self, steps: &str) -> String {
        let file = self.daemon.folder.path().join("fault.yaml");
        std::fs::write(&file, format!("name: fault\nsteps:\n{steps}")).expect("a definition");
        let run = self.steprail(&["run", &file.display().to_string(), "--detach"]);
        run["run_id"].as_str().expect("an id").to_owned()
    }

    /// The run and its last step, as soon as they are as wanted.
    fn until(&self, run: &str, wanted: impl Fn(&str, &str) -> bool) -> String {
        loop {
            let shown = self.steprail(&["show", run]);
            let status = shown["status"].as_str().expect("a status");
            let empty = Vec::new();
            let step = shown["steps"].as_array().unwrap_or(&empty).last();
            let step = step.map_or(Value::Null, Value::clone);
            let state = step["status"].as_str().unwrap_or_default();
            if wanted(status, state) {
                let error = step["error"]["message"].as_str().unwrap_or_default();
                return format!("{status}, step {state}: {error}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// How a run of one step stands when nothing more happens by itself.
    fn ends(&self, step: &str) -> String {
        let run = self.start(&format!("  - {{ id: call, {step} }}\n"));
        self.until(&run, |status, _| !matches!(status, "running" | "pending"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(web) = &mut self.web {
            // The shell and the server that it started.
            let group = format!("-{}", web.id());
            let _ = Command::new("kill").args(["-9", "--", &group]).status();
            let _ = web.wait();
        }
    }
}

/// A shell in a process group of its own.
fn shell(script: &str) -> Child {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("sh");
    command.args(["-c", script]).process_group(0).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("a shell")
}

fn faults_of(transport: &str) -> String {
    let stage = Stage::new(transport, ":");
    let mut table = Vec::new();
    let mut tell = |what: &str, outcome: String| table.push(format!("{what}: {outcome}"));
    tell("dies", stage.ends("tool: rude__die"));
    tell("hangs", stage.ends("tool: rude__work, args: { n: 1, seconds: 1000 }, timeout: 1s"));
    tell("hangs, read-only", stage.ends("tool: rude__read, args: { n: 1, seconds: 1000 }, timeout: 1s"));
    tell("garbage", stage.ends("tool: rude__garbage, timeout: 1s"));
    tell("oversized response", stage.ends("tool: rude__big, retry: 2"));
    if transport == "http" {
        tell("429 with Retry-After, once", stage.ends("tool: rude__refuse, args: { status: 429 }"));
        tell("404", stage.ends("tool: rude__refuse, args: { status: 404 }"));
        tell("500", stage.ends("tool: rude__refuse, args: { status: 500 }"));
    }
    let poison = "  - id: all\n    branches:\n      - [{ id: a, tool: rude__read, args: { n: a, seconds: 1 } }]\n      \
                  - [{ id: poison, tool: rude__die, on_uncertain: skip }]\n      \
                  - [{ id: b, tool: rude__read, args: { n: b, seconds: 1 } }]\n";
    let run = stage.start(poison);
    tell("poison call beside others", stage.until(&run, |status, _| status == "completed"));
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

/// A step waits for a server that is not there, and goes on when it is.
fn absent(transport: &str) -> String {
    let flag = tempfile::tempdir().expect("a folder");
    let there = flag.path().join("there");
    let wait = format!("[ -e '{}' ] || {{ sleep 0.2; exit 7; }}", there.display());
    let wait = if transport == "http" {
        format!("while ! [ -e '{}' ]; do sleep 0.1; done", there.display())
    } else {
        wait
    };
    let stage = Stage::new(transport, &wait);
    let run = stage.start("  - { id: call, tool: rude__work, args: { n: 1 } }\n");
    let down = |stage: &Stage| stage.until(&run, |_, step| step == "waiting");
    let mut waiting = down(&stage);
    while !waiting.contains("cannot be reached") && !waiting.contains("is starting") {
        waiting = down(&stage);
    }
    std::thread::sleep(Duration::from_secs(3));
    write(&there);
    let back = stage.until(&run, |status, _| status == "completed");
    let reason =
        if waiting.contains("is starting") { "running, step waiting: rude is starting" } else { &waiting };
    format!(
        "{}\n{back}",
        reason.replace("rude cannot be reached: its process ended with exit code 7", "rude is starting")
    )
}

fn write(file: &Path) {
    std::fs::write(file, "").expect("a flag");
}

#[test]
fn a_step_waits_for_a_server_that_is_away_for_seconds() {
    assert_eq!(absent("stdio"), "running, step waiting: rude is starting\ncompleted, step done: ");
    let http = absent("http");
    assert!(
        http.starts_with("running, step waiting: rude") && http.ends_with("completed, step done: "),
        "{http}"
    );
}

#[test]
fn a_server_that_starts_in_45_seconds_is_waited_for() {
    for transport in ["stdio", "http"] {
        let stage = Stage::new(transport, "sleep 45");
        assert_eq!(stage.ends("tool: rude__work, args: { n: 1 }"), "completed, step done: ", "{transport}");
    }
}

#[test]
fn a_step_gives_up_where_it_says_so() {
    for (transport, before) in [("stdio", "exit 3"), ("http", "sleep 1000")] {
        let stage = Stage::new(transport, before);
        let given_up = stage.ends("tool: rude__work, server_wait: 1s");
        let expected =
            "failed, step failed: the server did not accept the call within `server_wait`; nothing was sent";
        assert_eq!(given_up, expected, "{transport}");
    }
}
