//! `kill -9` of a daemon with calls in flight and calls that wait for a slot, and during the start of its servers.
//!
//! `STEPRAIL_KILLS` is the number of kills during a start; `scripts/kills` sets it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Daemon, output, steprail, test_file};

/// The calls in the log of the server.
fn received(log: &Path) -> BTreeSet<String> {
    std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn steprail_json(daemon: &Daemon, arguments: &[&str]) -> Value {
    let mut command = Command::new(steprail());
    let text = output(command.args(arguments).args(["--json", "--data"]).arg(daemon.folder.path()));
    serde_json::from_str(&text).expect("JSON")
}

/// Kills a daemon with more calls than slots. Exactly the calls that the server received become uncertain.
fn kill_in_flight(transport: &str) {
    const CALLS: usize = 200;
    const SLOTS: usize = 120;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let script = test_file("servers/ledger.py");
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let url = format!("http://127.0.0.1:{port}/mcp");
    let mut http = (transport == "http").then(|| {
        let mut command = Command::new("python3");
        command.arg(&script).arg(&log).arg("http").arg(port.to_string()).stdin(Stdio::null());
        command.spawn().expect("a server")
    });
    let entry = if http.is_some() {
        json!({ "url": url, "maxCalls": SLOTS })
    } else {
        json!({ "command": "python3", "args": [script, log, "stdio"], "maxCalls": SLOTS })
    };
    let servers = json!({ "mcpServers": { "ledger": entry } });
    std::fs::write(folder.path().join("servers.json"), servers.to_string()).expect("a config");
    let items: Vec<usize> = (0..CALLS).collect();
    let definition = format!(
        "name: many\nsteps:\n  - id: each\n    kind: foreach\n    items: {items:?}\n    concurrency: {CALLS}\n    steps:\n      \
         - {{ id: work, tool: ledger__work, args: {{ n: '{{{{item}}}}', seconds: 1000 }} }}\n"
    );
    let file = folder.path().join("many.yaml");
    std::fs::write(&file, definition).expect("a definition");
    let mut daemon = Daemon::start_in(folder, &[]);
    let started = steprail_json(&daemon, &["run", &file.display().to_string(), "--detach"]);
    let run = started["run_id"].as_str().expect("an id").to_owned();
    while received(&log).len() < SLOTS {
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon.kill_and_restart();
    let view = loop {
        let view = steprail_json(&daemon, &["show", &run, "--all"]);
        if view["steps_by_status"]["uncertain"].as_u64() >= Some(SLOTS as u64) {
            break view;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let uncertain: BTreeSet<String> = view["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .filter(|step| step["status"] == "uncertain")
        .map(|step| step["path"].as_str().expect("a step").to_owned())
        .collect();
    let sent: BTreeSet<String> = received(&log)
        .iter()
        .filter_map(|line| line.strip_prefix("work "))
        .map(|n| format!("each[{n}].work"))
        .collect();
    assert!(
        uncertain.is_subset(&sent),
        "calls without a slot are uncertain: {:?}",
        uncertain.difference(&sent)
    );
    assert_eq!(uncertain.len(), SLOTS, "every call in flight is uncertain");
    if let Some(http) = &mut http {
        let _ = http.kill();
        let _ = http.wait();
    }
}

#[test]
fn waiting_call_of_a_stdio_server_is_never_uncertain() {
    kill_in_flight("stdio");
}

#[test]
fn waiting_call_of_an_http_server_is_never_uncertain() {
    kill_in_flight("http");
}

/// The command lines that contain a mark.
fn processes(mark: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(mark))
        .collect()
}

#[test]
fn daemon_killed_during_server_starts_leaves_no_processes() {
    let kills = std::env::var("STEPRAIL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let folder = tempfile::tempdir().expect("a folder");
    let mark = format!("mark-{}", folder.path().file_name().expect("a name").to_string_lossy());
    // A server that ignores SIGTERM and the end of its input, one that leaves its session, and one that works.
    let unresponsive = format!("trap '' TERM; while :; do sleep 1000; done # {mark}");
    let detached = format!("setsid sh -c 'sleep 1000; : {mark}' & exec sleep 1000 # {mark}");
    let servers = json!({ "mcpServers": {
        "unresponsive": { "command": "sh", "args": ["-c", unresponsive] },
        "detached": { "command": "sh", "args": ["-c", detached] },
        "ledger": { "command": "python3", "args": [test_file("servers/ledger.py"), folder.path().join(&mark), "stdio"] },
    } });
    std::fs::write(folder.path().join("servers.json"), servers.to_string()).expect("a config");
    for kill in 0..kills {
        let mut child = Command::new(steprail())
            .args(["serve", "--listen", "off", "--data"])
            .arg(folder.path())
            // The daemon rejects unknown `STEPRAIL_` variables.
            .env_remove("STEPRAIL_KILLS")
            .stdout(Stdio::null())
            .spawn()
            .expect("a daemon");
        // Between the first instruction and the end of the servers' start.
        std::thread::sleep(Duration::from_millis(15 + 13 * (kill % 30)));
        child.kill().expect("kill -9");
        child.wait().expect("the end");
    }
    let mut left = processes(&mark);
    for _ in 0..100 {
        if left.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        left = processes(&mark);
    }
    assert!(left.is_empty(), "{left:#?}");
}
