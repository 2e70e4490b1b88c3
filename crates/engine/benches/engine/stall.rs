//! The longest time that the start of another run takes while one run makes many transitions without a call.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use steprail_engine::{Durability, RunHandle};

use crate::harness::{BenchEngine, Harness, database, noop, user};
use crate::table::{Row, Table, time};

const TARGET: Duration = Duration::from_millis(50);

const SMALL: &str = "
name: small
steps:
  - { id: one, kind: pass }
";

const PASS: &str = "
name: pass
inputs: { items: { type: array } }
steps:
  - id: all
    kind: foreach
    items: \"{{inputs.items}}\"
    concurrency: 64
    steps:
      - { id: one, kind: pass }
";

/// Up to 65,536 steps that wait at the same time.
const WAITS: &str = "
name: waits
inputs: { items: { type: array } }
steps:
  - id: outer
    kind: foreach
    items: \"{{inputs.items}}\"
    concurrency: 256
    steps:
      - id: inner
        kind: foreach
        items: \"{{inputs.items}}\"
        concurrency: 256
        steps:
          - { id: hold, kind: wait, event: never }
";

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let dir = harness.scratch();
    let items = harness.size(100_000);
    let rows = if items < 100_000 { 80 } else { 256 };
    harness.runtime.block_on(async {
        let engine = BenchEngine::new(&database(&dir), Durability::Process, noop());
        for definition in [SMALL, PASS, WAITS] {
            engine.define(definition).await;
        }
        let started = Instant::now();
        let pass = engine.start("pass", list(items)).await;
        let first = started.elapsed();
        add(table, &format!("start of a foreach over {items}"), first, 1);
        let (longest, count) = longest_start(&engine, pass.clone()).await;
        add(table, &format!("starts during {items} items of `pass`"), longest, count);
        let waits = engine.start("waits", list(rows)).await;
        let (longest, count) = longest_start_until_quiet(&engine).await;
        let steps = rows * rows;
        add(table, &format!("starts while {steps} steps begin to wait"), longest, count);
        let started = Instant::now();
        engine.engine.cancel(waits.id(), &user(), "enough").await.expect("a cancellation");
        add(table, &format!("cancel of a run with {steps} steps"), started.elapsed(), 1);
        let (longest, count) = longest_start(&engine, waits).await;
        add(table, &format!("starts while {steps} steps are cancelled"), longest, count);
        engine.stop().await;
    });
}

fn list(count: usize) -> Value {
    json!({ "items": (0..count).collect::<Vec<_>>() })
}

fn add(table: &mut Table, label: &str, longest: Duration, count: usize) {
    let row = Row::new(format!("{label}, longest of {count}"), time(longest));
    table.add(&row.target("<= 50 ms", longest <= TARGET));
}

/// Starts small runs until a run has ended. Returns the longest start, and their number.
async fn longest_start(engine: &BenchEngine, run: RunHandle) -> (Duration, usize) {
    let end = tokio::spawn(async move { run.wait().await.map(drop) });
    let (mut longest, mut count) = (Duration::ZERO, 0);
    while !end.is_finished() {
        longest = longest.max(start_small(engine).await);
        count += 1;
    }
    (longest, count)
}

/// Starts small runs until starts have been fast for a while, because no other run continues.
async fn longest_start_until_quiet(engine: &BenchEngine) -> (Duration, usize) {
    let (mut longest, mut count, mut fast) = (Duration::ZERO, 0, 0);
    while fast < 200 {
        let elapsed = start_small(engine).await;
        longest = longest.max(elapsed);
        fast = if elapsed < Duration::from_millis(2) { fast + 1 } else { 0 };
        count += 1;
    }
    (longest, count)
}

async fn start_small(engine: &BenchEngine) -> Duration {
    let started = Instant::now();
    engine.start("small", json!({})).await;
    started.elapsed()
}
