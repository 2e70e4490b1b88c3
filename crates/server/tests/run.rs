//! The real binary with scripted tools: runs, gates, answers, kills, and the codes it exits with.

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
/// `charge` does not end by itself.
const SLOW: &str = "shop__charge: { sleep: 1h }\n'*': { return: ok }\n";

/// A folder with the usual files, and some of a test's own.
fn folder(files: &[(&str, &str)]) -> Folder {
    let usual = [("pay.yaml", PAY), ("gate.yaml", GATE), ("tools.yaml", TOOLS), ("slow.yaml", SLOW)];
    Folder::with(&[&usual, files].concat())
}

/// What several calls print, one after the other.
fn all(folder: &Folder, calls: &[&str]) -> String {
    calls.iter().map(|arguments| folder.run(arguments)).collect::<Vec<_>>().join("\n")
}

/// A call that goes on while the test does.
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

    /// Waits for a line.
    fn until(&mut self, start: &str) {
        let seen = self.lines.find(|line| line.as_ref().unwrap().starts_with(start));
        assert!(seen.is_some(), "it ended without `{start}`");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What it still says, and its exit code.
    fn end(mut self) -> String {
        let rest: Vec<String> = self.lines.map(Result::unwrap).collect();
        format!("{}\n--- exit {}\n", rest.join("\n"), self.child.wait().unwrap().code().unwrap())
    }
}

/// Compares with a snapshot, apart from what differs each time.
macro_rules! same {
    ($text:expr) => {
        insta::with_settings!({ filters => [
            (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "RUN"),
            (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME"),
            (r"\b\d+(\.\d)?(ms|s)\b", "TIME"),
            (r"\S*/steprail-\w+/", "TMP/"),
            (r":[0-9a-f]{4}/", ":ID/"),
            (r"in use by process \d+", "in use by process PID"),
        ] }, { insta::assert_snapshot!($text) })
    };
}

#[test]
fn a_run_that_completes() {
    same!(folder(&[]).run("run pay.yaml --input amount=5 --tools tools.yaml"));
}

#[test]
fn a_run_that_fails() {
    let tools = "shop__charge: { fail: { kind: permission, message: card refused } }\n'*': {}\n";
    let folder = folder(&[("tools.yaml", tools)]);
    same!(folder.run("run pay.yaml --input amount=5 --tools tools.yaml"));
}

#[test]
fn a_tool_that_fails_twice() {
    let tools = "shop__look: { fail: { times: 2, kind: transport, message: no route } }\n'*': {}\n";
    let folder = folder(&[("tools.yaml", tools)]);
    same!(folder.run("run pay.yaml --input amount=5 --tools tools.yaml"));
}

#[test]
fn a_tool_that_the_script_lacks() {
    let folder = folder(&[("tools.yaml", "shop__look: {}\n")]);
    same!(folder.run("run pay.yaml --input amount=5 --tools tools.yaml"));
}

#[test]
fn one_record_for_programs() {
    let folder = folder(&[]);
    same!(all(
        &folder,
        &[
            "run pay.yaml --input amount=5 --tools tools.yaml --json",
            "run gate.yaml --db x.db --tools tools.yaml --json",
        ]
    ));
}

#[test]
fn inputs_are_checked_and_text_stays_text() {
    let folder = folder(&[]);
    same!(all(
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
fn a_definition_with_mistakes_does_not_run() {
    let folder = folder(&[("typo.yaml", "name: typo\nsteps:\n  - { id: a, tol: shop__look }\n")]);
    same!(all(&folder, &["run typo.yaml --tools tools.yaml", "run missing.yaml --tools tools.yaml"]));
}

#[test]
fn a_script_with_mistakes_is_refused() {
    let folder = folder(&[("typo.yaml", "shop__look: { retrun: 1, sleep: soon }\n")]);
    same!(folder.run("run pay.yaml --input amount=5 --tools typo.yaml"));
}

#[test]
fn a_definition_without_a_name_is_called_like_its_file() {
    let folder = folder(&[("greet.yaml", "steps:\n  - { id: a, tool: t, args: { who: \"{{who}}\" } }\n")]);
    same!(folder.run("run greet.yaml --input who=kim --tools tools.yaml"));
}

#[test]
fn a_gate_waits_and_is_answered() {
    let folder = folder(&[]);
    same!(all(
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
fn a_gate_is_denied() {
    let graph = "name: graph\nsteps:\n  ask: { kind: approve, next: go }\n  go: { tool: t, done: true }\n";
    let folder = folder(&[("graph.yaml", graph)]);
    same!(all(
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
fn a_temporary_database_is_kept_while_somebody_is_asked() {
    let folder = folder(&[]);
    let databases = || std::fs::read_dir(folder.0.path()).unwrap().flatten().filter(|e| e.path().is_dir());
    folder.run("run pay.yaml --input amount=5 --tools tools.yaml");
    assert_eq!(databases().count(), 0, "the run ended, and so did its database");
    folder.run("run gate.yaml --tools tools.yaml");
    let kept = databases().next().unwrap().path().join("steprail.db");
    same!(folder.run(&format!("resume --db {} --tools tools.yaml --approve ask --as bob", kept.display())));
}

#[test]
fn a_killed_run_goes_on() {
    let idempotent = PAY.replace("tool: shop__charge", "tool: shop__charge, effects: idempotent");
    let folder = folder(&[("pay.yaml", &idempotent)]);
    let mut first = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
    first.until("started charge");
    first.kill();
    same!(folder.run("resume --db x.db --tools tools.yaml"));
}

#[test]
fn a_killed_call_that_may_have_happened_is_not_repeated_in_silence() {
    let killed = || {
        let folder = folder(&[]);
        let mut first =
            Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
        first.until("started charge");
        first.kill();
        folder
    };
    let folder = killed();
    same!(all(
        &folder,
        &[
            "resume --db x.db --tools tools.yaml",
            "resume --db x.db --tools tools.yaml --happened charge={\"paid\":5}",
        ]
    ));
    same!(killed().run("resume --db x.db --tools tools.yaml --retry charge"));
    same!(killed().run("resume --db x.db --tools tools.yaml --skip charge"));
}

#[test]
fn several_killed_runs_go_on_together() {
    let folder = folder(&[]);
    for _ in 0..2 {
        let mut run = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
        run.until("started charge");
        run.kill();
    }
    same!(all(
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
fn a_run_that_a_restart_interrupts_is_resumed() {
    let folder = folder(&[("pay.yaml", &format!("on_restart: interrupt\n{PAY}"))]);
    let mut first = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
    first.until("started charge");
    first.kill();
    same!(folder.run("resume --db x.db --tools tools.yaml --retry charge"));
}

#[test]
fn a_second_process_is_refused() {
    let folder = folder(&[]);
    let mut first = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
    first.until("started charge");
    let second = folder.run("run pay.yaml --input amount=5 --db x.db --tools tools.yaml");
    assert!(second.contains(&format!("process {}", first.child.id())), "{second}");
    same!(second);
    first.kill();
}

#[test]
fn ctrl_c_leaves_the_run_to_be_resumed() {
    let folder = folder(&[]);
    let mut run = Background::start(&folder, "run pay.yaml --input amount=5 --db x.db --tools slow.yaml");
    run.until("started charge");
    run.signal(Signal::INT);
    run.until("stopping");
    run.signal(Signal::INT);
    same!(run.end());
    same!(folder.run("resume --db x.db --tools tools.yaml --retry charge"));
}

#[test]
fn a_gate_in_a_workflow_that_another_one_waits_for() {
    let parent = "name: parent\nsteps:\n  - { id: sub, kind: workflow, name: gate }\n";
    let folder = folder(&[("parent.yaml", parent)]);
    define(&folder.0.path().join("x.db"), GATE);
    same!(all(
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
fn a_run_waits_for_an_event() {
    let wait = "name: wait\nsteps:\n  - { id: w, kind: wait, event: paid, correlate: { id: 7 } }\n";
    let folder = folder(&[("wait.yaml", wait)]);
    let mut first = Background::start(&folder, "run wait.yaml --db x.db --tools tools.yaml");
    first.until("started w: waits for the event paid");
    first.kill();
    same!(all(
        &folder,
        &[
            "resume --db x.db --tools tools.yaml --signal paid={\"id\":7}",
            "run wait.yaml --db x.db --tools tools.yaml --signal paid={\"id\":8} --signal paid={\"id\":7,\"n\":1}",
        ]
    ));
}

#[test]
fn a_database_that_is_none() {
    let folder = folder(&[("x.db", "no database, but long enough to look like one")]);
    same!(all(
        &folder,
        &[
            "resume --db x.db --tools tools.yaml",
            "run gate.yaml --db nowhere/x.db --tools tools.yaml",
            "resume --db nowhere/x.db --tools tools.yaml",
        ]
    ));
}

#[test]
fn old_runs_are_deleted() {
    let folder = folder(&[]);
    folder.run("run pay.yaml --input amount=5 --db x.db --tools tools.yaml");
    folder.run("run gate.yaml --db x.db --tools tools.yaml");
    same!(all(
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
