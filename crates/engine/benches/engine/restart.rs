//! How soon work goes on after `kill -9`: from the start of an engine to the first call.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use steprail_engine::Durability;
use tokio::sync::mpsc::unbounded_channel;

use crate::stage::{Player, Stage, database, runtime, steps, with_tool};
use crate::table::{Line, Table, time};

/// What makes this program the one that is killed.
pub(crate) const VICTIM: &str = "--victim";
const RUNS: usize = 200;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let times: Vec<Duration> = (0..stage.rounds() + 2).map(|_| kill_and_start(stage)).collect();
    let (best, worst) = (times.iter().min().expect("a time"), times.iter().max().expect("a time"));
    let line = Line::new(format!("kill -9 with {RUNS} runs under way: start to first call"), time(*worst));
    let line = line.beside(format!("the worst of {}; best {}", times.len(), time(*best)), 1.0);
    table.add(&line.target("<= 100 ms", *worst <= Duration::from_millis(100)));
}

fn kill_and_start(stage: &Stage) -> Duration {
    let dir = stage.scratch();
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    child.arg(VICTIM).arg(database(&dir)).stdout(Stdio::piped());
    let mut child = child.spawn().expect("a process");
    let mut said = BufReader::new(child.stdout.take().expect("its output"));
    said.read_line(&mut String::new()).expect("a word");
    std::thread::sleep(Duration::from_millis(500));
    child.kill().expect("a kill");
    child.wait().expect("an end");
    said.read_to_end(&mut Vec::new()).expect("the end of its output");
    first_call(stage, &database(&dir))
}

fn first_call(stage: &Stage, database: &Path) -> Duration {
    let (sender, mut called) = unbounded_channel();
    let tools = with_tool(move |_| {
        let _ = sender.send(Instant::now());
        async { Ok(json!(null)) }
    });
    stage.runtime.block_on(async {
        let begun = Instant::now();
        let player = Player::new(database, Durability::Full, tools);
        let first = called.recv().await.expect("a call") - begun;
        player.stop().await;
        first
    })
}

/// Runs workflows until it is killed.
pub(crate) fn be_killed(database: &Path) {
    let tools = with_tool(|_| async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(json!({ "ok": true }))
    });
    runtime().block_on(async {
        let mut player = Player::new(database, Durability::Full, tools);
        player.define(&steps("ten", 10)).await;
        player.pump("ten", RUNS, RUNS).await;
        println!("under way");
        player.pump("ten", usize::MAX, RUNS).await;
    });
}
