//! Steps with large outputs: their cost is that of writing the bytes.

use std::time::Duration;

use serde_json::json;
use steprail_engine::Durability;

use crate::baseline::separate_commits;
use crate::harness::{BenchEngine, Harness, database, linear, name, with_tool};
use crate::table::{Row, Table, per_item, ratio, time};

const STEPS: usize = 50;
const BYTES: usize = 100 * 1024;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let output = json!({ "text": "x".repeat(BYTES) }).to_string();
    for durability in [Durability::Process, Durability::Full] {
        let (mut raw, mut engine_time) = (Duration::MAX, Duration::MAX);
        for _ in 0..harness.rounds() {
            raw = raw.min(per_item(separate_commits(harness, durability, STEPS, &output), STEPS));
            engine_time = engine_time.min(per_item(measure(harness, durability), STEPS));
        }
        let label = format!("{STEPS} steps with 100 KB output, per step, {}", name(durability));
        let row = Row::new(label, time(engine_time));
        let row = row.baseline(format!("{} raw, same bytes", time(raw)), ratio(engine_time, raw));
        table.add(&row.target("<= 2 x raw", ratio(engine_time, raw) <= 2.0));
    }
}

fn measure(harness: &Harness, durability: Durability) -> Duration {
    let dir = harness.scratch();
    let tools = with_tool(|_| async { Ok(json!({ "text": "x".repeat(BYTES) })) });
    harness.runtime.block_on(async {
        let mut engine = BenchEngine::new(&database(&dir), durability, tools);
        engine.define(&linear("line", STEPS)).await;
        engine.time("line", json!({})).await;
        let elapsed = engine.time("line", json!({})).await;
        engine.stop().await;
        elapsed
    })
}
