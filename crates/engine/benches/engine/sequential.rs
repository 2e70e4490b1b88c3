//! One run of sequential no-op steps, each of which is one commit.

use std::time::Duration;

use serde_json::json;
use steprail_engine::Durability;

use crate::baseline::{commit_time, task_round_trip};
use crate::harness::{BenchEngine, Harness, database, linear, name, noop};
use crate::table::{Row, Table, per_item, ratio, time};

const STEPS: usize = 1_000;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let round_trip = task_round_trip(harness);
    for durability in [Durability::Process, Durability::Full] {
        let (mut raw, mut engine_time) = (Duration::MAX, Duration::MAX);
        for _ in 0..harness.rounds() {
            raw = raw.min(commit_time(harness, durability, STEPS));
            engine_time = engine_time.min(per_item(measure(harness, durability), STEPS));
        }
        let label = format!("run of {STEPS} steps, per step, {}", name(durability));
        let row = Row::new(label, time(engine_time));
        let row =
            row.baseline(format!("{} commit, {} task", time(raw), time(round_trip)), ratio(engine_time, raw));
        table.add(&match durability {
            Durability::Process => row.target("<= 100 us", engine_time <= Duration::from_micros(100)),
            Durability::Full => row.target("<= 1.3 x one commit", ratio(engine_time, raw) <= 1.3),
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
