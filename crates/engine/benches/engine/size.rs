//! Bytes per step: of the database after a checkpoint, and of the WAL for one step per commit.

use std::path::{Path, PathBuf};

use serde_json::json;
use steprail_engine::Durability;

use crate::harness::{BenchEngine, Harness, database, linear, noop, with_tool};
use crate::table::{Row, Table};

const RUNS: usize = 1_000;
const STEPS: usize = 10;
const LONG_RUN: usize = 1_000;
const ARGUMENT_BYTES: usize = 512 * 1024;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let small = database_bytes(harness) / (RUNS * STEPS);
    let row =
        Row::new(format!("database, per small step of {RUNS} runs x {STEPS} steps"), format!("{small} B"));
    table.add(&row.target("<= 320 B", small <= 320));
    let sequential = wal_bytes(harness, &linear("line", LONG_RUN), "") / LONG_RUN;
    let row = Row::new(format!("WAL, per step of a run of {LONG_RUN}"), format!("{sequential} B"));
    table.add(&row.target("<= 13 KiB", sequential <= 13 * 1024));
    let one = "name: line\ninputs: { text: string }\nsteps: [{ id: a, tool: demo__noop, args: { text: '{{inputs.text}}' } }]";
    let (text, none) = ("x".repeat(ARGUMENT_BYTES), wal_bytes(harness, one, "x"));
    let written = wal_bytes(harness, one, &text).saturating_sub(none);
    // The inputs of the run are written as well.
    let share = written as f64 / (2 * ARGUMENT_BYTES) as f64;
    let row =
        Row::new("WAL, for 512 KiB of inputs and as many of arguments", format!("{} KiB", written / 1024));
    table.add(&row.baseline("their size", share).target("<= 1.1 x", share <= 1.1));
}

fn bytes(path: &Path) -> usize {
    path.metadata().map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX))
}

fn wal(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// The growth of the database by many short runs. A store that closes has no WAL left.
fn database_bytes(harness: &Harness) -> usize {
    let dir = harness.scratch();
    let path = database(&dir);
    let complete = |runs: usize| {
        harness.runtime.block_on(async {
            let mut engine = BenchEngine::new(&path, Durability::Process, noop());
            engine.define(&linear("ten", STEPS)).await;
            engine.complete_runs("ten", runs, 256).await;
            engine.stop().await;
        });
        bytes(&path)
    };
    let before = complete(1);
    complete(RUNS) - before
}

/// The growth of the WAL by one run. It stays below the size at which SQLite starts it again.
fn wal_bytes(harness: &Harness, definition: &str, text: &str) -> usize {
    let dir = harness.scratch();
    let path = database(&dir);
    harness.runtime.block_on(async {
        let mut engine =
            BenchEngine::new(&path, Durability::Process, with_tool(|_| async { Ok(json!(true)) }));
        engine.define(definition).await;
        let before = bytes(&wal(&path));
        let inputs = if text.is_empty() { json!({}) } else { json!({ "text": text }) };
        engine.time("line", inputs).await;
        let after = bytes(&wal(&path));
        engine.stop().await;
        after - before
    })
}
