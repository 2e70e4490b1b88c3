//! One run of steps that do nothing, one after another: each is a commit of its own.

use std::time::Duration;

use serde_json::json;
use steprail_engine::Durability;

use crate::raw::{commit, hop};
use crate::stage::{Player, Stage, database, noop, steps, word};
use crate::table::{Line, Table, each, ratio, time};

const STEPS: usize = 1_000;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let hop = hop(stage);
    for durability in [Durability::Process, Durability::Full] {
        let (mut raw, mut ours) = (Duration::MAX, Duration::MAX);
        for _ in 0..stage.rounds() {
            raw = raw.min(commit(stage, durability, STEPS));
            ours = ours.min(each(engine(stage, durability), STEPS));
        }
        let what = format!("a run of {STEPS} steps, each step, {}", word(durability));
        let line = Line::new(what, time(ours));
        let line = line.beside(format!("{} one commit, {} one task", time(raw), time(hop)), ratio(ours, raw));
        table.add(&match durability {
            Durability::Process => line.target("<= 100 us", ours <= Duration::from_micros(100)),
            Durability::Full => line.target("<= 1.3 x one commit", ratio(ours, raw) <= 1.3),
        });
    }
}

fn engine(stage: &Stage, durability: Durability) -> Duration {
    let dir = stage.scratch();
    stage.runtime.block_on(async {
        let mut player = Player::new(&database(&dir), durability, noop());
        player.define(&steps("line", STEPS)).await;
        // The first run compiles the definition.
        player.time("line", json!({})).await;
        let took = player.time("line", json!({})).await;
        player.stop().await;
        took
    })
}
