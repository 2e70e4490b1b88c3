//! Runs that sleep for a day or wait for a human: what they cost in memory, and when an engine starts.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use steprail_engine::Durability;
use tokio::task::JoinSet;

use crate::stage::{Player, Stage, database, noop, resident, runtime, steps, user};
use crate::table::{Line, Table, rate, time};

/// What makes this program the one that starts with parked runs.
pub(crate) const OPENER: &str = "--opener";
const STARTERS: usize = 256;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let count = stage.size(100_000);
    let dir = stage.scratch();
    let (took, grown) = stage.runtime.block_on(park(&database(&dir), count));
    let line = Line::new(format!("parking {count} runs, process"), format!("{:.0}/s", rate(count, took)));
    table.add(&line);
    table.add(&memory("memory per parked run, in the engine that parked it", grown / count));
    let (starting, grown) = start_with(&database(&dir));
    table.add(&memory("memory per parked run, in an engine that starts", grown / count));
    let line = Line::new(format!("start of an engine with {count} parked runs"), time(starting));
    table.add(&line.target("< 2 s", starting < Duration::from_secs(2)));
}

fn memory(what: &str, each: usize) -> Line {
    Line::new(what, format!("{each} B")).target("<= 1,024 B", each <= 1_024)
}

/// Parks runs; says how long that took, and how much memory it left taken.
async fn park(database: &Path, count: usize) -> (Duration, usize) {
    let player = Player::new(database, Durability::Process, noop());
    player.define("name: sleep\nsteps:\n  - { id: nap, kind: sleep, for: 1d }\n").await;
    player.define("name: gate\nsteps:\n  - { id: ask, kind: approve, prompt: \"Go on?\" }\n").await;
    let (before, begun) = (resident(), Instant::now());
    let mut tasks = JoinSet::new();
    for starter in 0..STARTERS {
        let engine = player.engine.clone();
        tasks.spawn(async move {
            for at in (starter..count).step_by(STARTERS) {
                let name = if at % 2 == 0 { "sleep" } else { "gate" };
                engine.start(steprail_engine::Start::named(name, user())).await.expect("a run");
            }
        });
    }
    tasks.join_all().await;
    let parked = (begun.elapsed(), resident().saturating_sub(before));
    player.stop().await;
    parked
}

/// Starts an engine in a process of its own; says how long that took, and how much memory it took.
fn start_with(database: &Path) -> (Duration, usize) {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).arg(OPENER).arg(database).output().expect("a process");
    let text = String::from_utf8(output.stdout).expect("text");
    let (micros, bytes) = text.trim().split_once(' ').expect("two numbers");
    (Duration::from_micros(micros.parse().expect("a time")), bytes.parse().expect("a size"))
}

/// Starts an engine and prints how long that took and how much memory it took.
pub(crate) fn open(database: &Path) {
    runtime().block_on(async {
        let (before, begun) = (resident(), Instant::now());
        let mut player = Player::new(database, Durability::Process, noop());
        player.define(&steps("one", 1)).await;
        player.time("one", json!({})).await;
        println!("{} {}", begun.elapsed().as_micros(), resident().saturating_sub(before));
        player.stop().await;
    });
}
