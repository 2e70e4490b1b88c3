//! `kill -9` of a daemon with calls in flight and in the queue, and during the start of its servers.
//!
//! `STEPRAIL_KILLS` is the number of kills during a start; `scripts/kills` sets it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Daemon, output, steprail, test_file};

/// The calls that the server of a log has seen.
fn seen(log: &Path) -> BTreeSet<String> {
    std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn runs(daemon: &Daemon, arguments: &[&str]) -> Value {
    let mut command = Command::new(steprail());
    let text = output(command.args(arguments).args(["--json", "--data"]).arg(daemon.folder.path()));
    serde_json::from_str(&text).expect("JSON")
}

/// With calls in flight and in the queue, a kill makes exactly those uncertain that the server saw.
fn kill_in_flight(transport: &str) {
    const CALLS: usize = 200;
    const SLOTS: usize = 120;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let script = test_file("servers/ledger.py");
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let url = format!("http://127.0.0.1:{port}/mcp");
    let mut web = (transport == "http").then(|| {
        let mut command = Command::new("python3");
        command.arg(&script).arg(&log).arg("http").arg(port.to_string()).stdin(Stdio::null());
        command.spawn().expect("a server")
    });
    let entry = if web.is_some() {
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
    let started = runs(&daemon, &["run", &file.display().to_string(), "--detach"]);
    let run = started["run_id"].as_str().expect("an id").to_owned();
    while seen(&log).len() < SLOTS {
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon.kill_and_start();
    let shown = loop {
        let shown = runs(&daemon, &["show", &run]);
        let unknown = shown["unknown_calls"].as_array().map_or(0, Vec::len);
        if unknown >= SLOTS {
            break shown;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let uncertain: BTreeSet<String> = shown["unknown_calls"]
        .as_array()
        .expect("calls")
        .iter()
        .map(|call| call["step"].as_str().expect("a step").to_owned())
        .collect();
    let before: BTreeSet<String> = seen(&log)
        .iter()
        .filter_map(|line| line.strip_prefix("work "))
        .map(|n| format!("each[{n}].work"))
        .collect();
    assert!(uncertain.is_subset(&before), "queued calls are uncertain: {:?}", uncertain.difference(&before));
    assert_eq!(uncertain.len(), SLOTS, "every call that was in flight is");
    if let Some(web) = &mut web {
        let _ = web.kill();
        let _ = web.wait();
    }
}

#[test]
fn a_call_in_the_queue_of_a_stdio_server_is_never_uncertain() {
    kill_in_flight("stdio");
}

#[test]
fn a_call_in_the_queue_of_an_http_server_is_never_uncertain() {
    kill_in_flight("http");
}

/// The processes whose command line has a mark.
fn processes(mark: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(mark))
        .collect()
}

#[test]
fn no_process_outlives_a_daemon_that_is_killed_while_its_servers_start() {
    let kills = std::env::var("STEPRAIL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let folder = tempfile::tempdir().expect("a folder");
    let mark = format!("mark-{}", folder.path().file_name().expect("a name").to_string_lossy());
    // One that ignores the end of its input and SIGTERM, one that leaves its session, one that answers.
    let deaf = format!("trap '' TERM; while :; do sleep 1000; done # {mark}");
    let gone = format!("setsid sh -c 'sleep 1000; : {mark}' & exec sleep 1000 # {mark}");
    let servers = json!({ "mcpServers": {
        "deaf": { "command": "sh", "args": ["-c", deaf] },
        "gone": { "command": "sh", "args": ["-c", gone] },
        "ledger": { "command": "python3", "args": [test_file("servers/ledger.py"), folder.path().join(&mark), "stdio"] },
    } });
    std::fs::write(folder.path().join("servers.json"), servers.to_string()).expect("a config");
    for kill in 0..kills {
        let mut child = Command::new(steprail())
            .args(["serve", "--listen", "off", "--data"])
            .arg(folder.path())
            // A variable that is no setting ends the daemon.
            .env_remove("STEPRAIL_KILLS")
            .stdout(Stdio::null())
            .spawn()
            .expect("a daemon");
        // Somewhere between the first instruction and servers that are up.
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
