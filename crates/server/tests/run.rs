//! `steprail run` and `resume` with an engine in their process: runs, gates, unknown outcomes, kills and exit codes.

mod common;

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};

use common::Folder;
use rustix::process::{Pid, Signal, kill_process};
use steprail_engine::{Engine, Options, Principal, SqliteStore};

const PAY: &str = "\
name: pay
inputs:
  amount: { type: number }
  to: { type: string, default: kim }
steps:
  - { id: look, tool: shop__look, effects: read, retry: { max_attempts: 3, initial_delay_ms: 1 } }
  - { id: charge, tool: shop__charge, args: { amount: \"{{inputs.amount}}\", to: \"{{inputs.to}}\" } }
  - { id: mail, tool: mail__send }
output: \"{{steps.charge.output}}\"
";
const GATE: &str = "\
name: gate
steps:
  - { id: look, tool: shop__look }
  - { id: ask, kind: approve, prompt: Go on? }
  - { id: charge, tool: shop__charge }
";
const TOOLS: &str = "shop__charge: { echo: true }\n'*': { return: ok }\n";
/// `charge` never returns within a test.
const SLOW: &str = "shop__charge: { sleep: 1h }\n'*': { return: ok }\n";

/// A directory with the common files, and with those of a test.
fn folder(files: &[(&str, &str)]) -> Folder {
    let common = [("pay.yaml", PAY), ("gate.yaml", GATE), ("tools.yaml", TOOLS), ("slow.yaml", SLOW)];
    Folder::with(&[&common, files].concat())
}

/// Runs commands one after the other. Returns what they print.
fn run_all(folder: &Folder, commands: &[&str]) -> String {
    commands.iter().map(|arguments| folder.run(arguments)).collect::<Vec<_>>().join("\n")
}

/// A command that runs concurrently with the test.
struct Background {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Background {
    fn start(folder: &Folder, arguments: &str) -> Self {
        let mut child =
            folder.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for a line with this prefix.
    fn until(&mut self, prefix: &str) {
        let line = self.lines.find(|line| line.as_ref().unwrap().starts_with(prefix));
        assert!(line.is_some(), "the command ended without printing `{prefix}`");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end. Returns the remaining lines and the exit code.
    fn finish(mut self) -> String {
        let rest: Vec<String> = self.lines.map(Result::unwrap).collect();
        format!("{}\n--- exit {}\n", rest.join("\n"), self.child.wait().unwrap().code().unwrap())
    }
}

/// Compares output with a snapshot, without ids, times and paths.
macro_rules! assert_output {
    ($text:expr) => {
        insta::with_settings!({ filters => [
            (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "RUN"),
            (r#""digest":"[0-9a-f]{64}""#, r#""digest":"DIGEST""#),
            (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME"),
            (r"\b\d+(\.\d)? ?(ms|s)\b", "TIME"),
            (r"\S*/steprail-\w+/", "TMP/"),
            (r":[0-9a-f]{4}/", ":ID/"),
            (r"in use by process \d+", "in use by process PID"),
        ] }, { insta::assert_snapshot!($text) })
    };
}

#[test]
fn completed_run() {
    assert_output!(folder(&[]).run("run pay.yaml --input amount=5 --tools tools.yaml"));
}

#[test]
fn failed_run() {
    let tools = "shop__charge: { fail: { kind: permission, message: card refused } }\n'*': {}\n";
    let folder = folder(&[("tools.yaml", tools)]);
    assert_output!(folder.run("run pay.yaml --input amount=5 --tools tools.yaml"));
}

#[test]
fn failed_call_is_retried() {
    let tools = "shop__look: { fail: { times: 2, kind: transport, message: no route } }\n'*': {}\n";
    let folder = folder(&[("tools.yaml", tools)]);
    assert_output!(folder.run("run pay.yaml --input amount=5 --tools tools.yaml"));
}

#[test]
fn unknown_tool_fails_the_run() {
    let folder = folder(&[("tools.yaml", "shop__look: {}\n")]);
    assert_output!(folder.run("run pay.yaml --input amount=5 --tools tools.yaml"));
}

#[test]
fn json_output_is_one_record() {
    let folder = folder(&[]);
    assert_output!(run_all(
        &folder,
        &[
            "run pay.yaml --input amount=5 --tools tools.yaml --json",
            "run gate.yaml --db x.db --tools tools.yaml --json",
        ]
    ));
}

#[test]
fn inputs_are_validated_and_strings_are_not_parsed() {
    let folder = folder(&[]);
    assert_output!(run_all(
        &folder,
        &[
            "run pay.yaml --tools tools.yaml",
            "run pay.yaml --input amount=much --input colour=red --tools tools.yaml",
            "run pay.yaml --inputs [] --tools tools.yaml",
            "run pay.yaml --input amount --tools tools.yaml",
            r#"run pay.yaml --inputs {"amount":1,"to":"x"} --input to=7 --tools tools.yaml"#,
        ]
    ));
}

#[test]
fn invalid_definition_is_rejected() {
    let folder = folder(&[("typo.yaml", "name: typo\nsteps:\n  - { id: a, tol: shop__look }\n")]);
    assert_output!(run_all(
        &folder,
        &["run typo.yaml --tools tools.yaml", "run missing.yaml --tools tools.yaml"]
    ));
}

#[test]
fn invalid_script_is_rejected() {
    let folder = folder(&[("typo.yaml", "shop__look: { retrun: 1, sleep: soon }\n")]);
    assert_output!(folder.run("run pay.yaml --input amount=5 --tools typo.yaml"));
}

#[test]
fn unnamed_definition_is_named_after_its_file() {
    let folder = folder(&[("greet.yaml", "steps:\n  - { id: a, tool: t, args: { who: \"{{who}}\" } }\n")]);
    assert_output!(folder.run("run greet.yaml --input who=kim --tools tools.yaml"));
}

#[test]
fn gate_waits_until_approved() {
    let folder = folder(&[]);
    assert_output!(run_all(
        &folder,
        &[
            "run gate.yaml --db x.db --tools tools.yaml",
            "resume --db x.db --tools tools.yaml",
            "resume --db x.db --tools tools.yaml --approve ask",
            "resume --db x.db --tools tools.yaml --approve look --as bob",
            "resume --db x.db --tools tools.yaml --approve ask --as bob",
            "resume --db x.db --tools tools.yaml",
        ]
    ));
}

#[test]
fn denied_gate_ends_the_run() {
    let graph = "name: graph\nsteps:\n  ask: { kind: approve, next: go }\n  go: { tool: t, done: true }\n";
    let folder = folder(&[("graph.yaml", graph)]);
    assert_output!(run_all(
        &folder,
        &[
            "run gate.yaml --db x.db --tools tools.yaml",
            "resume --db x.db --tools tools.yaml --deny ask --as bob",
            "run graph.yaml --db y.db --tools tools.yaml",
            "resume --db y.db --tools tools.yaml --deny ask --as bob",
        ]
    ));
}

#[test]
fn temporary_database_is_kept_for_unfinished_runs() {
    let folder = folder(&[]);
    let databases = || std::fs::read_dir(folder.0.path()).unwrap().flatten().filter(|e| e.path().is_dir());
    folder.run("run pay.yaml --input amount=5 --tools tools.yaml");
    assert_eq!(databases().count(), 0, "the database of an ended run is deleted");
    folder.run("run gate.yaml --tools tools.yaml");
    let kept = databases().next().unwrap().path().join("steprail.db");
    assert_output!(
        folder.run(&format!("resume --db {} --tools tools.yaml --approve ask --as bob", kept.display()))
    );
}

#[test]
fn killed_run_is_resumed() {
    let idempotent = PAY.replace("tool: shop__charge", "tool: shop__charge, effects: idempotent");
    let folder = folder(&[("pay.yaml", &idempotent)]);
    let mut first = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
    first.until("started charge");
    first.kill();
    assert_output!(folder.run("resume --db x.db --tools tools.yaml"));
}

#[test]
fn lost_call_is_not_repeated_without_consent() {
    let killed = || {
        let folder = folder(&[]);
        let mut first =
            Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
        first.until("started charge");
        first.kill();
        folder
    };
    let folder = killed();
    assert_output!(run_all(
        &folder,
        &[
            "resume --db x.db --tools tools.yaml",
            "resume --db x.db --tools tools.yaml --happened charge={\"paid\":5}",
        ]
    ));
    assert_output!(killed().run("resume --db x.db --tools tools.yaml --retry charge"));
    assert_output!(killed().run("resume --db x.db --tools tools.yaml --skip charge"));
}

#[test]
fn several_killed_runs_are_resumed_together() {
    let folder = folder(&[]);
    for _ in 0..2 {
        let mut run = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
        run.until("started charge");
        run.kill();
    }
    assert_output!(run_all(
        &folder,
        &[
            "run pay.yaml --input amount=7 --db x.db --tools tools.yaml",
            "resume --db x.db --tools tools.yaml --retry charge",
        ]
    ));
    let both = folder.run("resume --db x.db --tools tools.yaml");
    assert_eq!(both.matches("waits for a human").count(), 2, "{both}");
}

#[test]
fn interrupted_run_is_resumed() {
    let folder = folder(&[("pay.yaml", &format!("on_restart: interrupt\n{PAY}"))]);
    let mut first = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
    first.until("started charge");
    first.kill();
    assert_output!(folder.run("resume --db x.db --tools tools.yaml --retry charge"));
}

#[test]
fn second_process_is_rejected() {
    let folder = folder(&[]);
    let mut first = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
    first.until("started charge");
    let second = folder.run("run pay.yaml --input amount=5 --db x.db --tools tools.yaml");
    assert!(second.contains(&format!("process {}", first.child.id())), "{second}");
    assert_output!(second);
    first.kill();
}

#[test]
fn ctrl_c_keeps_the_run_resumable() {
    let folder = folder(&[]);
    let mut run = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
    run.until("started charge");
    run.signal(Signal::INT);
    run.until("stopping");
    run.signal(Signal::INT);
    assert_output!(run.finish());
    assert_output!(folder.run("resume --db x.db --tools tools.yaml --retry charge"));
}

#[test]
fn gate_of_a_sub_workflow_is_decided() {
    let parent = "name: parent\nsteps:\n  - { id: sub, kind: workflow, name: gate }\n";
    let folder = folder(&[("parent.yaml", parent)]);
    define(&folder.0.path().join("x.db"), GATE);
    assert_output!(run_all(
        &folder,
        &[
            "run parent.yaml --db x.db --tools tools.yaml",
            "run parent.yaml --db y.db --tools tools.yaml",
            "resume --db x.db --tools tools.yaml --approve sub/ask --as bob",
        ]
    ));
}

/// Stores a definition in a database.
fn define(db: &Path, text: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(db, &Options::default()).unwrap();
        let engine = Engine::builder().store(store).spawn().unwrap();
        engine.define(text, &Principal::user("ann")).await.unwrap();
        engine.shutdown().await.unwrap();
    });
}

#[test]
fn run_waits_for_a_signal() {
    let wait = "name: wait\nsteps:\n  - { id: w, kind: wait, event: paid, correlate: { id: 7 } }\n";
    let folder = folder(&[("wait.yaml", wait)]);
    let mut first = Background::start(&folder, "run wait.yaml --db x.db --tools tools.yaml");
    first.until("started w: waits for the signal paid");
    first.kill();
    assert_output!(run_all(
        &folder,
        &[
            "resume --db x.db --tools tools.yaml --signal paid={\"id\":7}",
            "run wait.yaml --db x.db --tools tools.yaml --signal paid={\"id\":8} --signal paid={\"id\":7,\"n\":1}",
        ]
    ));
}

#[test]
fn invalid_database_is_rejected() {
    let folder = folder(&[("x.db", "no database, but long enough to look like one")]);
    assert_output!(run_all(
        &folder,
        &[
            "resume --db x.db --tools tools.yaml",
            "run gate.yaml --db nowhere/x.db --tools tools.yaml",
            "resume --db nowhere/x.db --tools tools.yaml",
        ]
    ));
}

#[test]
fn purge_deletes_old_runs() {
    let folder = folder(&[]);
    folder.run("run pay.yaml --input amount=5 --db x.db --tools tools.yaml");
    folder.run("run gate.yaml --db x.db --tools tools.yaml");
    assert_output!(run_all(
        &folder,
        &[
            "purge --db x.db --keep 30d",
            "purge --db x.db --keep 0s",
            "purge --db y.db --keep 0s",
            "purge --db x.db --keep long",
        ]
    ));
    let rest = folder.run("resume --db x.db --tools tools.yaml");
    assert!(rest.contains("`ask` waits for a human"), "{rest}");
}
