//! A loop over very many items: an item costs the same in ten times as many.

use std::time::Duration;

use serde_json::json;
use steprail_engine::Durability;

use crate::growth::EACH;
use crate::stage::{Player, Stage, database, noop};
use crate::table::{Line, Table, each, ratio, time};

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let (few, many) = (stage.size(10_000), stage.size(100_000));
    let (mut short, mut long) = (Duration::MAX, Duration::MAX);
    for _ in 0..stage.rounds() {
        short = short.min(each(engine(stage, few), few));
        long = long.min(each(engine(stage, many), many));
    }
    let grown = ratio(long, short);
    let line = Line::new(format!("an item of {many}, 64 at once, process"), time(long));
    let line = line.beside(format!("{} with {few} items", time(short)), grown);
    table.add(&line.target("<= 1.2 x (linear)", grown <= 1.2));
}

fn engine(stage: &Stage, count: usize) -> Duration {
    let dir = stage.scratch();
    stage.runtime.block_on(async {
        let mut player = Player::new(&database(&dir), Durability::Process, noop());
        player.define(&EACH.replace("CONCURRENCY", "64")).await;
        let took = player.time("each", json!({ "items": (0..count).collect::<Vec<_>>() })).await;
        player.stop().await;
        took
    })
}
