//! The official conformance suite, against the real binary.
//!
//! Each baseline lists what fails, and why. What fails beside it fails the test, and so does an entry that passes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::support::{Daemon, client, output, test_file};

const LEGACY: [&str; 2] = ["--requirements", "2025-11-25"];
const MODERN: [&str; 2] = ["--requirements", "2026-07-28"];

/// The suite's own server, which its package does not contain: `CONFORMANCE_SERVER` names its `server.ts`. It is killed at
/// the end.
struct Everything {
    child: Child,
    url: String,
}

impl Everything {
    fn start() -> Self {
        let mut command = Command::new(client("node"));
        let program = std::env::var_os("CONFORMANCE_SERVER").expect("the path of the suite's server");
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .expect("a port")
            .local_addr()
            .expect("an address")
            .port();
        command.arg(program).env("PORT", port.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the suite's server");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        lines.next().expect("it listens").expect("a line");
        let url = format!("http://127.0.0.1:{port}/mcp");
        // What it prints is read, or it would stop at a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    /// Its entry in a config file. To clients of older revisions it is another server than to those of today.
    fn entry(&self, era: &str) -> Value {
        json!({ "url": self.url, "elicitation": true, "sampling": true, "protocolEra": era })
    }
}

impl Drop for Everything {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon with servers behind its gateway.
fn with_servers(servers: &Value, arguments: &[&str]) -> Daemon {
    let folder = tempfile::tempdir().expect("a folder");
    let servers = json!({ "mcpServers": servers });
    std::fs::write(folder.path().join("servers.json"), servers.to_string()).expect("a config");
    Daemon::start_in(folder, arguments)
}

/// Our own server with some of the suite's fixture tools.
fn fixture() -> Value {
    json!({ "command": client("python-mcp"), "args": [test_file("conformance/fixture.py")] })
}

/// A daemon with workflows under the names of the suite's fixtures, as far as our own server has what they call.
fn with_fixture_workflows() -> Daemon {
    let daemon = with_servers(&json!({ "fixture": fixture() }), &["--ask-clients"]);
    daemon.define_all("conformance/workflows");
    daemon
}

/// A daemon with workflows under the names of the suite's fixtures. Their steps call our fixture and the suite's server.
fn with_workflows(everything: &Everything, era: &str) -> Daemon {
    let servers = json!({ "fixture": fixture(), "everything": everything.entry(era) });
    let daemon = with_servers(&servers, &["--ask-clients", "--federate", "everything"]);
    daemon.define_all("conformance/workflows");
    daemon
}

/// A daemon that passes the suite's own server on, under the names that it has there.
fn passing_on(everything: &Everything, era: &str) -> Daemon {
    let servers = json!({ "everything": everything.entry(era) });
    with_servers(&servers, &["--expose", "*=everything__*", "--federate", "everything"])
}

/// Runs a part of the suite against a server.
fn conforms(url: &str, part: [&str; 2], baseline: Option<&str>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(client("conformance"));
    command.args(["server", "--url", url]).args(part).current_dir(folder.path());
    if let Some(baseline) = baseline {
        command.arg("--expected-failures").arg(test_file("conformance").join(baseline));
    }
    output(&mut command);
}

#[test]
fn older_clients_are_served_as_the_suite_has_it() {
    conforms(&Daemon::start(&[]).url, LEGACY, Some("plain-2025-11-25.yml"));
}

#[test]
fn clients_of_today_are_served_as_the_suite_has_it() {
    conforms(&Daemon::start(&[]).url, MODERN, Some("plain-2026-07-28.yml"));
}

#[test]
fn workflows_are_tools_of_older_clients() {
    conforms(&with_fixture_workflows().url, LEGACY, Some("fixture-workflows-2025-11-25.yml"));
}

#[test]
fn workflows_are_tools_of_clients_of_today() {
    conforms(&with_fixture_workflows().url, MODERN, Some("fixture-workflows-2026-07-28.yml"));
}

#[test]
fn runs_are_tasks() {
    conforms(&with_fixture_workflows().url, ["--suite", "pending"], Some("tasks.yml"));
}

#[test]
fn tools_of_other_servers_are_passed_on_to_older_clients() {
    let daemon = with_servers(&json!({ "fixture": fixture() }), &["--expose", "test_*=fixture__test_*"]);
    conforms(&daemon.url, LEGACY, Some("fixture-2025-11-25.yml"));
}

#[test]
fn tools_of_other_servers_are_passed_on_to_clients_of_today() {
    let daemon = with_servers(&json!({ "fixture": fixture() }), &["--expose", "test_*=fixture__test_*"]);
    conforms(&daemon.url, MODERN, Some("fixture-2026-07-28.yml"));
}

#[test]
#[ignore = "needs the suite's own server: CONFORMANCE_SERVER=…/server.ts"]
fn workflows_call_the_suites_own_server() {
    let everything = Everything::start();
    conforms(&with_workflows(&everything, "legacy").url, LEGACY, Some("workflows-2025-11-25.yml"));
    conforms(&with_workflows(&everything, "auto").url, MODERN, Some("workflows-2026-07-28.yml"));
}

/// What the suite's own server passes: the measure for passing it on.
#[test]
#[ignore = "needs the suite's own server: CONFORMANCE_SERVER=…/server.ts"]
fn the_suites_own_server_is_what_the_baselines_say() {
    let everything = Everything::start();
    conforms(&everything.url, LEGACY, None);
    conforms(&everything.url, MODERN, Some("everything-2026-07-28.yml"));
}

#[test]
#[ignore = "needs the suite's own server: CONFORMANCE_SERVER=…/server.ts"]
fn the_suites_own_server_is_passed_on() {
    let everything = Everything::start();
    conforms(&passing_on(&everything, "legacy").url, LEGACY, None);
    conforms(&passing_on(&everything, "auto").url, MODERN, None);
}
