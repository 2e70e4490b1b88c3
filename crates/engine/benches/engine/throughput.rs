//! Durable steps per second: 1,000 runs of ten steps that do nothing, 256 runs under way at a time.

use std::time::Instant;

use steprail_engine::Durability;

use crate::raw::{BATCH, Took, batched};
use crate::stage::{Player, Stage, database, engine_time, noop, steps, word};
use crate::table::{Line, Table, each, rate, ratio, time};

const RUNS: usize = 1_000;
const STEPS: usize = 10;
const AT_ONCE: usize = 256;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    for durability in [Durability::Full, Durability::Process] {
        let (mut raw, mut ours) = (Took::MAX, Took::MAX);
        for _ in 0..stage.rounds() {
            raw = raw.or_better(batched(stage, durability, RUNS));
            ours = ours.or_better(engine(stage, durability));
        }
        let what = format!("{RUNS} runs x {STEPS} steps, {AT_ONCE} at once, {}", word(durability));
        let limit = format!("{:.0}/s raw, {BATCH} steps a commit", rate(RUNS * STEPS, raw.clock));
        let reached = ratio(raw.clock, ours.clock);
        let line = Line::new(what, format!("{:.0}/s", rate(RUNS * STEPS, ours.clock))).beside(limit, reached);
        table.add(&line.target(">= 0.5 of raw", reached >= 0.5));
        let per_step = |took: Took| time(each(took.writer, RUNS * STEPS));
        let line = Line::new("processor time of the thread that writes, a step", per_step(ours));
        table.add(&line.beside(format!("{} raw", per_step(raw)), ratio(raw.writer, ours.writer)));
    }
}

fn engine(stage: &Stage, durability: Durability) -> Took {
    let dir = stage.scratch();
    stage.runtime.block_on(async {
        let mut player = Player::new(&database(&dir), durability, noop());
        player.define(&steps("ten", STEPS)).await;
        player.time("ten", serde_json::json!({})).await;
        let (begun, before) = (Instant::now(), engine_time());
        player.pump("ten", RUNS, AT_ONCE).await;
        let took = Took { clock: begun.elapsed(), writer: engine_time().checked_sub(before).unwrap() };
        player.stop().await;
        took
    })
}
