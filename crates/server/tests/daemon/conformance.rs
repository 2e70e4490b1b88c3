//! The official conformance suite against the real binary.
//!
//! Each baseline lists expected failures with reasons. Other failures fail the test, and so does an entry that passes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::support::{Daemon, client, output, test_file};

const LEGACY: [&str; 2] = ["--requirements", "2025-11-25"];
const MODERN: [&str; 2] = ["--requirements", "2026-07-28"];

/// The suite's own server, killed when dropped. The package does not contain it: `CONFORMANCE_SERVER` names its
/// `server.ts`.
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
        // Its output must be read, or it blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    /// Its config entry. It behaves differently in each era.
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

/// A server with some of the suite's fixture tools.
fn fixture() -> Value {
    json!({ "command": client("python-mcp"), "args": [test_file("conformance/fixture.py")] })
}

/// A daemon with workflows named as the suite's fixtures, as far as our fixture server has their tools.
fn with_fixture_workflows() -> Daemon {
    let daemon = with_servers(&json!({ "fixture": fixture() }), &["--ask-clients"]);
    daemon.define_all("conformance/workflows");
    daemon
}

/// A daemon with workflows named as the suite's fixtures. Their steps call our fixture server and the suite's server.
fn with_workflows(everything: &Everything, era: &str) -> Daemon {
    let servers = json!({ "fixture": fixture(), "everything": everything.entry(era) });
    let daemon = with_servers(&servers, &["--ask-clients", "--federate", "everything"]);
    daemon.define_all("conformance/workflows");
    daemon
}

/// A daemon that relays the suite's own server under its original tool names.
fn with_relay(everything: &Everything, era: &str) -> Daemon {
    let servers = json!({ "everything": everything.entry(era) });
    with_servers(&servers, &["--expose", "*=everything__*", "--federate", "everything"])
}

/// Runs a part of the suite against a server. Failures that are not in the baseline fail the test.
fn check_conformance(url: &str, part: [&str; 2], baseline: Option<&str>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(client("conformance"));
    command.args(["server", "--url", url]).args(part).current_dir(folder.path());
    if let Some(baseline) = baseline {
        command.arg("--expected-failures").arg(test_file("conformance").join(baseline));
    }
    output(&mut command);
}

#[test]
fn conforms_to_2025_11_25() {
    check_conformance(&Daemon::start(&[]).url, LEGACY, Some("plain-2025-11-25.yml"));
}

#[test]
fn conforms_to_2026_07_28() {
    check_conformance(&Daemon::start(&[]).url, MODERN, Some("plain-2026-07-28.yml"));
}

#[test]
fn published_workflows_conform_to_2025_11_25() {
    check_conformance(&with_fixture_workflows().url, LEGACY, Some("fixture-workflows-2025-11-25.yml"));
}

#[test]
fn published_workflows_conform_to_2026_07_28() {
    check_conformance(&with_fixture_workflows().url, MODERN, Some("fixture-workflows-2026-07-28.yml"));
}

#[test]
fn tasks_conform() {
    check_conformance(&with_fixture_workflows().url, ["--suite", "pending"], Some("tasks.yml"));
}

#[test]
fn exposed_tools_conform_to_2025_11_25() {
    let daemon = with_servers(&json!({ "fixture": fixture() }), &["--expose", "test_*=fixture__test_*"]);
    check_conformance(&daemon.url, LEGACY, Some("fixture-2025-11-25.yml"));
}

#[test]
fn exposed_tools_conform_to_2026_07_28() {
    let daemon = with_servers(&json!({ "fixture": fixture() }), &["--expose", "test_*=fixture__test_*"]);
    check_conformance(&daemon.url, MODERN, Some("fixture-2026-07-28.yml"));
}

#[test]
#[ignore = "needs the suite's own server: CONFORMANCE_SERVER=…/server.ts"]
fn workflows_that_call_the_suites_server_conform() {
    let everything = Everything::start();
    check_conformance(&with_workflows(&everything, "legacy").url, LEGACY, Some("workflows-2025-11-25.yml"));
    check_conformance(&with_workflows(&everything, "auto").url, MODERN, Some("workflows-2026-07-28.yml"));
}

/// The baseline of the suite's own server, for comparison with the relay.
#[test]
#[ignore = "needs the suite's own server: CONFORMANCE_SERVER=…/server.ts"]
fn suites_server_matches_its_baseline() {
    let everything = Everything::start();
    check_conformance(&everything.url, LEGACY, None);
    check_conformance(&everything.url, MODERN, Some("everything-2026-07-28.yml"));
}

#[test]
#[ignore = "needs the suite's own server: CONFORMANCE_SERVER=…/server.ts"]
fn relay_of_the_suites_server_conforms() {
    let everything = Everything::start();
    check_conformance(&with_relay(&everything, "legacy").url, LEGACY, None);
    check_conformance(&with_relay(&everything, "auto").url, MODERN, None);
}
