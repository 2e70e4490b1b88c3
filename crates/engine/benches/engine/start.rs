//! From the start of a run to its first call, with nothing else to do.

use std::time::{Duration, Instant};

use serde_json::json;
use steprail_engine::Durability;
use tokio::sync::mpsc::unbounded_channel;

use crate::raw::commit;
use crate::stage::{Player, Stage, database, steps, with_tool, word};
use crate::table::{Line, Table, median, ratio, time};

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    for durability in [Durability::Process, Durability::Full] {
        let raw = stage.best(|| commit(stage, durability, 500));
        let took = stage.best(|| first_call(stage, durability));
        let line = Line::new(format!("start to first call, median, {}", word(durability)), time(took));
        let line = line.beside(format!("{} one commit", time(raw)), ratio(took, raw));
        table.add(&match durability {
            Durability::Process => line.target("<= 0.5 ms", took <= Duration::from_micros(500)),
            Durability::Full => line,
        });
    }
}

fn first_call(stage: &Stage, durability: Durability) -> Duration {
    let dir = stage.scratch();
    let (sender, mut called) = unbounded_channel();
    let tools = with_tool(move |_| {
        let _ = sender.send(Instant::now());
        async { Ok(json!(null)) }
    });
    stage.runtime.block_on(async {
        let mut player = Player::new(&database(&dir), durability, tools);
        player.define(&steps("one", 1)).await;
        let mut times = Vec::new();
        for _ in 0..stage.size(1_000) {
            let begun = Instant::now();
            player.start("one", json!({})).await;
            times.push(called.recv().await.expect("a call") - begun);
            player.completed().await;
        }
        player.stop().await;
        median(times)
    })
}
