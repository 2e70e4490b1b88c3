//! Baselines of the machine: the disk, and SQLite with the rows that the engine writes for one step.

use std::fs::OpenOptions;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{CachedStatement, Connection, params};
use steprail_core::plan::Hash;
use steprail_core::run::Payload;
use steprail_engine::{Durability, RunId};
use steprail_store::{NewDefinition, NewRun, Store};

use crate::harness::{Harness, database, name, open, own_cpu_time, user};
use crate::table::{Row, Table, per_item, rate, time};

/// Steps per transaction.
pub(crate) const BATCH: usize = 256;
/// Steps per run.
const STEPS: usize = 10;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let count = harness.size(1_000);
    let synced = harness.best(|| per_item(syncs(harness, count), count));
    table.add(&Row::new("append 4 KiB and fsync", time(synced)));
    table.add(&Row::new("round trip of a task of the runtime", time(task_round_trip(harness))));
    for durability in [Durability::Full, Durability::Process] {
        let one = harness.best(|| commit_time(harness, durability, count));
        table.add(&Row::new(format!("rows of one step per commit, {}", name(durability)), time(one)));
    }
    for durability in [Durability::Full, Durability::Process] {
        let elapsed = harness.best(|| batched_commits(harness, durability, 1_000).wall);
        let label = format!("rows of {BATCH} steps per commit, {}", name(durability));
        table.add(&Row::new(label, format!("{:.0}/s", rate(10_000, elapsed))));
    }
}

fn syncs(harness: &Harness, count: usize) -> Duration {
    let dir = harness.scratch();
    let path = dir.path().join("appended");
    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("a file");
    let page = [b'x'; 4_096];
    let started = Instant::now();
    for _ in 0..count {
        file.write_all(&page).expect("a page");
        file.sync_data().expect("a sync");
    }
    started.elapsed()
}

/// The time to spawn a task and to wait for its message, which is the cost of a no-op call.
pub(crate) fn task_round_trip(harness: &Harness) -> Duration {
    let count = harness.size(10_000);
    let (sender, receiver) = std::sync::mpsc::channel();
    harness.best(|| {
        let started = Instant::now();
        for _ in 0..count {
            let sender = sender.clone();
            harness.runtime.spawn(async move { sender.send(()) });
            receiver.recv().expect("a message");
        }
        per_item(started.elapsed(), count)
    })
}

/// The time of a commit with the rows of one step.
pub(crate) fn commit_time(harness: &Harness, durability: Durability, count: usize) -> Duration {
    per_item(separate_commits(harness, durability, count, r#"{"ok":true}"#), count)
}

/// The time to write the steps of one run, one commit per step.
pub(crate) fn separate_commits(
    harness: &Harness,
    durability: Durability,
    count: usize,
    output: &str,
) -> Duration {
    let dir = harness.scratch();
    let raw = RawDatabase::new(&database(&dir), durability, 1);
    let steps: Vec<Step> = (1..=count).map(|n| Step::new(1, n, output)).collect();
    let started = Instant::now();
    steps.iter().for_each(|step| raw.write(std::slice::from_ref(step)));
    started.elapsed()
}

/// Wall time, and CPU time of the writer thread.
#[derive(Clone, Copy)]
pub(crate) struct Elapsed {
    pub wall: Duration,
    pub cpu: Duration,
}

impl Elapsed {
    pub(crate) const MAX: Self = Self { wall: Duration::MAX, cpu: Duration::MAX };

    pub(crate) fn min(self, other: Self) -> Self {
        Self { wall: self.wall.min(other.wall), cpu: self.cpu.min(other.cpu) }
    }
}

/// The time to write many runs of ten steps from start to end, in batches of runs.
pub(crate) fn batched_commits(harness: &Harness, durability: Durability, runs: usize) -> Elapsed {
    let dir = harness.scratch();
    let raw = RawDatabase::new(&database(&dir), durability, 0);
    let batches: Vec<Vec<Step>> = (1..=runs).step_by(BATCH).flat_map(|at| steps_of(at..runs + 1)).collect();
    let (started, before) = (Instant::now(), own_cpu_time());
    for steps in batches.chunks(STEPS) {
        raw.begin_runs(&steps[0]);
        steps[..STEPS - 1].iter().for_each(|batch| raw.write(batch));
        raw.end_runs(&steps[STEPS - 1]);
    }
    Elapsed { wall: started.elapsed(), cpu: own_cpu_time().saturating_sub(before) }
}

/// The steps of a batch of runs: the first step of each run, then the second step of each run, and so on.
fn steps_of(runs: Range<usize>) -> impl Iterator<Item = Vec<Step>> {
    let output = r#"{"ok":true}"#;
    (1..=STEPS).map(move |n| runs.clone().take(BATCH).map(|run| Step::new(run, n, output)).collect())
}

/// The parameters of the statements that end one step and start the next.
struct Step {
    run: usize,
    n: usize,
    path: String,
    next: String,
    output: String,
    principal: String,
    events: [(usize, String); 2],
    hash: [u8; 32],
}

impl Step {
    fn new(run: usize, n: usize, output: &str) -> Self {
        let hash = Hash::of(&[run.to_be_bytes(), n.to_be_bytes()].concat());
        let (path, next, m) = (format!("s{n}"), format!("s{}", n + 1), n + 1);
        let ended_event = format!(
            r#"{{"type":"step_completed","step":{{"n":{n},"path":"{path}","attempt":1}},"output":"{hash}"}}"#
        );
        let key = &hash.to_string()[..32];
        let started_event = format!(
            r#"{{"type":"step_started","step":{{"n":{m},"path":"{next}","attempt":1}},"place":{{"id":"{next}","kind":"tool"}},"what":{{"kind":"call","tool":"demo__noop","args":"{hash}","key":"{key}"}}}}"#
        );
        let events = [(2 * n + 1, ended_event), (2 * n + 2, started_event)];
        let principal = serde_json::to_string(&user()).expect("JSON");
        Self { run, n, path, next, output: output.to_owned(), principal, events, hash: hash.0 }
    }
}

/// A database with the schema of the engine, written without the engine.
struct RawDatabase {
    connection: Connection,
}

const NOW: i64 = 1_800_000_000_000;

impl RawDatabase {
    fn new(path: &Path, durability: Durability, runs: usize) -> Self {
        create_runs(path, durability, runs);
        let connection = Connection::open(path).expect("a connection");
        let synchronous = if durability == Durability::Full { "FULL" } else { "NORMAL" };
        let settings = format!(
            "PRAGMA synchronous = {synchronous}; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 4000;
             PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -32768; PRAGMA trusted_schema = OFF;
             PRAGMA cell_size_check = ON;"
        );
        connection.execute_batch(&settings).expect("settings");
        let raw = Self { connection };
        raw.first_steps(runs);
        raw
    }

    fn statement(&self, sql: &str) -> CachedStatement<'_> {
        self.connection.prepare_cached(sql).expect("a statement")
    }

    fn first_steps(&self, runs: usize) {
        self.connection.execute_batch("BEGIN IMMEDIATE").expect("a transaction");
        let mut insert = self.statement(INSERT_STEP);
        for run in 1..=runs {
            insert.execute(params![run, 1, "s1", "demo__noop", "{}", NOW]).expect("a step");
        }
        self.connection.execute_batch("COMMIT").expect("a commit");
    }

    /// Writes steps in one transaction.
    fn write(&self, steps: &[Step]) {
        let mut end = self.statement(END_STEP);
        let mut insert = self.statement(INSERT_STEP);
        let mut event = self.statement(INSERT_EVENT);
        let mut run = self.statement(UPDATE_RUN);
        self.statement("BEGIN IMMEDIATE").execute([]).expect("a transaction");
        for step in steps {
            end.execute(params![step.run, step.n, step.output, NOW]).expect("a step");
            for (seq, body) in &step.events {
                event.execute(params![step.run, seq, NOW, body, &step.hash[..]]).expect("an event");
            }
            let next = params![step.run, step.n + 1, step.next, "demo__noop", "{}", NOW];
            insert.execute(next).expect("a step");
            let last = step.events[1].0;
            run.execute(params![step.run, last, &step.hash[..], NOW, step.path]).expect("a run");
        }
        self.statement("COMMIT").execute([]).expect("a commit");
    }

    /// Writes the starts of runs, each with its first step.
    fn begin_runs(&self, steps: &[Step]) {
        let mut create = self.statement(INSERT_RUN);
        let mut inputs = self.statement(INSERT_INPUTS);
        let mut insert = self.statement(INSERT_STEP);
        let mut event = self.statement(INSERT_EVENT);
        let mut run = self.statement(UPDATE_RUN_STATUS);
        self.statement("BEGIN IMMEDIATE").execute([]).expect("a transaction");
        for step in steps {
            let id = uuid::Uuid::now_v7().to_string();
            create.execute(params![step.run, id, step.principal, NOW]).expect("a run");
            inputs.execute([step.run]).expect("inputs");
            for (seq, (_, body)) in [1, 2].into_iter().zip(&step.events) {
                event.execute(params![step.run, seq, NOW, body, &step.hash[..]]).expect("an event");
            }
            insert.execute(params![step.run, 1, step.path, "demo__noop", "{}", NOW]).expect("a step");
            let none: Option<&str> = None;
            let values = params![step.run, 2, &step.hash[..], NOW, step.path, true, "running", none, none];
            run.execute(values).expect("a run");
        }
        self.statement("COMMIT").execute([]).expect("a commit");
    }

    /// Writes the ends of runs, each with the end of its last step.
    fn end_runs(&self, steps: &[Step]) {
        let mut end = self.statement(END_STEP);
        let mut event = self.statement(INSERT_EVENT);
        let mut run = self.statement(UPDATE_RUN_STATUS);
        self.statement("BEGIN IMMEDIATE").execute([]).expect("a transaction");
        for step in steps {
            end.execute(params![step.run, step.n, step.output, NOW]).expect("a step");
            for (seq, body) in &step.events {
                event.execute(params![step.run, seq, NOW, body, &step.hash[..]]).expect("an event");
            }
            let (last, none) = (step.events[1].0, None::<&str>);
            let values =
                params![step.run, last, &step.hash[..], NOW, none, false, "completed", NOW, step.output];
            run.execute(values).expect("a run");
        }
        self.statement("COMMIT").execute([]).expect("a commit");
    }
}

const END_STEP: &str = "UPDATE workflow_step_runs SET status = 'done', output_json = ?3, error_json = NULL,
    completed_at = ?4 WHERE run_id = ?1 AND n = ?2 AND attempt = 1 AND completed_at IS NULL";
const INSERT_STEP: &str = "INSERT INTO workflow_step_runs
    (run_id, n, attempt, path, step_id, kind, tool, status, input_json, ready_at, started_at)
    VALUES (?1, ?2, 1, ?3, ?3, 'tool', ?4, 'running', ?5, ?6, ?6)";
const INSERT_EVENT: &str =
    "INSERT INTO workflow_events (run_id, seq, at, body, hash) VALUES (?1, ?2, ?3, ?4, ?5)";
const UPDATE_RUN: &str = "UPDATE workflow_runs SET seq = ?2, head_hash = ?3, updated_at = ?4,
    current_step = coalesce(?5, current_step) WHERE id = ?1 AND seq < ?2";
const UPDATE_RUN_STATUS: &str = "UPDATE workflow_runs SET seq = ?2, head_hash = ?3, updated_at = ?4,
    current_step = coalesce(?5, current_step), active = ?6, status = ?7, completed_at = ?8, output_json = ?9,
    error_json = NULL WHERE id = ?1 AND seq < ?2";
const INSERT_RUN: &str = "INSERT INTO workflow_runs (id, run_id, definition_id, status, active, created_by,
    principal_json, depth, interruptible, created_at, updated_at, seq, head_hash)
    VALUES (?1, ?2, 1, 'pending', 0, 'ann', ?3, 0, 0, ?4, ?4, 0, zeroblob(32))";
const INSERT_INPUTS: &str = "INSERT INTO workflow_inputs (run_id, input_json) VALUES (?1, '{}')";

/// Creates a database with runs that have keys from 1.
fn create_runs(path: &Path, durability: Durability, runs: usize) {
    let mut store = open(path, durability);
    store.begin().expect("a transaction");
    let new = NewDefinition {
        name: "raw",
        hash: Hash([0; 32]),
        spec_json: "{}",
        by: "ann",
        now: NOW,
        hidden: false,
        published: false,
        pins: &steprail_store::Pins::new(),
    };
    let definition = store.define(&new).expect("a definition").id;
    let inputs = Payload::new(serde_json::json!({}));
    for _ in 0..runs {
        let new = NewRun {
            id: RunId(uuid::Uuid::now_v7()),
            definition,
            principal: &user(),
            inputs: &inputs,
            parent: None,
            rerun: None,
            interruptible: false,
            request_key: None,
            now: NOW,
        };
        store.create_run(&new).expect("a run");
    }
    store.commit().expect("a commit");
    let sql = "UPDATE workflow_runs SET status = 'running', active = 1";
    store.connection().execute(sql, []).expect("running runs");
}
