//! Commands against a daemon: output and exit codes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use super::support::{Daemon, steprail, test_file};

const REFUND: &str = "../../../examples/workflows/refund_with_approval.json";
const INCIDENT: &str = "../../../examples/workflows/incident_triage.yaml";
const TOOLS: &str = "../../../examples/tools.yaml";

fn daemon() -> Daemon {
    Daemon::start(&["--tools", &test_file(TOOLS).display().to_string(), "--durability", "process"])
}

fn command(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(steprail());
    command
        .args(arguments)
        .env("STEPRAIL_DATA", daemon.folder.path())
        .env("USER", "ann")
        .stdin(Stdio::null());
    command.env_remove("STEPRAIL_SERVER").env_remove("STEPRAIL_TOKEN");
    command
}

/// Runs a command. Returns what it prints, and its exit code.
fn run(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = command(daemon, arguments).output().expect("an end");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let (out, err, code) = (text(output.stdout), text(output.stderr), output.status.code());
    let shown: Vec<String> = arguments.iter().map(|argument| shortened(argument)).collect();
    format!("$ steprail {}\n{err}--- stdout\n{out}--- exit {}\n", shown.join(" "), code.unwrap_or(-1))
}

/// The path of an example below `examples/`.
fn shortened(argument: &str) -> String {
    argument.rsplit_once("/examples/").map_or(argument, |(_, file)| file).to_owned()
}

fn run_all(daemon: &Daemon, commands: &[&[&str]]) -> String {
    commands.iter().map(|arguments| run(daemon, arguments)).collect::<Vec<_>>().join("\n")
}

macro_rules! assert_output {
    ($text:expr) => {
        insta::with_settings!({ filters => [
            (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "RUN"),
            (r"sr_[0-9a-f]{16}_[0-9a-f]{64}", "TOKEN"),
            (r#"("id":"|--after )e1[0-9a-z]+"#, "$1[cursor]"),
            (r"\b[0-9a-f]{64}\b", "DIGEST"),
            (r"\b[0-9a-f]{16}\b", "ID"),
            (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME"),
            (r"\b\d+(\.\d)? ?(ms|s)\b", "TIME"),
            (r"\bat (\d{4}-\d\d-\d\d )?\d\d:\d\d\b", "at TIME"),
            (r"(STARTED|TIME ago) {2,}(\S)", "$1  $2"),
            (r"http://127.0.0.1:\d+", "URL"),
            (r"/\S*/\.tmp\w+", "FOLDER"),
            (r"/\S*/examples/", "examples/"),
            (r"approve [0-9a-f]{6}\b", "approve END"),
            (r"show [0-9a-f]{12} ", "show END "),
            (r"(?m) +$", ""),
        ] }, { insta::assert_snapshot!($text) })
    };
}

/// Id of the run that was started last.
fn last_run(daemon: &Daemon) -> String {
    newest(daemon, &[])
}

fn last_run_of(daemon: &Daemon, name: &str) -> String {
    newest(daemon, &["--name", name])
}

fn newest(daemon: &Daemon, which: &[&str]) -> String {
    let arguments = [&["runs", "--limit", "1", "--json"][..], which].concat();
    let output = command(daemon, &arguments).output().expect("an end");
    let runs: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    runs[0]["run_id"].as_str().expect("a run").to_owned()
}

#[test]
fn run_is_followed_to_its_end() {
    let daemon = daemon();
    let file = test_file(INCIDENT).display().to_string();
    let defined = run(&daemon, &["define", &file]);
    let input = ["--input", "service=checkout", "--input", "alert_id=A1"];
    let output = run(&daemon, &[&["run", "incident_triage"][..], &input].concat());
    // The order of concurrent branches differs.
    let (progress, result) = output.split_once("--- stdout").expect("two parts");
    let mut progress: Vec<&str> = progress.lines().collect();
    progress[1..].sort_unstable();
    let id = last_run(&daemon);
    let shown = run_all(&daemon, &[&["runs"], &["show", &id[24..], "--json"]]);
    let shown = shown.lines().filter(|line| !line.contains("\"steps\"")).collect::<Vec<_>>().join("\n");
    assert_output!(format!("{defined}\n{}\n--- stdout{result}\n{shown}", progress.join("\n")));
}

#[test]
fn gate_is_decided_by_another_command() {
    let daemon = daemon();
    let file = test_file(REFUND).display().to_string();
    let started = run(&daemon, &["run", &file, "--input", "order_id=o-1"]);
    let run = last_run(&daemon);
    let decided = run_all(
        &daemon,
        &[
            &["approvals"],
            &["approve", &run, "nothing"],
            &["approve", &run[30..]],
            &["approve", &run[30..], "--yes"],
            &["approve", &run, "--yes"],
            &["resume", &run],
            &["cancel", &run],
            &["rerun", &run, "--reuse"],
        ],
    );
    assert_output!(format!("{started}\n{decided}"));
}

#[test]
fn runs_and_show_say_why_a_run_waits_and_who_denied_it() {
    let daemon = daemon();
    let file = daemon.folder.path().join("gate.yaml");
    let gate = "name: gate\nsteps: [{ id: ask, kind: approve, approvers: [local, lea], timeout: 72h }]";
    std::fs::write(&file, gate).expect("written");
    run(&daemon, &["run", &file.display().to_string()]);
    let id = last_run(&daemon);
    let output = run_all(
        &daemon,
        &[
            &["runs"],
            &["show", &id],
            &["pause", &id],
            &["runs"],
            &["resume", &id],
            &["deny", &id, "--yes", "--reason", "not this month"],
            &["runs"],
            &["show", &id],
        ],
    );
    assert_output!(output);
}

/// The `id` and `seq` of the events that a command prints as JSON.
fn events(daemon: &Daemon, arguments: &[&str]) -> Vec<(String, u64)> {
    let output = command(daemon, &[&["events", "--json"][..], arguments].concat()).output().expect("an end");
    let lines = String::from_utf8(output.stdout).expect("text");
    let event = |line: &str| -> serde_json::Value { serde_json::from_str(line).expect("JSON") };
    let fields = |event: serde_json::Value| {
        (event["id"].as_str().expect("a cursor").to_owned(), event["seq"].as_u64().expect("a number"))
    };
    lines.lines().map(event).map(fields).collect()
}

#[test]
fn events_are_shown_after_a_cursor() {
    let mut daemon = daemon();
    let refund = test_file(REFUND).display().to_string();
    run(&daemon, &["run", &refund, "--input", "order_id=o-1"]);
    let id = last_run(&daemon);
    run(&daemon, &["cancel", &id]);
    daemon.kill_and_restart();
    let all = events(&daemon, &[&id]);
    assert!(all.len() > 4, "{all:?}");
    assert_eq!(events(&daemon, &["--after", "start"]), all);
    for (at, (cursor, seq)) in all.iter().enumerate() {
        assert_eq!(usize::try_from(*seq).expect("a number"), at + 1, "no gap, no repetition");
        for follow in [&[][..], &["--follow"]] {
            let rest = events(&daemon, &[&[&id, "--after", cursor], follow].concat());
            assert_eq!(rest, all[at + 1..], "after {cursor} {follow:?}");
        }
        assert_eq!(events(&daemon, &["--after", cursor]), all[at + 1..]);
    }
    let [.., (before_last, _), (last, _)] = &*all else { panic!("{all:?}") };
    assert_output!(run_all(
        &daemon,
        &[
            &["events", "--json", "--after", before_last],
            &["events", &id, "--after", &all[1].0],
            &["events", "--after", last],
            &["events", "--after", "12"],
            &["events", &id, "--follow", "--after", "e100000"],
        ],
    ));
}

#[test]
fn list_and_management_commands() {
    let daemon = daemon();
    let file = test_file(INCIDENT).display().to_string();
    assert_output!(run_all(
        &daemon,
        &[
            &["runs"],
            &["tools", "git"],
            &["servers"],
            &["define", &file],
            &[
                "schedule",
                "add",
                "mornings",
                "incident_triage",
                "0 8 * * 1-5",
                "--zone",
                "Europe/Berlin",
                "--paused",
                "--inputs",
                r#"{"service":"checkout","alert_id":"A1"}"#
            ],
            &["schedule", "add", "nights", "incident_triage", "0 3 * * *"],
            &["schedule"],
            &["schedule", "remove", "mornings"],
            &["user", "add", "kim", "--role", "author", "--tool", "git__*", "--group", "ops"],
            &["group", "add", "ops", "--role", "viewer"],
            &["user"],
            &["group"],
            &["token", "create", "ci", "--user", "kim", "--may", "workflow"],
            &["token", "list"],
            &["user", "remove", "kim"],
            &["token", "list"],
            &["signal", "paid"],
            &["open"],
        ]
    ));
}

#[test]
fn errors_have_hints() {
    let daemon = daemon();
    let broken = test_file("../../../examples/typo.yaml").display().to_string();
    let errors = run_all(
        &daemon,
        &[
            &["run", "nothing"],
            &["define", &broken],
            &["show", "01a1e1d7-5812-75b1-816e-c4fed3e789fc"],
            &["show", "fc"],
            &["approve", "01a1e1d7-5812-75b1-816e-c4fed3e789fc", "ask"],
            &["user", "add", "k m"],
            &["user", "add", "kim", "--role", "king"],
            &["schedule", "add", "s", "nothing", "often"],
            &["runs", "--server", "http://127.0.0.1:9"],
        ],
    );
    let none = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(steprail());
    let no_daemon = command.args(["runs", "--data"]).arg(none.path().join("none")).output().expect("an end");
    let no_daemon = format!(
        "$ steprail runs\n{}--- exit {:?}",
        String::from_utf8_lossy(&no_daemon.stderr),
        no_daemon.status.code()
    );
    assert_output!(format!("{errors}\n{no_daemon}"));
}

/// A command that runs concurrently with the test.
struct Background {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
    seen: Vec<String>,
}

impl Background {
    fn start(daemon: &Daemon, arguments: &[&str]) -> Self {
        let mut child = command(daemon, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a command");
        let lines = BufReader::new(child.stderr.take().expect("its progress")).lines();
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line with this prefix.
    fn until(&mut self, prefix: &str) {
        for line in self.lines.by_ref() {
            let line = line.expect("a line");
            let is_match = line.starts_with(prefix);
            self.seen.push(line);
            if is_match {
                return;
            }
        }
        panic!("the command ended without printing `{prefix}`: {:?}", self.seen);
    }

    fn finish(mut self) -> String {
        self.seen.extend(self.lines.map_while(Result::ok));
        let output = self.child.wait_with_output().expect("an end");
        let out = String::from_utf8(output.stdout).expect("text");
        format!(
            "{}\n--- stdout\n{out}--- exit {}\n",
            self.seen.join("\n"),
            output.status.code().unwrap_or(-1)
        )
    }
}

/// Stops the daemon that a command started.
struct StopDaemon<'d>(&'d Daemon);

impl Drop for StopDaemon<'_> {
    fn drop(&mut self) {
        let process = std::fs::read_to_string(self.0.folder.path().join("daemon.pid")).unwrap_or_default();
        let _ = Command::new("kill").arg(process.trim()).status();
    }
}

#[test]
fn run_is_followed_across_a_daemon_crash() {
    let mut daemon = daemon();
    let definition = "name: naps\nsteps:\n  - { id: before, tool: chat__post }\n  - { id: nap, kind: sleep, for: 3s }\n  - { id: after, tool: chat__post }\n";
    let file = daemon.folder.path().join("naps.yaml");
    std::fs::File::create(&file).and_then(|mut file| file.write_all(definition.as_bytes())).expect("a file");
    let mut command = Background::start(&daemon, &["run", &file.display().to_string()]);
    command.until("started nap");
    daemon.kill();
    // The command starts another daemon, which continues the run.
    let _stop = StopDaemon(&daemon);
    assert_output!(command.finish());
}

#[test]
fn unknown_call_of_a_sub_workflow_is_resolved_from_its_parent() {
    let tools = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(tools.path(), "bank__pay: { return: paid, sleep: 1h }\n").expect("a file");
    let mut daemon =
        Daemon::start(&["--tools", &tools.path().display().to_string(), "--durability", "process"]);
    let definitions = [
        (
            "pay.yaml",
            "name: pay\nsteps: [{ id: charge, tool: bank__pay }]\noutput: '{{steps.charge.output}}'\n",
        ),
        (
            "order.yaml",
            "name: order\nsteps: [{ id: sub, kind: workflow, name: pay }]\noutput: '{{steps.sub.output}}'\n",
        ),
    ];
    for (name, text) in definitions {
        let file = daemon.folder.path().join(name);
        std::fs::write(&file, text).expect("a file");
        let defined = run(&daemon, &["define", &file.display().to_string()]);
        assert!(defined.contains("exit 0"), "{defined}");
    }
    let mut command = Background::start(&daemon, &["run", "order"]);
    command.until("started sub/charge");
    daemon.kill();
    let _stop = StopDaemon(&daemon);
    let followed = command.finish();
    let order = last_run_of(&daemon, "order");
    let shown = run_all(&daemon, &[&["show", &order], &["resume", &order, "--happened", "sub/nothing=1"]]);
    let resolved = run(&daemon, &["resume", &order, "--happened", "sub/charge=\"paid\""]);
    // How many events of the sub-workflow are shown before its parent ends differs.
    let (_, resolved) = resolved.split_once("--- stdout").expect("two parts");
    assert_output!(format!("{followed}\n{shown}\n$ steprail resume{resolved}"));
}

#[test]
fn run_with_many_steps_is_shown_in_part() {
    let daemon = daemon();
    let file = daemon.folder.path().join("many.yaml");
    let items: Vec<String> = (0..120).map(|number| number.to_string()).collect();
    let text = format!(
        "name: many\nsteps:\n  - id: all\n    kind: foreach\n    items: [{}]\n    steps: [{{ id: one, kind: pass }}]\n",
        items.join(", ")
    );
    std::fs::write(&file, text).expect("a file");
    run(&daemon, &["run", &file.display().to_string()]);
    let id = last_run(&daemon);
    let shown = run(&daemon, &["show", &id]);
    assert!(shown.contains("… 21 more steps are not shown (in all: 121 done); --all shows them"), "{shown}");
    assert_eq!(shown.matches("✓").count(), 100, "{shown}");
    assert!(shown.contains("many completed") && shown.contains("(121 steps)"), "{shown}");
    let all = run(&daemon, &["show", &id, "--all"]);
    assert_eq!((all.matches("✓").count(), all.contains("not shown")), (121, false), "{all}");
    let failed = run(&daemon, &["show", &id, "--status", "failed"]);
    assert_eq!((failed.matches("✓").count(), failed.contains("not shown")), (0, false), "{failed}");
}

#[test]
fn a_person_decides_about_the_proposals_of_agents() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    file("policy.yaml", "{ default: allow, definitions: { by_agents: proposed } }");
    let first = file("first.yaml", "name: report\ndescription: daily\nsteps: [{ id: a, kind: pass }]");
    let changed = file("changed.yaml", "name: report\ndescription: weekly\nsteps: [{ id: a, kind: pass }]");
    let daemon = Daemon::start_in(folder, &["--tools", &test_file(TOOLS).display().to_string()]);
    // Over HTTP without a token, the programs of the owner are agents.
    let server = daemon.url.trim_end_matches("/mcp").to_owned();
    let shown = run_all(
        &daemon,
        &[
            &["define", &first],
            &["define", &changed, "--server", &server],
            &["definitions", "report", "--proposal"],
            &["definitions", "accept", "report"],
            &["definitions", "accept", "report", "--yes", "--server", &server],
            &["definitions", "accept", "report", "--yes", "--digest", &"0".repeat(64)],
            &["definitions", "accept", "report", "--yes"],
            &["definitions", "--proposed"],
            &["definitions", "reject", "report", "--yes"],
            &["definitions", "adopt", "report", "--server", &server],
            &["definitions", "adopt", "report"],
        ],
    );
    let output = command(&daemon, &["definitions", "report"]).output().expect("an end");
    let definition: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let owner = definition["created_by"].as_str().expect("an owner");
    assert_output!(shown.replace(&format!(" {owner}"), " OWNER"));
}
