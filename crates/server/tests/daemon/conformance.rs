//! The official conformance suite, against the real binary.
//!
//! Each baseline lists what fails, and why. What fails beside it fails the test, and so does an entry that passes.

use std::process::Command;

use serde_json::json;

use super::support::{Daemon, client, output, test_file};

/// A daemon with the suite's fixture tools behind its gateway.
fn with_fixture(arguments: &[&str]) -> Daemon {
    let folder = tempfile::tempdir().expect("a folder");
    let entry = json!({ "command": client("python-mcp"), "args": [test_file("conformance/fixture.py")] });
    let servers = json!({ "mcpServers": { "fixture": entry } });
    std::fs::write(folder.path().join("servers.json"), servers.to_string()).expect("a config");
    Daemon::start_in(folder, arguments)
}

/// Runs a part of the suite against a daemon.
fn conforms(daemon: &Daemon, part: [&str; 2], baseline: &str) {
    let mut command = Command::new(client("conformance"));
    command.args(["server", "--url", &daemon.url]).args(part).current_dir(daemon.folder.path());
    command.arg("--expected-failures").arg(test_file("conformance").join(baseline));
    output(&mut command);
}

#[test]
fn older_clients_are_served_as_the_suite_has_it() {
    conforms(&Daemon::start(&[]), ["--requirements", "2025-11-25"], "plain-2025-11-25.yml");
}

#[test]
fn clients_of_today_are_served_as_the_suite_has_it() {
    conforms(&Daemon::start(&[]), ["--requirements", "2026-07-28"], "plain-2026-07-28.yml");
}

#[test]
fn workflows_are_tools_of_older_clients() {
    let daemon = with_fixture(&["--ask-clients"]);
    daemon.define_all("conformance/workflows");
    conforms(&daemon, ["--requirements", "2025-11-25"], "workflows-2025-11-25.yml");
}

#[test]
fn workflows_are_tools_of_clients_of_today() {
    let daemon = with_fixture(&["--ask-clients"]);
    daemon.define_all("conformance/workflows");
    conforms(&daemon, ["--requirements", "2026-07-28"], "workflows-2026-07-28.yml");
}

#[test]
fn runs_are_tasks() {
    let daemon = with_fixture(&["--ask-clients"]);
    daemon.define_all("conformance/workflows");
    conforms(&daemon, ["--suite", "pending"], "tasks.yml");
}

#[test]
fn tools_of_other_servers_are_passed_on_to_older_clients() {
    let daemon = with_fixture(&["--expose", "test_*=fixture__test_*"]);
    conforms(&daemon, ["--requirements", "2025-11-25"], "workflows-2025-11-25.yml");
}

#[test]
fn tools_of_other_servers_are_passed_on_to_clients_of_today() {
    let daemon = with_fixture(&["--expose", "test_*=fixture__test_*"]);
    conforms(&daemon, ["--requirements", "2026-07-28"], "workflows-2026-07-28.yml");
}
