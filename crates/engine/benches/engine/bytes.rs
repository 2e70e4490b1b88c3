//! Steps with large outputs: they cost what writing the bytes costs.

use std::time::Duration;

use serde_json::json;
use steprail_engine::Durability;

use crate::raw::one_by_one;
use crate::stage::{Player, Stage, database, steps, with_tool, word};
use crate::table::{Line, Table, each, ratio, time};

const STEPS: usize = 50;
const BYTES: usize = 100 * 1024;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let output = json!({ "text": "x".repeat(BYTES) }).to_string();
    for durability in [Durability::Process, Durability::Full] {
        let (mut raw, mut ours) = (Duration::MAX, Duration::MAX);
        for _ in 0..stage.rounds() {
            raw = raw.min(each(one_by_one(stage, durability, STEPS, &output), STEPS));
            ours = ours.min(each(engine(stage, durability), STEPS));
        }
        let what = format!("{STEPS} steps that give 100 KB, each step, {}", word(durability));
        let line = Line::new(what, time(ours));
        let line = line.beside(format!("{} raw, the same bytes", time(raw)), ratio(ours, raw));
        table.add(&line.target("<= 2 x raw", ratio(ours, raw) <= 2.0));
    }
}

fn engine(stage: &Stage, durability: Durability) -> Duration {
    let dir = stage.scratch();
    let tools = with_tool(|_| async { Ok(json!({ "text": "x".repeat(BYTES) })) });
    stage.runtime.block_on(async {
        let mut player = Player::new(&database(&dir), durability, tools);
        player.define(&steps("line", STEPS)).await;
        player.time("line", json!({})).await;
        let took = player.time("line", json!({})).await;
        player.stop().await;
        took
    })
}
