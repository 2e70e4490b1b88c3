//! Runs that sleep for a day or wait for an approval: their memory, and the time to start an engine with them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use steprail_engine::Durability;
use tokio::task::JoinSet;

use crate::harness::{BenchEngine, Harness, database, linear, noop, resident, runtime, user};
use crate::table::{Row, Table, rate, time};

/// The argument of the process that opens a database with parked runs.
pub(crate) const OPENER: &str = "--opener";
const STARTERS: usize = 256;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let count = harness.size(100_000);
    let dir = harness.scratch();
    let (elapsed, grown) = harness.runtime.block_on(park(&database(&dir), count));
    let row = Row::new(format!("park {count} runs, process"), format!("{:.0}/s", rate(count, elapsed)));
    table.add(&row);
    table.add(&memory("memory per parked run, in the engine that parked it", grown / count));
    let (starting, grown) = start_with(&database(&dir));
    table.add(&memory("memory per parked run, after a restart", grown / count));
    let row = Row::new(format!("start an engine with {count} parked runs"), time(starting));
    table.add(&row.target("< 2 s", starting < Duration::from_secs(2)));
}

fn memory(label: &str, bytes: usize) -> Row {
    Row::new(label, format!("{bytes} B")).target("<= 1,024 B", bytes <= 1_024)
}

/// Parks runs. Returns the time, and the growth of resident memory in bytes.
async fn park(database: &Path, count: usize) -> (Duration, usize) {
    let engine = BenchEngine::new(database, Durability::Process, noop());
    engine.define("name: sleep\nsteps:\n  - { id: nap, kind: sleep, for: 1d }\n").await;
    engine.define("name: gate\nsteps:\n  - { id: ask, kind: approve, prompt: \"Continue?\" }\n").await;
    let (before, started) = (resident(), Instant::now());
    let mut tasks = JoinSet::new();
    for starter in 0..STARTERS {
        let engine = engine.engine.clone();
        tasks.spawn(async move {
            for at in (starter..count).step_by(STARTERS) {
                let name = if at % 2 == 0 { "sleep" } else { "gate" };
                engine.start(steprail_engine::Start::named(name, user())).await.expect("a run");
            }
        });
    }
    tasks.join_all().await;
    let parked = (started.elapsed(), resident().saturating_sub(before));
    engine.stop().await;
    parked
}

/// Starts an engine in a new process. Returns the time, and the growth of resident memory in bytes.
fn start_with(database: &Path) -> (Duration, usize) {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).arg(OPENER).arg(database).output().expect("a process");
    let text = String::from_utf8(output.stdout).expect("text");
    let (micros, bytes) = text.trim().split_once(' ').expect("two numbers");
    (Duration::from_micros(micros.parse().expect("a time")), bytes.parse().expect("a size"))
}

/// Starts an engine. Prints the time in microseconds, and the growth of resident memory in bytes.
pub(crate) fn open(database: &Path) {
    runtime().block_on(async {
        let (before, started) = (resident(), Instant::now());
        let mut engine = BenchEngine::new(database, Durability::Process, noop());
        engine.define(&linear("one", 1)).await;
        engine.time("one", json!({})).await;
        println!("{} {}", started.elapsed().as_micros(), resident().saturating_sub(before));
        engine.stop().await;
    });
}
