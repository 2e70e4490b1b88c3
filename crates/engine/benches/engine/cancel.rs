//! How long it takes until 1,000 calls in flight know that they are cancelled.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::json;
use steprail_engine::{Durability, Failure, FailureKind, Limits, RunHandle, Tools};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::raw::commit;
use crate::stage::{Player, Stage, database, user, with_tool};
use crate::table::{Line, Table, ratio, time};

const CALLS: usize = 1_000;
/// Calls that a run may have in flight.
const IN_A_RUN: usize = 250;

pub(crate) fn run(stage: &Stage, table: &mut Table) {
    let raw = stage.best(|| commit(stage, Durability::Full, 500));
    for (runs, calls) in [(CALLS / IN_A_RUN, IN_A_RUN), (CALLS, 1)] {
        let took = stage.best(|| cancel(stage, runs, calls));
        let line = Line::new(format!("cancel reaches {runs} runs with {calls} calls each, full"), time(took));
        let line = line.beside(format!("{} one commit", time(raw)), ratio(took, raw));
        table.add(&line.target("<= 200 ms", took <= Duration::from_millis(200)));
    }
}

fn cancel(stage: &Stage, runs: usize, calls: usize) -> Duration {
    let dir = stage.scratch();
    let (sender, mut heard) = unbounded_channel();
    let limits = Limits { calls_per_server: 1_024, ..Limits::default() };
    stage.runtime.block_on(async {
        let tools = hang(sender);
        let mut player = Player::with_limits(&database(&dir), Durability::Full, tools, limits);
        player.define(&definition(calls)).await;
        let mut handles = Vec::new();
        for _ in 0..runs {
            handles.push(player.start("hang", json!({})).await);
        }
        hear(&mut heard).await;
        let begun = Instant::now();
        let cancelled = cancel_all(&player, handles);
        let last = hear(&mut heard).await;
        assert_eq!(cancelled.join_all().await.len(), runs);
        for _ in 0..runs {
            player.ended().await;
        }
        player.stop().await;
        last - begun
    })
}

fn cancel_all(player: &Player, handles: Vec<RunHandle>) -> JoinSet<()> {
    handles.into_iter().fold(JoinSet::new(), |mut tasks, handle| {
        let engine = player.engine.clone();
        tasks.spawn(async move { engine.cancel(handle.id(), &user(), "enough").await.expect("an end") });
        tasks
    })
}

/// A tool that says when it is called, and when it is told to stop.
fn hang(sender: UnboundedSender<Instant>) -> Tools {
    with_tool(move |call| {
        let sender = sender.clone();
        async move {
            let _ = sender.send(Instant::now());
            call.cancelled.cancelled().await;
            let _ = sender.send(Instant::now());
            Err(Failure::new(FailureKind::Cancelled, "told to stop"))
        }
    })
}

/// When the last of the calls said something.
async fn hear(heard: &mut UnboundedReceiver<Instant>) -> Instant {
    let mut last = None;
    for _ in 0..CALLS {
        last = last.max(heard.recv().await);
    }
    last.expect("a call")
}

fn definition(calls: usize) -> String {
    let mut text = String::from("name: hang\nsteps:\n  - id: fan\n    kind: parallel\n    steps:\n");
    for at in 0..calls {
        let _ = writeln!(text, "      - {{ id: b{at}, tool: demo__noop }}");
    }
    text
}
