//! One run with 1,000 parallel branches and a step after them.

use std::fmt::Write;
use std::time::Duration;

use serde_json::json;
use steprail_engine::Durability;

use crate::baseline::batched_commits;
use crate::harness::{BenchEngine, Harness, database, noop};
use crate::table::{Row, Table, per_item, ratio, time};

const BRANCHES: usize = 1_000;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let raw = harness.best(|| per_item(batched_commits(harness, Durability::Process, BRANCHES).wall, 10));
    let dir = harness.scratch();
    let elapsed = harness.runtime.block_on(async {
        let mut engine = BenchEngine::new(&database(&dir), Durability::Process, noop());
        engine.define(&definition()).await;
        let mut best = Duration::MAX;
        for _ in 0..10 {
            best = best.min(engine.time("wide", json!({})).await);
        }
        engine.stop().await;
        best
    });
    let row = Row::new(format!("{BRANCHES} branches and a join, process"), time(elapsed));
    let row = row.baseline(format!("{} raw, {BRANCHES} steps", time(raw)), ratio(elapsed, raw));
    table.add(&row.target("<= 50 ms", elapsed <= Duration::from_millis(50)));
}

fn definition() -> String {
    let mut text = String::from("name: wide\nsteps:\n  - id: fan\n    kind: parallel\n    steps:\n");
    for at in 0..BRANCHES {
        let _ = writeln!(text, "      - {{ id: b{at}, tool: demo__noop }}");
    }
    text + "  - { id: join, tool: demo__noop }\n"
}
