//! Storage faults: the engine stops with a clear error, acknowledges nothing that is not stored, and continues
//! when the fault is gone.

#[path = "common/audit.rs"]
mod audit;
#[path = "torture/disk.rs"]
#[allow(dead_code, reason = "these tests do not cut the power")]
mod disk;
#[path = "torture/held_tool.rs"]
mod held_tool;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use disk::Disk;
use held_tool::{
    HOLD, HeldTool, SAID, ann, assert_sound, database, engine, fault, open, output, park, start, storage,
    unpark, within_a_minute,
};
use rusqlite::Connection;
use serde_json::json;
use steprail_engine::{Engine, ManualClock, RunHandle, RunId, RunStatus, Session};
use steprail_store::StoreError;
use steprail_store::limits::RESERVE_BYTES;

/// Asserts that the run does not continue while the store fails.
async fn assert_stopped(engine: &Engine, run: &RunHandle, tool: &HeldTool, code: &str) {
    assert_eq!(fault(engine).await.code(), code);
    assert_eq!(engine.status(run.id()).await.expect("a status").run.status, RunStatus::Running);
    assert_eq!(start(engine, HOLD).await.expect_err("a refusal").code(), code);
    assert_eq!(tool.calls(), ["a"], "no step starts before the result is stored");
}

/// Asserts that the run continues automatically after the fault, and that no call is repeated.
async fn assert_continues(engine: &Engine, run: &RunHandle, tool: &HeldTool) {
    tool.release(2);
    let view = within_a_minute("the run ends", run.wait()).await.expect("ended");
    assert_eq!((view.run.status, output(&view)), (RunStatus::Completed, SAID));
    assert_eq!(tool.calls(), ["a", "b", "c"], "the result of `a` was buffered in memory");
    assert_eq!(engine.fault().map(|fault| fault.to_string()), None);
    engine.shutdown().await.expect("shut down");
}

/// Fills the disk.
fn fill(folder: &Path) -> PathBuf {
    let ballast = folder.join("ballast");
    let mut file = std::fs::File::create(&ballast).expect("a file");
    for size in [4_096, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    ballast
}

/// Writes until the disk has no room left. The write-ahead log has room for some commits after the disk is full.
async fn exhaust(engine: &Engine) {
    for number in 0.. {
        let text = format!("name: filler-{number}\nsteps:\n  - {{ id: a, tool: demo__hold }}\n");
        if let Err(refused) = engine.define(&text, &ann()).await {
            assert_eq!(refused.code(), "storage_full", "{refused}");
            break;
        }
    }
    // A definition writes more pages than the result of a step.
    for number in 0.. {
        let session = Session { id: format!("s{number}"), user: "ann".to_owned(), state: "{}".to_owned() };
        if engine.registry().put_session(session).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn engine_stops_on_a_full_disk_and_continues_when_space_is_free() {
    let disk = match Disk::in_memory(4_096) {
        Ok(disk) => disk,
        Err(lack) => return println!("SKIPPED: no small disk here: {lack}"),
    };
    let tool = HeldTool::new(0);
    let engine = engine(disk.path(), &tool);
    let run = start(&engine, HOLD).await.expect("started");
    tool.wait_for_call("a").await;
    let ballast = fill(disk.path());
    exhaust(&engine).await;
    tool.release(1);
    assert_stopped(&engine, &run, &tool, "storage_full").await;
    std::fs::remove_file(ballast).expect("room");
    assert_continues(&engine, &run, &tool).await;
    assert_sound(disk.path());
}

#[tokio::test]
async fn start_on_a_full_disk_fails_with_storage_full() {
    let disk = match Disk::in_memory(4_096) {
        Ok(disk) => disk,
        Err(lack) => return println!("SKIPPED: no small disk here: {lack}"),
    };
    let tool = HeldTool::new(1);
    let run = park(disk.path(), &tool).await;
    let ballast = fill(disk.path());
    let error = match open(disk.path()) {
        Err(error) => error,
        Ok(store) => match Engine::builder().store(store).tools(tool.tools()).spawn() {
            Err(error) => storage(error),
            Ok(engine) => {
                let refused = engine.signal("go", json!(null), Some(run)).await.expect_err("a full disk");
                engine.shutdown().await.expect("shut down");
                storage(refused)
            }
        },
    };
    assert_eq!(error.code(), "storage_full", "{error}");
    std::fs::remove_file(ballast).expect("room");
    unpark(disk.path(), &tool, run).await;
}

#[tokio::test]
async fn start_on_a_read_only_disk_fails_with_storage_readonly() {
    let disk = match Disk::in_memory(4_096) {
        Ok(disk) => disk,
        Err(lack) => return println!("SKIPPED: no small disk here: {lack}"),
    };
    let tool = HeldTool::new(1);
    let run = park(disk.path(), &tool).await;
    disk.remount("ro");
    let error = open(disk.path()).expect_err("a read-only disk");
    assert_eq!(error.code(), "storage_readonly", "{error}");
    disk.remount("rw");
    unpark(disk.path(), &tool, run).await;
}

/// After a disk error it is unknown which writes reached the disk, so the engine halts until a restart.
#[tokio::test]
async fn disk_error_halts_the_engine_until_a_restart() {
    let disk = match Disk::in_a_file("ext4") {
        Ok(disk) => disk,
        Err(lack) => return println!("SKIPPED: no disk that can fail here: {lack}"),
    };
    let (tool, text) = (HeldTool::new(0), HOLD.replace("demo__hold", "demo__hold, effects: idempotent"));
    let engine = engine(disk.path(), &tool);
    let run = start(&engine, &text).await.expect("started");
    tool.wait_for_call("a").await;
    let waits = tokio::spawn({
        let run = run.clone();
        async move { run.wait().await }
    });
    disk.fail();
    tool.release(1);
    assert_stopped(&engine, &run, &tool, "storage_io").await;
    let error =
        within_a_minute("the caller gets an error", waits).await.expect("no panic").expect_err("a fault");
    assert_eq!(error.code(), "storage_io");
    engine.shutdown().await.expect("shut down");
    let id = run.id();
    drop((engine, run));
    disk.power_on();
    let again = self::engine(disk.path(), &tool);
    tool.release(3);
    let view = within_a_minute("the run ends", again.handle(id).wait()).await.expect("ended");
    assert_eq!((view.run.status, output(&view)), (RunStatus::Completed, SAID));
    assert_eq!(
        tool.calls(),
        ["a", "a", "b", "c"],
        "`a` is idempotent, so it is repeated after an unknown outcome"
    );
    again.shutdown().await.expect("shut down");
    assert_sound(disk.path());
}

#[tokio::test]
async fn engine_stops_on_a_locked_database_and_continues_when_it_is_free() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = HeldTool::new(0);
    let engine = engine(folder.path(), &tool);
    let run = start(&engine, HOLD).await.expect("started");
    tool.wait_for_call("a").await;
    let other = Connection::open(database(folder.path())).expect("another connection");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    tool.release(1);
    assert_stopped(&engine, &run, &tool, "storage_busy").await;
    other.execute_batch("COMMIT").expect("release the lock");
    assert_continues(&engine, &run, &tool).await;
    assert_sound(folder.path());
}

/// Today's write would go to a file that has no name, and a restart would find nothing.
#[tokio::test]
async fn engine_stops_when_its_database_is_removed_and_does_not_start_empty() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = HeldTool::new(0);
    let engine = engine(folder.path(), &tool);
    let run = start(&engine, HOLD).await.expect("started");
    tool.wait_for_call("a").await;
    std::fs::remove_file(database(folder.path())).expect("removed");
    let error = start(&engine, HOLD).await.expect_err("the run would be lost");
    assert_eq!(error.code(), "storage_replaced", "{error}");
    tool.release(1);
    assert_stopped(&engine, &run, &tool, "storage_replaced").await;
    engine.shutdown().await.expect("shut down");
    drop((engine, run));
    let error = open(folder.path()).expect_err("it had events");
    assert_eq!(error.code(), "storage_mismatch", "{error}");
    assert!(!database(folder.path()).exists(), "no empty database is created");
}

/// Without a request, the engine finds it out when it looks at the files.
#[tokio::test]
async fn idle_engine_reports_that_its_files_were_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path(), &HeldTool::new(0));
    let wal = folder.path().join("test.db-wal");
    std::fs::remove_file(wal).expect("removed");
    let fault = within_a_minute("the engine looks at its files", fault(&engine)).await;
    assert_eq!(fault.code(), "storage_replaced", "{fault}");
}

#[tokio::test]
async fn run_is_cancelled_on_a_full_disk() {
    let disk = match Disk::in_memory(64 * 1_024) {
        Ok(disk) => disk,
        Err(lack) => return println!("SKIPPED: no small disk here: {lack}"),
    };
    let tool = HeldTool::new(0);
    let engine = engine(disk.path(), &tool);
    let run = start(&engine, HOLD).await.expect("started");
    let other = start(&engine, HOLD).await.expect("started");
    tool.wait_for_calls(2).await;
    let ballast = fill(disk.path());
    exhaust(&engine).await;
    assert_eq!(start(&engine, HOLD).await.expect_err("a full disk").code(), "storage_full");
    engine.cancel(run.id(), &ann(), "enough").await.expect("cancelled from reserved space");
    assert_eq!(engine.status(run.id()).await.expect("a status").run.status, RunStatus::Cancelled);
    assert_eq!(engine.fault().map(|fault| fault.code()), Some("storage_full"), "the disk is still full");
    exhaust(&engine).await;
    let reserve = disk.path().join("test.db-reserve").metadata().expect("the reserve").len();
    assert!(reserve > RESERVE_BYTES / 2, "reserved space is for cancellations: {reserve}");
    engine.cancel(other.id(), &ann(), "enough").await.expect("cancelled from what is left");
    std::fs::remove_file(ballast).expect("room");
    engine.shutdown().await.expect("shut down");
    assert_sound(disk.path());
}

/// No request writes anything after the first one. The engine probes the store after a delay.
#[tokio::test]
async fn fault_is_reported_for_as_long_as_writes_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(folder.path(), &HeldTool::new(0));
    let other = Connection::open(database(folder.path())).expect("another connection");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    assert_eq!(start(&engine, HOLD).await.expect_err("a refusal").code(), "storage_busy");
    let mut faults = engine.faults();
    faults.mark_unchanged();
    within_a_minute("the engine probes the store", faults.changed()).await.expect("an engine");
    let code = faults.borrow_and_update().as_ref().map(StoreError::code);
    assert_eq!(code, Some("storage_busy"), "the database is still locked");
    other.execute_batch("COMMIT").expect("release the lock");
    within_a_minute("the fault is over", faults.wait_for(Option::is_none)).await.expect("an engine");
    start(&engine, HOLD).await.expect("started");
}

/// A wall clock that was wrong for a while must not let a timer fire early when it is corrected.
#[tokio::test]
async fn timer_is_not_early_after_the_clock_was_set_back_and_corrected() {
    const HOUR: i64 = 3_600_000;
    const NOON: i64 = 1_800_000_000_000;
    const NAP: &str = "name: nap\nsteps:\n  - { id: nap, kind: sleep, for: 1h }\n";
    let folder = tempfile::tempdir().expect("a folder");
    let at = |time: i64| {
        let clock = Arc::new(ManualClock::at(time));
        let store = open(folder.path()).expect("a database");
        let engine = Engine::builder().store(store).clock(clock.clone()).spawn().expect("an engine");
        (clock, engine)
    };
    let (_, engine) = at(NOON);
    let first = start(&engine, NAP).await.expect("started").id();
    engine.shutdown().await.expect("shut down");
    // The clock is one day behind at the next start, and a second run begins to sleep.
    let (clock, engine) = at(NOON - 24 * HOUR);
    let second = start(&engine, NAP).await.expect("started").id();
    clock.advance(HOUR / 2);
    engine.shutdown().await.expect("shut down");
    // The clock is right again: half an hour of real time has passed since noon.
    let (clock, engine) = at(NOON + HOUR / 2);
    let status = async |run: RunId| engine.status(run).await.expect("a status").run.status;
    engine.ready().await.expect("recovered");
    assert_eq!((status(first).await, status(second).await), (RunStatus::Running, RunStatus::Running));
    clock.advance(HOUR / 2);
    for run in [first, second] {
        within_a_minute("the timer fires", engine.handle(run).wait()).await.expect("ended");
    }
}

#[tokio::test]
async fn second_engine_is_rejected_with_the_pid_of_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = open(folder.path()).expect("a database");
    let pid = std::process::id().to_string();
    assert!(matches!(open(folder.path()), Err(StoreError::InUse { holder, .. }) if holder == pid));
    drop(first);
    let mut holder = Holder::start(folder.path());
    let pid = holder.0.id().to_string();
    let refused = open(folder.path()).expect_err("in use");
    assert!(matches!(&refused, StoreError::InUse { holder, .. } if *holder == pid), "{refused}");
    assert!(refused.to_string().contains(&pid), "{refused}");
    holder.0.kill().expect("a process to kill");
    holder.0.wait().expect("its end");
    open(folder.path()).expect("the lock is free");
}

/// Another process that holds the lock of the database.
struct Holder(Child);

impl Holder {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["holder", "--exact", "--ignored", "--quiet", "--nocapture"])
            .env("STEPRAIL_FOLDER", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "open"), "the holder opened the database");
        Self(child)
    }
}

#[test]
#[ignore = "started by another test"]
fn holder() {
    let Ok(folder) = std::env::var("STEPRAIL_FOLDER") else { return };
    let _store = open(Path::new(&folder)).expect("a database");
    println!("open");
    // Blocks until this process is killed or its parent exits.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[tokio::test]
async fn database_with_a_newer_format_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = HeldTool::new(1);
    let run = park(folder.path(), &tool).await;
    let connection = Connection::open(database(folder.path())).expect("the database");
    let known: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("a number");
    connection.pragma_update(None, "user_version", 99).expect("a newer format");
    let error = open(folder.path()).expect_err("a newer format");
    assert_eq!(error.code(), "storage_newer");
    assert!(matches!(error, StoreError::Newer { found: 99, known: to } if to == known));
    let text = error.to_string();
    assert!(text.contains("99") && text.contains(&known.to_string()), "{text}");
    connection.pragma_update(None, "user_version", known).expect("the current format");
    drop(connection);
    unpark(folder.path(), &tool, run).await;
}
