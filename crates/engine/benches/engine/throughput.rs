//! Durable steps per second: 1,000 runs of ten no-op steps, with 256 concurrent runs.

use std::time::Instant;

use steprail_engine::Durability;

use crate::baseline::{BATCH, Elapsed, batched_commits};
use crate::harness::{BenchEngine, Harness, database, engine_cpu_time, linear, name, noop};
use crate::table::{Row, Table, per_item, rate, ratio, time};

const RUNS: usize = 1_000;
const STEPS: usize = 10;
const CONCURRENT_RUNS: usize = 256;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    for durability in [Durability::Full, Durability::Process] {
        let (mut raw, mut engine_time) = (Elapsed::MAX, Elapsed::MAX);
        for _ in 0..harness.rounds() {
            raw = raw.min(batched_commits(harness, durability, RUNS));
            engine_time = engine_time.min(measure(harness, durability));
        }
        let label =
            format!("{RUNS} runs x {STEPS} steps, {CONCURRENT_RUNS} concurrent, {}", name(durability));
        let limit = format!("{:.0}/s raw, {BATCH} steps per commit", rate(RUNS * STEPS, raw.wall));
        let achieved = ratio(raw.wall, engine_time.wall);
        let row = Row::new(label, format!("{:.0}/s", rate(RUNS * STEPS, engine_time.wall)))
            .baseline(limit, achieved);
        table.add(&row.target(">= 0.5 of raw", achieved >= 0.5));
        let per_step = |elapsed: Elapsed| time(per_item(elapsed.cpu, RUNS * STEPS));
        let row = Row::new("CPU time of the writer thread, per step", per_step(engine_time));
        table.add(&row.baseline(format!("{} raw", per_step(raw)), ratio(raw.cpu, engine_time.cpu)));
    }
}

fn measure(harness: &Harness, durability: Durability) -> Elapsed {
    let dir = harness.scratch();
    harness.runtime.block_on(async {
        let mut engine = BenchEngine::new(&database(&dir), durability, noop());
        engine.define(&linear("ten", STEPS)).await;
        engine.time("ten", serde_json::json!({})).await;
        let (started, before) = (Instant::now(), engine_cpu_time());
        engine.complete_runs("ten", RUNS, CONCURRENT_RUNS).await;
        let elapsed =
            Elapsed { wall: started.elapsed(), cpu: engine_cpu_time().checked_sub(before).unwrap() };
        engine.stop().await;
        elapsed
    })
}
