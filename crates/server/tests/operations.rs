//! Backup, restore, audit and doctor, with the real binary.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

use common::Folder;
use rusqlite::Connection;
use serde_json::{Value, json};

const NAP: &str = "name: nap\nsteps: [{ id: nap, kind: sleep, for: 1ms }]\noutput: rested\n";

/// A data directory with an ended run, in a directory that is also the user's home.
fn with_ended_run() -> Folder {
    let folder = Folder::with(&[("nap.yaml", NAP)]);
    std::fs::create_dir(folder.0.path().join("data")).expect("a data directory");
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(folder.0.path().join("data"), private).expect("permissions");
    let ran = folder.run("run nap.yaml --db data/steprail.db");
    assert!(ran.contains("--- exit 0"), "{ran}");
    folder
}

/// Runs a command. Returns its output and exit code, without the path of the directory.
fn transcript(folder: &Folder, arguments: &str) -> String {
    let mut command = folder.command(arguments);
    let output = command.env("HOME", folder.0.path()).env_remove("XDG_DATA_HOME").output().expect("an end");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let (out, err) = (text(output.stdout), text(output.stderr));
    let code = output.status.code().expect("a code");
    let printed = format!("$ steprail {arguments}\n{err}--- stdout\n{out}--- exit {code}\n");
    printed.replace(&folder.0.path().display().to_string(), "[folder]")
}

fn settings() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "[run]");
    settings.add_filter(r"\d{8}T\d{6}Z", "[time]");
    settings.add_filter(r"[\d.]+ ([KMGT]i)?B\b", "[size]");
    settings.add_filter(r#""bytes": \d+"#, r#""bytes": [size]"#);
    settings.add_filter(r"\d+ ms", "[time]");
    settings.add_filter(r"process \d+", "process [pid]");
    settings
}

/// Changes a stored event without updating the hash chain.
fn damage(folder: &Folder) {
    let sql = "DROP TRIGGER events_never_change;
               UPDATE workflow_log SET body = replace(body, 'nap', 'nop') WHERE seq = 1 AND run_id > 0;";
    let database = Connection::open(folder.0.path().join("data/steprail.db")).expect("the database");
    database.execute_batch(sql).expect("damage");
}

/// A daemon on the data directory of a test, killed when dropped.
struct Daemon(Child);

impl Daemon {
    fn start(folder: &Folder) -> Self {
        let mut command = folder.command("serve --data data");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a daemon");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "ready"), "the daemon ended");
        Self(child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn backup_works_beside_the_daemon_and_restore_without_it() {
    let folder = with_ended_run();
    let daemon = Daemon::start(&folder);
    let mut all = transcript(&folder, "backup saved.db --data data");
    all += &transcript(&folder, "backup saved.db --data data");
    all += &transcript(&folder, "backup again.db --data data --json");
    all += &transcript(&folder, "restore saved.db --data data --yes")
        .replace(&daemon.0.id().to_string(), "[pid]");
    drop(daemon);
    all += &transcript(&folder, "restore saved.db --data data");
    all += &transcript(&folder, "restore saved.db --data data --yes");
    all += &transcript(&folder, "restore nothing.db --data data --yes");
    all += &transcript(&folder, "audit verify --data data");
    settings().bind(|| insta::assert_snapshot!(all));
    assert_eq!(replaced_databases(&folder.0.path().join("data")).len(), 1);
}

const HOLD: &str = "name: hold\nsteps: [{ id: hold, kind: wait, event: go }]\n";

#[test]
fn runs_of_a_restored_database_wait_until_they_are_resumed() {
    let folder = with_ended_run();
    std::fs::write(folder.0.path().join("hold.yaml"), HOLD).expect("a definition");
    let daemon = Daemon::start(&folder);
    let started = transcript(&folder, "run hold.yaml --data data --detach");
    assert!(started.contains("--- exit 0"), "{started}");
    let backup = transcript(&folder, "backup saved.db --data data");
    assert!(backup.contains("--- exit 0"), "{backup}");
    drop(daemon);
    let mut all = transcript(&folder, "restore saved.db --data data --yes");
    let daemon = Daemon::start(&folder);
    all += &transcript(&folder, "resume --all --data data");
    all += &transcript(&folder, "resume --all --data data");
    drop(daemon);
    let mut settings = settings();
    settings.add_filter(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "[time]");
    settings.bind(|| insta::assert_snapshot!(all));
}

#[test]
fn a_backup_that_is_copied_by_hand_is_refused_until_it_is_accepted() {
    let folder = with_ended_run();
    let backup = transcript(&folder, "backup saved.db --data data");
    assert!(backup.contains("--- exit 0"), "{backup}");
    std::fs::copy(folder.0.path().join("saved.db"), folder.0.path().join("data/steprail.db"))
        .expect("a copy");
    let mut all = transcript(&folder, "run nap.yaml --db data/steprail.db");
    all += &transcript(&folder, "restore --in-place --data data --yes");
    all += &transcript(&folder, "restore --data data --yes");
    settings().bind(|| insta::assert_snapshot!(all));
    let ran = folder.run("run nap.yaml --db data/steprail.db");
    assert!(ran.contains("--- exit 0"), "{ran}");
}

/// The databases that were replaced.
fn replaced_databases(data: &Path) -> Vec<String> {
    let names = std::fs::read_dir(data).expect("a folder").map(|entry| entry.expect("a file").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.contains("-until-") && !name.ends_with("-wal")).collect()
}

#[test]
fn audit_reports_damage() {
    let folder = with_ended_run();
    let mut all = transcript(&folder, "audit verify --data data");
    damage(&folder);
    all += &transcript(&folder, "audit verify --db data/steprail.db");
    all += &transcript(&folder, "audit verify --db data/steprail.db --json");
    all += &transcript(&folder, "audit verify 01900000-0000-7000-8000-000000000000 --data data");
    all += &transcript(&folder, "audit verify --db missing.db");
    settings().bind(|| insta::assert_snapshot!(all));
}

/// Other programs read the database with the SQLite of their system, which can be years old.
#[test]
fn tables_and_views_can_be_read_with_another_sqlite() {
    let folder = with_ended_run();
    let script = "import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
for name in ('workflow_definitions', 'workflow_runs', 'workflow_step_runs', 'workflow_events', 'workflows'):
    rows = database.execute(f'SELECT * FROM {name}').fetchall()
    assert rows, name
for (body,) in database.execute('SELECT body FROM workflow_events'):
    assert body.startswith('{\"type\":'), body";
    let database = folder.0.path().join("data/steprail.db");
    let read = std::process::Command::new("python3").args(["-c", script]).arg(database).output();
    let read = read.expect("python3");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
}

#[test]
fn doctor_reports_a_healthy_installation() {
    let folder = with_ended_run();
    let missing = transcript(&folder, "doctor --data elsewhere");
    let daemon = Daemon::start(&folder);
    let all = missing + &transcript(&folder, "doctor --data data");
    drop(daemon);
    settings().bind(|| insta::assert_snapshot!(all));
}

#[test]
fn doctor_reports_problems_with_hints() {
    let folder = with_ended_run();
    let path = folder.0.path();
    damage(&folder);
    std::fs::set_permissions(path.join("data"), std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let servers = json!({ "mcpServers": {
        "gone": { "command": "/nowhere/at-all" },
        "mine": { "command": "x", "args": ["${user:TOKEN}"] },
    } });
    std::fs::write(path.join("data/servers.json"), servers.to_string()).expect("a file");
    let entry = |command: &str, data: &str| json!({ "mcpServers": { "steprail": { "command": command, "args": ["mcp", "--data", data] } } });
    let steprail = env!("CARGO_BIN_EXE_steprail");
    std::fs::create_dir_all(path.join(".cursor")).expect("a folder");
    std::fs::create_dir_all(path.join(".gemini")).expect("a folder");
    let data = path.join("data").display().to_string();
    let configs = [
        (".mcp.json", entry(steprail, &data)),
        (".cursor/mcp.json", entry("/nowhere/steprail", &data)),
        (".gemini/settings.json", entry(steprail, "/elsewhere")),
    ];
    for (file, config) in configs {
        std::fs::write(path.join(file), config.to_string()).expect("a file");
    }
    let all = transcript(&folder, "doctor --data data").replace(steprail, "[steprail]");
    settings().bind(|| insta::assert_snapshot!(all));

    let mut command = folder.command("doctor --data data --json");
    let output = command.env("HOME", path).output().expect("an end");
    let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &record["problems"]), (Some(1), &json!(3)), "{record:#}");
    let findings = record["findings"].as_array().expect("findings");
    let problems = findings.iter().filter(|finding| finding["level"] == "problem");
    assert_eq!(
        problems.map(|finding| &finding["about"]).collect::<Vec<_>>(),
        ["audit", "servers", "clients"]
    );
}
