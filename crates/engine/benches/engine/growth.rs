//! The cost per step does not grow with the number of steps in the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use steprail_engine::Durability;

use crate::harness::{BenchEngine, Harness, database, linear, noop, with_tool};
use crate::table::{Row, Table, per_item, ratio, time};

const FEW: usize = 100;

/// Measures a run with this number of steps.
type Cost = fn(&Harness, usize) -> Duration;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let many = harness.size(10_000);
    let cases: [(&str, Cost); 3] =
        [("sequence", list), ("loop of a graph", graph), ("foreach, concurrency 1", foreach)];
    for (name, case) in cases {
        let (mut short, mut long) = (Duration::MAX, Duration::MAX);
        for _ in 0..harness.rounds() {
            short = short.min(per_item(case(harness, FEW), FEW));
            long = long.min(per_item(case(harness, many), many));
        }
        let grown = ratio(long, short);
        let row = Row::new(format!("{name}: per step of {many}, process"), time(long));
        let row = row.baseline(format!("{} in a run of {FEW}", time(short)), grown);
        table.add(&row.target("<= 1.2 x", grown <= 1.2));
    }
}

/// The mean time of a run, over about 10,000 steps in all.
async fn average(engine: &mut BenchEngine, name: &str, inputs: &Value, steps: usize) -> Duration {
    // The first run compiles the definition.
    engine.time(name, inputs.clone()).await;
    let runs = (10_000 / steps).clamp(1, 20);
    let mut total = Duration::ZERO;
    for _ in 0..runs {
        total += engine.time(name, inputs.clone()).await;
    }
    per_item(total, runs)
}

fn list(harness: &Harness, count: usize) -> Duration {
    let dir = harness.scratch();
    harness.runtime.block_on(async {
        let mut engine = BenchEngine::new(&database(&dir), Durability::Process, noop());
        engine.define(&linear("line", count)).await;
        let elapsed = average(&mut engine, "line", &json!({}), count).await;
        engine.stop().await;
        elapsed
    })
}

const LOOP: &str = "
name: loop
start: ping
steps:
  ping: { tool: demo__noop, next: pong }
  pong:
    tool: demo__noop
    branch:
      - { if: result.more, then: ping }
      - { else: last }
  last: { tool: demo__noop, done: true }
";

fn graph(harness: &Harness, count: usize) -> Duration {
    let dir = harness.scratch();
    let calls = Arc::new(AtomicUsize::new(0));
    let tools = with_tool(move |_| {
        let call = 1 + calls.fetch_add(1, Ordering::Relaxed) % (count + 1);
        async move { Ok(json!({ "more": call < count })) }
    });
    harness.runtime.block_on(async {
        let mut engine = BenchEngine::new(&database(&dir), Durability::Process, tools);
        engine.define(LOOP).await;
        let elapsed = average(&mut engine, "loop", &json!({}), count).await;
        engine.stop().await;
        elapsed
    })
}

pub(crate) const EACH: &str = "
name: each
inputs:
  items: { type: array }
steps:
  - id: all
    kind: foreach
    items: \"{{inputs.items}}\"
    concurrency: CONCURRENCY
    steps:
      - { id: one, tool: demo__noop, args: { item: \"{{item}}\" } }
";

fn foreach(harness: &Harness, count: usize) -> Duration {
    let dir = harness.scratch();
    harness.runtime.block_on(async {
        let mut engine = BenchEngine::new(&database(&dir), Durability::Process, noop());
        engine.define(&EACH.replace("CONCURRENCY", "1")).await;
        let inputs = json!({ "items": (0..count).collect::<Vec<_>>() });
        let elapsed = average(&mut engine, "each", &inputs, count).await;
        engine.stop().await;
        elapsed
    })
}
