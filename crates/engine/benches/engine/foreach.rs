//! A `foreach` over many items: the cost per item does not grow with their number.

use std::time::Duration;

use serde_json::json;
use steprail_engine::Durability;

use crate::growth::EACH;
use crate::harness::{BenchEngine, Harness, database, noop};
use crate::table::{Row, Table, per_item, ratio, time};

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let (few, many) = (harness.size(10_000), harness.size(100_000));
    let (mut short, mut long) = (Duration::MAX, Duration::MAX);
    for _ in 0..harness.rounds() {
        short = short.min(per_item(measure(harness, few), few));
        long = long.min(per_item(measure(harness, many), many));
    }
    let grown = ratio(long, short);
    let row = Row::new(format!("per item of {many}, concurrency 64, process"), time(long));
    let row = row.baseline(format!("{} with {few} items", time(short)), grown);
    table.add(&row.target("<= 1.2 x (linear)", grown <= 1.2));
}

fn measure(harness: &Harness, count: usize) -> Duration {
    let dir = harness.scratch();
    harness.runtime.block_on(async {
        let mut engine = BenchEngine::new(&database(&dir), Durability::Process, noop());
        engine.define(&EACH.replace("CONCURRENCY", "64")).await;
        let elapsed = engine.time("each", json!({ "items": (0..count).collect::<Vec<_>>() })).await;
        engine.stop().await;
        elapsed
    })
}
