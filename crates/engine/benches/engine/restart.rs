//! Recovery after `kill -9`: the time from the start of an engine to its first call.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use steprail_engine::Durability;
use tokio::sync::mpsc::unbounded_channel;

use crate::harness::{BenchEngine, Harness, database, linear, runtime, with_tool};
use crate::table::{Row, Table, time};

/// The argument of the process that is killed.
pub(crate) const VICTIM: &str = "--victim";
const RUNS: usize = 200;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let times: Vec<Duration> = (0..harness.rounds() + 2).map(|_| kill_and_start(harness)).collect();
    let (best, worst) = (times.iter().min().expect("a time"), times.iter().max().expect("a time"));
    let row = Row::new(format!("kill -9 with {RUNS} unfinished runs: start to first call"), time(*worst));
    let row = row.baseline(format!("worst of {}; best {}", times.len(), time(*best)), 1.0);
    table.add(&row.target("<= 100 ms", *worst <= Duration::from_millis(100)));
}

fn kill_and_start(harness: &Harness) -> Duration {
    let dir = harness.scratch();
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    child.arg(VICTIM).arg(database(&dir)).stdout(Stdio::piped());
    let mut child = child.spawn().expect("a process");
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    output.read_line(&mut String::new()).expect("a line");
    std::thread::sleep(Duration::from_millis(500));
    child.kill().expect("a kill");
    child.wait().expect("an end");
    output.read_to_end(&mut Vec::new()).expect("the end of its output");
    first_call(harness, &database(&dir))
}

fn first_call(harness: &Harness, database: &Path) -> Duration {
    let (sender, mut called) = unbounded_channel();
    let tools = with_tool(move |_| {
        let _ = sender.send(Instant::now());
        async { Ok(json!(null)) }
    });
    harness.runtime.block_on(async {
        let started = Instant::now();
        let engine = BenchEngine::new(database, Durability::Full, tools);
        let first = called.recv().await.expect("a call") - started;
        engine.stop().await;
        first
    })
}

/// Runs workflows until the process is killed.
pub(crate) fn run_until_killed(database: &Path) {
    let tools = with_tool(|_| async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(json!({ "ok": true }))
    });
    runtime().block_on(async {
        let mut engine = BenchEngine::new(database, Durability::Full, tools);
        engine.define(&linear("ten", 10)).await;
        engine.complete_runs("ten", RUNS, RUNS).await;
        println!("running");
        engine.complete_runs("ten", usize::MAX, RUNS).await;
    });
}
