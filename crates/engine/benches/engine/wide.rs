//! One run with 1,000 branches at the same time, and a step that joins them.

use std::fmt::Write;
use std::time::Duration;

use serde_json::json;
use steprail_engine::Durability;

use crate::raw::batched;
use crate::stage::{Player, Stage, database, noop};
use crate::table::{Line, Table, each, ratio, time};

const BRANCHES: usize = 1_000;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let raw = stage.best(|| each(batched(stage, Durability::Process, BRANCHES).clock, 10));
    let dir = stage.scratch();
    let took = stage.runtime.block_on(async {
        let mut player = Player::new(&database(&dir), Durability::Process, noop());
        player.define(&definition()).await;
        let mut best = Duration::MAX;
        for _ in 0..10 {
            best = best.min(player.time("wide", json!({})).await);
        }
        player.stop().await;
        best
    });
    let line = Line::new(format!("{BRANCHES} branches and a join, process"), time(took));
    let line = line.beside(format!("{} raw, {BRANCHES} steps", time(raw)), ratio(took, raw));
    table.add(&line.target("<= 50 ms", took <= Duration::from_millis(50)));
}

fn definition() -> String {
    let mut text = String::from("name: wide\nsteps:\n  - id: fan\n    kind: parallel\n    steps:\n");
    for at in 0..BRANCHES {
        let _ = writeln!(text, "      - {{ id: b{at}, tool: demo__noop }}");
    }
    text + "  - { id: join, tool: demo__noop }\n"
}
