//! Whether a step costs the same however many there were before it in its run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use steprail_engine::Durability;

use crate::stage::{Player, Stage, database, noop, steps, with_tool};
use crate::table::{Line, Table, each, ratio, time};

const FEW: usize = 100;

/// What a run of so many steps costs.
type Cost = fn(&Stage, usize) -> Duration;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let many = stage.size(10_000);
    let cases: [(&str, Cost); 3] =
        [("a list", list), ("a loop of a graph", graph), ("a foreach, one at a time", foreach)];
    for (name, case) in cases {
        let (mut short, mut long) = (Duration::MAX, Duration::MAX);
        for _ in 0..stage.rounds() {
            short = short.min(each(case(stage, FEW), FEW));
            long = long.min(each(case(stage, many), many));
        }
        let grown = ratio(long, short);
        let line = Line::new(format!("{name}: a step of {many}, process"), time(long));
        let line = line.beside(format!("{} in a run of {FEW}", time(short)), grown);
        table.add(&line.target("<= 1.2 x", grown <= 1.2));
    }
}

/// The time of a run, on average over some that have as many steps in all however long they are.
async fn average(player: &mut Player, name: &str, inputs: &Value, steps: usize) -> Duration {
    // The first run compiles the definition.
    player.time(name, inputs.clone()).await;
    let runs = (10_000 / steps).clamp(1, 20);
    let mut total = Duration::ZERO;
    for _ in 0..runs {
        total += player.time(name, inputs.clone()).await;
    }
    each(total, runs)
}

fn list(stage: &Stage, count: usize) -> Duration {
    let dir = stage.scratch();
    stage.runtime.block_on(async {
        let mut player = Player::new(&database(&dir), Durability::Process, noop());
        player.define(&steps("line", count)).await;
        let took = average(&mut player, "line", &json!({}), count).await;
        player.stop().await;
        took
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

fn graph(stage: &Stage, count: usize) -> Duration {
    let dir = stage.scratch();
    let made = Arc::new(AtomicUsize::new(0));
    let tools = with_tool(move |_| {
        let calls = 1 + made.fetch_add(1, Ordering::Relaxed) % (count + 1);
        async move { Ok(json!({ "more": calls < count })) }
    });
    stage.runtime.block_on(async {
        let mut player = Player::new(&database(&dir), Durability::Process, tools);
        player.define(LOOP).await;
        let took = average(&mut player, "loop", &json!({}), count).await;
        player.stop().await;
        took
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

fn foreach(stage: &Stage, count: usize) -> Duration {
    let dir = stage.scratch();
    stage.runtime.block_on(async {
        let mut player = Player::new(&database(&dir), Durability::Process, noop());
        player.define(&EACH.replace("CONCURRENCY", "1")).await;
        let inputs = json!({ "items": (0..count).collect::<Vec<_>>() });
        let took = average(&mut player, "each", &inputs, count).await;
        player.stop().await;
        took
    })
}
