//! One run of sequential no-op steps, each of which is one commit.

use std::time::Duration;

use serde_json::json;
use steprail_engine::Durability;

use crate::baseline::{commit_time, task_round_trip};
use crate::harness::{BenchEngine, Harness, database, linear, name, noop};
use crate::table::{Row, Table, each, ratio, time};

const STEPS: usize = 1_000;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let round_trip = task_round_trip(harness);
    for durability in [Durability::Process, Durability::Full] {
        let (mut raw, mut ours) = (Duration::MAX, Duration::MAX);
        for _ in 0..harness.rounds() {
            raw = raw.min(commit_time(harness, durability, STEPS));
            ours = ours.min(each(measure(harness, durability), STEPS));
        }
        let label = format!("run of {STEPS} steps, per step, {}", name(durability));
        let row = Row::new(label, time(ours));
        let row = row.baseline(format!("{} commit, {} task", time(raw), time(round_trip)), ratio(ours, raw));
        table.add(&match durability {
            Durability::Process => row.target("<= 100 us", ours <= Duration::from_micros(100)),
            Durability::Full => row.target("<= 1.3 x one commit", ratio(ours, raw) <= 1.3),
        });
    }
}

fn measure(harness: &Harness, durability: Durability) -> Duration {
    let dir = harness.scratch();
    harness.runtime.block_on(async {
        let mut engine = BenchEngine::new(&database(&dir), durability, noop());
        engine.define(&linear("line", STEPS)).await;
        // The first run compiles the definition.
        engine.time("line", json!({})).await;
        let elapsed = engine.time("line", json!({})).await;
        engine.stop().await;
        elapsed
    })
}
