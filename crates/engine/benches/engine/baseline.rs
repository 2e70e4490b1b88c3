//! Baselines of the machine: the disk, and SQLite with one log row and one step row for each step.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{CachedStatement, Connection, params};
use steprail_core::plan::Hash;
use steprail_engine::Durability;

use crate::harness::{Harness, database, name, open, own_cpu_time};
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
        table.add(&Row::new(format!("a log row and a step row per commit, {}", name(durability)), time(one)));
    }
    for durability in [Durability::Full, Durability::Process] {
        let elapsed = harness.best(|| batched_commits(harness, durability, 1_000).wall);
        let label = format!("both rows of {BATCH} steps per commit, {}", name(durability));
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
    let raw = RawDatabase::new(&database(&dir), durability);
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

/// The time to write the steps of many runs, one commit for the same step of 256 runs.
pub(crate) fn batched_commits(harness: &Harness, durability: Durability, runs: usize) -> Elapsed {
    let dir = harness.scratch();
    let raw = RawDatabase::new(&database(&dir), durability);
    let output = r#"{"ok":true}"#;
    let batch = |first: usize, n: usize| {
        (first..(first + BATCH).min(runs + 1)).map(|run| Step::new(run, n, output)).collect()
    };
    let batches: Vec<Vec<Step>> = (1..=runs)
        .step_by(BATCH)
        .flat_map(|first| (1..=STEPS).map(move |n| (first, n)))
        .map(|(first, n)| batch(first, n))
        .collect();
    let (started, before) = (Instant::now(), own_cpu_time());
    batches.iter().for_each(|batch| raw.write(batch));
    Elapsed { wall: started.elapsed(), cpu: own_cpu_time().saturating_sub(before) }
}

/// The two rows of one step: what the log records at the least, and the step itself.
struct Step {
    run: usize,
    n: usize,
    path: String,
    output: String,
    body: String,
    hash: [u8; 32],
}

impl Step {
    fn new(run: usize, n: usize, output: &str) -> Self {
        let hash = Hash::of(&[run.to_be_bytes(), n.to_be_bytes()].concat());
        let path = format!("s{n}");
        // As many bytes as the compact form of the end of one step and the start of the next.
        let body = format!("{n}{path}{}", "x".repeat(60));
        Self { run, n, path, output: output.to_owned(), body, hash: hash.0 }
    }
}

/// A database with the schema of the engine, written without the engine.
struct RawDatabase {
    connection: Connection,
}

const NOW: i64 = 1_800_000_000_000;

impl RawDatabase {
    fn new(path: &Path, durability: Durability) -> Self {
        drop(open(path, durability));
        let connection = Connection::open(path).expect("a connection");
        let synchronous = if durability == Durability::Full { "FULL" } else { "NORMAL" };
        let settings = format!(
            "PRAGMA synchronous = {synchronous}; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 4000;
             PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -32768; PRAGMA trusted_schema = OFF;
             PRAGMA cell_size_check = ON;"
        );
        connection.execute_batch(&settings).expect("settings");
        Self { connection }
    }

    fn statement(&self, sql: &str) -> CachedStatement<'_> {
        self.connection.prepare_cached(sql).expect("a statement")
    }

    /// Writes steps in one transaction.
    fn write(&self, steps: &[Step]) {
        let (mut log, mut row) = (self.statement(INSERT_LOG), self.statement(INSERT_STEP));
        self.statement("BEGIN IMMEDIATE").execute([]).expect("a transaction");
        for step in steps {
            let hashes = [step.hash, step.hash].concat();
            log.execute(params![step.run, step.n, NOW, step.body, hashes, &step.hash[..]])
                .expect("a log row");
            row.execute(params![step.run, step.n, step.path, step.output, NOW]).expect("a step");
        }
        self.statement("COMMIT").execute([]).expect("a commit");
    }
}

const INSERT_LOG: &str = "INSERT INTO workflow_log (run_id, seq, count, at, body, hashes, hash)
    VALUES (?1, ?2, 2, ?3, ?4, ?5, ?6)";
const INSERT_STEP: &str = "INSERT INTO step_runs
    (run_id, n, attempt, path, kind, tool, status, input_json, output_json, started_at, completed_at)
    VALUES (?1, ?2, 1, ?3, 'tool', 'demo__noop', 'done', '{}', ?4, ?5, ?5)";
