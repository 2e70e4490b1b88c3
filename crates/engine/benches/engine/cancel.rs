//! The time until the tokens of 1,000 calls in flight are cancelled.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::json;
use steprail_engine::{Durability, Failure, FailureKind, Limits, RunHandle, Tools};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::baseline::commit_time;
use crate::harness::{BenchEngine, Harness, database, user, with_tool};
use crate::table::{Row, Table, ratio, time};

const CALLS: usize = 1_000;
/// Calls in flight per run.
const CALLS_PER_RUN: usize = 250;

pub(crate) fn run(harness: &Harness, table: &mut Table) {
    let raw = harness.best(|| commit_time(harness, Durability::Full, 500));
    for (runs, calls) in [(CALLS / CALLS_PER_RUN, CALLS_PER_RUN), (CALLS, 1)] {
        let elapsed = harness.best(|| cancel(harness, runs, calls));
        let row = Row::new(format!("cancel {runs} runs with {calls} calls each, full"), time(elapsed));
        let row = row.baseline(format!("{} one commit", time(raw)), ratio(elapsed, raw));
        table.add(&row.target("<= 200 ms", elapsed <= Duration::from_millis(200)));
    }
}

fn cancel(harness: &Harness, runs: usize, calls: usize) -> Duration {
    let dir = harness.scratch();
    let (sender, mut reports) = unbounded_channel();
    let limits = Limits { calls_per_server: 1_024, ..Limits::default() };
    harness.runtime.block_on(async {
        let tools = hang(sender);
        let mut engine = BenchEngine::with_limits(&database(&dir), Durability::Full, tools, limits);
        engine.define(&definition(calls)).await;
        let mut handles = Vec::new();
        for _ in 0..runs {
            handles.push(engine.start("hang", json!({})).await);
        }
        last_report(&mut reports).await;
        let started = Instant::now();
        let cancelled = cancel_all(&engine, handles);
        let last = last_report(&mut reports).await;
        assert_eq!(cancelled.join_all().await.len(), runs);
        for _ in 0..runs {
            engine.ended().await;
        }
        engine.stop().await;
        last - started
    })
}

fn cancel_all(engine: &BenchEngine, handles: Vec<RunHandle>) -> JoinSet<()> {
    handles.into_iter().fold(JoinSet::new(), |mut tasks, handle| {
        let engine = engine.engine.clone();
        tasks.spawn(async move { engine.cancel(handle.id(), &user(), "enough").await.expect("an end") });
        tasks
    })
}

/// A tool that reports when it is called and when it is cancelled.
fn hang(sender: UnboundedSender<Instant>) -> Tools {
    with_tool(move |call| {
        let sender = sender.clone();
        async move {
            let _ = sender.send(Instant::now());
            call.cancelled.cancelled().await;
            let _ = sender.send(Instant::now());
            Err(Failure::new(FailureKind::Cancelled, "cancelled"))
        }
    })
}

/// Waits for a report of every call. Returns the time of the last one.
async fn last_report(reports: &mut UnboundedReceiver<Instant>) -> Instant {
    let mut last = None;
    for _ in 0..CALLS {
        last = last.max(reports.recv().await);
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
