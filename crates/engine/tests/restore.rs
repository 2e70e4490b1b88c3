//! A restored database starts a new incarnation: nothing runs before a user resumes it.

#[path = "common/audit.rs"]
mod audit;
#[path = "torture/held_tool.rs"]
mod held_tool;

use std::path::Path;
use std::sync::Arc;

use held_tool::{HOLD, HeldTool, ann, database, open, start, within_a_minute};
use steprail_engine::{After, Cursor, Engine, Event, ManualClock, Resume, RunId, RunStatus, Schedule};
use steprail_store::sqlite::{Restore, backup};

const NOON: i64 = 1_800_000_000_000;
const HOUR: i64 = 3_600_000;
/// A run that calls a tool after an hour.
const LATER: &str = "
name: later
steps:
  - { id: nap, kind: sleep, for: 1h }
  - { id: late, tool: demo__hold }
";

fn engine_at(folder: &Path, tool: &HeldTool, time: i64) -> (Arc<ManualClock>, Engine) {
    let clock = Arc::new(ManualClock::at(time));
    let store = open(folder).expect("a database");
    let engine = Engine::builder().store(store).tools(tool.tools()).clock(clock.clone()).spawn();
    (clock, engine.expect("an engine"))
}

fn restore(folder: &Path) {
    let prepared = Restore::prepare(&folder.join("backup.db"), &database(folder), &mut |_, _| {});
    prepared.expect("a backup").put(&folder.join("previous.db")).expect("restored");
}

async fn status(engine: &Engine, run: RunId) -> RunStatus {
    engine.status(run).await.expect("a status").run.status
}

/// Two runs are in progress when the backup is made. Both make calls afterwards, which the backup does not contain.
#[tokio::test]
async fn restored_runs_are_parked_with_the_calls_that_may_have_been_executed() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = HeldTool::new(0);
    let (clock, engine) = engine_at(folder.path(), &tool, NOON);
    let holding = start(&engine, HOLD).await.expect("started").id();
    let sleeping = start(&engine, LATER).await.expect("started").id();
    tool.wait_for_call("a").await;
    backup(&database(folder.path()), &folder.path().join("backup.db"), &mut |_, _| {}).expect("a backup");
    clock.advance(HOUR);
    tool.release(4);
    for run in [holding, sleeping] {
        within_a_minute("the run ends", engine.handle(run).wait()).await.expect("ended");
    }
    engine.shutdown().await.expect("shut down");
    drop(engine);
    let before = tool.calls();
    assert_eq!(before.len(), 4);

    restore(folder.path());
    let (clock, engine) = engine_at(folder.path(), &tool, NOON + 2 * HOUR);
    for run in [holding, sleeping] {
        assert_eq!(status(&engine, run).await, RunStatus::Interrupted);
    }
    clock.advance(HOUR);
    engine.signal("go", serde_json::Value::Null, None).await.expect("timers are handled before");
    assert_eq!(status(&engine, sleeping).await, RunStatus::Interrupted, "its timer does not fire");
    assert_eq!(tool.calls(), before, "nothing is called");
    let view = engine.status(holding).await.expect("a status");
    let restored = view.restored.expect("the restore");
    assert_eq!((restored.incarnation, &*restored.may_have_run, restored.more), (2, &["a".into()][..], 0));

    engine.resume(sleeping, &ann(), Resume::default()).await.expect("resumed");
    tool.release(1);
    within_a_minute("the run ends", engine.handle(sleeping).wait()).await.expect("ended");
    engine.resume(holding, &ann(), Resume::default()).await.expect("resumed");
    let view = engine.status(holding).await.expect("a status");
    assert_eq!(
        (view.run.status, view.unknown_calls.len()),
        (RunStatus::Paused, 1),
        "a human decides about `a`"
    );
    assert_eq!(tool.calls().len(), 5, "`a` is not repeated");
}

/// A crash while runs are parked, and a second start, park each run once.
#[tokio::test]
async fn runs_are_parked_once_per_restore() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = HeldTool::new(0);
    let (_, engine) = engine_at(folder.path(), &tool, NOON);
    let run = start(&engine, LATER).await.expect("started").id();
    backup(&database(folder.path()), &folder.path().join("backup.db"), &mut |_, _| {}).expect("a backup");
    engine.shutdown().await.expect("shut down");
    drop(engine);
    restore(folder.path());
    let (_, engine) = engine_at(folder.path(), &tool, NOON);
    assert_eq!(status(&engine, run).await, RunStatus::Interrupted);
    engine.resume(run, &ann(), Resume::default()).await.expect("resumed");
    engine.shutdown().await.expect("shut down");
    drop(engine);
    let (_, engine) = engine_at(folder.path(), &tool, NOON);
    assert_eq!(status(&engine, run).await, RunStatus::Running, "a later start does not park it again");
    let events = engine.events(run, After::Seq(0), 100).await.expect("events").events;
    let parked = events.iter().filter(|stored| matches!(stored.event, Event::RunInterrupted { .. })).count();
    assert_eq!(parked, 1);
}

/// The run of a time that passed after the backup may have taken place.
#[tokio::test]
async fn schedules_that_were_due_after_the_backup_do_not_start_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = HeldTool::new(0);
    let (_, engine) = engine_at(folder.path(), &tool, NOON);
    engine.define(LATER, &ann()).await.expect("defined");
    let schedule = Schedule::new("hourly", "later", "0 * * * *", ann());
    engine.schedule(schedule).await.expect("scheduled");
    backup(&database(folder.path()), &folder.path().join("backup.db"), &mut |_, _| {}).expect("a backup");
    engine.shutdown().await.expect("shut down");
    drop(engine);
    restore(folder.path());
    let (clock, engine) = engine_at(folder.path(), &tool, NOON + 3 * HOUR);
    let list = async || {
        engine.list(steprail_engine::ListRuns { limit: 10, ..Default::default() }).await.expect("runs")
    };
    assert_eq!(list().await.len(), 0);
    let schedule = engine.schedules().await.expect("schedules").pop().expect("a schedule");
    assert!(schedule.due.is_some_and(|due| due > NOON + 3 * HOUR), "{schedule:?}");
    assert!(schedule.last.and_then(|last| last.error).is_some_and(|error| error.contains("restored")));
    let mut cursor = engine.watch_cursor();
    clock.advance(HOUR);
    within_a_minute("the next time comes", cursor.wait_for(|event| *event > Cursor::START))
        .await
        .expect("an engine");
    assert_eq!(list().await.len(), 1);
}
