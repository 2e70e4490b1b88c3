//! The time from the start of a run to its first call, on an idle engine.

use std::time::{Duration, Instant};

use serde_json::json;
use steprail_engine::Durability;
use tokio::sync::mpsc::unbounded_channel;

use crate::baseline::commit_time;
use crate::harness::{BenchEngine, Harness, database, linear, name, with_tool};
use crate::table::{Row, Table, median, ratio, time};

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    for durability in [Durability::Process, Durability::Full] {
        let raw = harness.best(|| commit_time(harness, durability, 500));
        let elapsed = harness.best(|| first_call(harness, durability));
        let row = Row::new(format!("start to first call, median, {}", name(durability)), time(elapsed));
        let row = row.baseline(format!("{} one commit", time(raw)), ratio(elapsed, raw));
        table.add(&match durability {
            Durability::Process => row.target("<= 0.5 ms", elapsed <= Duration::from_micros(500)),
            Durability::Full => row,
        });
    }
}

fn first_call(harness: &Harness, durability: Durability) -> Duration {
    let dir = harness.scratch();
    let (sender, mut called) = unbounded_channel();
    let tools = with_tool(move |_| {
        let _ = sender.send(Instant::now());
        async { Ok(json!(null)) }
    });
    harness.runtime.block_on(async {
        let mut engine = BenchEngine::new(&database(&dir), durability, tools);
        engine.define(&linear("one", 1)).await;
        let mut times = Vec::new();
        for _ in 0..harness.size(1_000) {
            let started = Instant::now();
            engine.start("one", json!({})).await;
            times.push(called.recv().await.expect("a call") - started);
            engine.completed().await;
        }
        engine.stop().await;
        median(times)
    })
}
