//! A store that fails: the work stops with a clear error, nothing is said to be done, and it goes on when the
//! fault is mended.

#[path = "common/audit.rs"]
mod audit;
#[path = "torture/disk.rs"]
#[allow(dead_code, reason = "nobody cuts the power here")]
mod disk;
#[path = "torture/hands.rs"]
mod hands;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use disk::Disk;
use hands::{
    HOLD, Hands, SAID, assert_sound, database, engine, fault, open, output, park, soon, start, storage,
    unpark,
};
use rusqlite::Connection;
use serde_json::json;
use steprail_engine::{Engine, RunHandle, RunStatus};
use steprail_store::StoreError;

/// While the store fails: the run stands still, and nobody is told otherwise.
async fn assert_stopped(engine: &Engine, run: &RunHandle, hands: &Hands, code: &str) {
    assert_eq!(fault(engine).await.code(), code);
    assert_eq!(engine.status(run.id()).await.expect("a status").run.status, RunStatus::Running);
    assert_eq!(start(engine, HOLD).await.expect_err("a refusal").code(), code);
    assert_eq!(hands.calls(), ["a"], "nothing follows from what is not stored");
}

/// After it is mended: the run goes on by itself, and no call is repeated.
async fn assert_goes_on(engine: &Engine, run: &RunHandle, hands: &Hands) {
    hands.let_go(2);
    let view = soon("the run ends", run.wait()).await.expect("ended");
    assert_eq!((view.run.status, output(&view)), (RunStatus::Completed, SAID));
    assert_eq!(hands.calls(), ["a", "b", "c"], "the outcome of `a` was kept");
    assert_eq!(engine.fault().map(|fault| fault.to_string()), None);
    engine.shutdown().await.expect("shut down");
}

/// Takes what room there is.
fn fill(folder: &Path) -> PathBuf {
    let ballast = folder.join("ballast");
    let mut file = std::fs::File::create(&ballast).expect("a file");
    for size in [4_096, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    ballast
}

#[tokio::test]
async fn a_full_disk_stops_the_work_until_there_is_room() {
    let disk = match Disk::in_memory(4_096) {
        Ok(disk) => disk,
        Err(lack) => return println!("SKIPPED: no small disk here: {lack}"),
    };
    let hands = Hands::new(0);
    let engine = engine(disk.path(), &hands);
    let run = start(&engine, HOLD).await.expect("started");
    hands.until_called("a").await;
    let ballast = fill(disk.path());
    hands.let_go(1);
    assert_stopped(&engine, &run, &hands, "storage_full").await;
    std::fs::remove_file(ballast).expect("room");
    assert_goes_on(&engine, &run, &hands).await;
    assert_sound(disk.path());
}

#[tokio::test]
async fn a_full_disk_at_the_start_is_told_and_passes() {
    let disk = match Disk::in_memory(4_096) {
        Ok(disk) => disk,
        Err(lack) => return println!("SKIPPED: no small disk here: {lack}"),
    };
    let hands = Hands::new(1);
    let run = park(disk.path(), &hands).await;
    let ballast = fill(disk.path());
    let told = match open(disk.path()) {
        Err(error) => error,
        Ok(store) => match Engine::builder().store(store).tools(hands.tools()).spawn() {
            Err(error) => storage(error),
            Ok(engine) => {
                let refused = engine.signal("go", json!(null), Some(run)).await.expect_err("a full disk");
                engine.shutdown().await.expect("shut down");
                storage(refused)
            }
        },
    };
    assert_eq!(told.code(), "storage_full", "{told}");
    std::fs::remove_file(ballast).expect("room");
    unpark(disk.path(), &hands, run).await;
}

#[tokio::test]
async fn a_disk_that_cannot_be_written_is_told_and_passes() {
    let disk = match Disk::in_memory(4_096) {
        Ok(disk) => disk,
        Err(lack) => return println!("SKIPPED: no small disk here: {lack}"),
    };
    let hands = Hands::new(1);
    let run = park(disk.path(), &hands).await;
    disk.remount("ro");
    let told = open(disk.path()).expect_err("a disk that cannot be written");
    assert_eq!(told.code(), "storage_readonly", "{told}");
    disk.remount("rw");
    unpark(disk.path(), &hands, run).await;
}

/// A disk that fails becomes read-only under the engine. What reached it is unknown, so the engine stops for good
/// and only a new one goes on.
#[tokio::test]
async fn a_disk_that_fails_ends_the_work_until_a_restart() {
    let disk = match Disk::in_a_file("ext4") {
        Ok(disk) => disk,
        Err(lack) => return println!("SKIPPED: no disk that can fail here: {lack}"),
    };
    let (hands, text) = (Hands::new(0), HOLD.replace("demo__hold", "demo__hold, effects: idempotent"));
    let engine = engine(disk.path(), &hands);
    let run = start(&engine, &text).await.expect("started");
    hands.until_called("a").await;
    let waits = tokio::spawn({
        let run = run.clone();
        async move { run.wait().await }
    });
    disk.fail();
    hands.let_go(1);
    assert_stopped(&engine, &run, &hands, "storage_io").await;
    let told = soon("whoever waits is told", waits).await.expect("no panic").expect_err("a fault");
    assert_eq!(told.code(), "storage_io");
    engine.shutdown().await.expect("shut down");
    let id = run.id();
    drop((engine, run));
    disk.power_on();
    let again = self::engine(disk.path(), &hands);
    hands.let_go(3);
    let view = soon("the run ends", again.handle(id).wait()).await.expect("ended");
    assert_eq!((view.run.status, output(&view)), (RunStatus::Completed, SAID));
    assert_eq!(hands.calls(), ["a", "a", "b", "c"], "`a` may be repeated, and its outcome was unknown");
    again.shutdown().await.expect("shut down");
    assert_sound(disk.path());
}

#[tokio::test]
async fn a_locked_database_stops_the_work_until_it_is_free() {
    let folder = tempfile::tempdir().expect("a folder");
    let hands = Hands::new(0);
    let engine = engine(folder.path(), &hands);
    let run = start(&engine, HOLD).await.expect("started");
    hands.until_called("a").await;
    let other = Connection::open(database(folder.path())).expect("another connection");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    hands.let_go(1);
    assert_stopped(&engine, &run, &hands, "storage_busy").await;
    other.execute_batch("COMMIT").expect("the lock is free");
    assert_goes_on(&engine, &run, &hands).await;
    assert_sound(folder.path());
}

#[tokio::test]
async fn a_second_engine_is_refused_with_the_pid_of_the_first() {
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
    open(folder.path()).expect("nobody has it any more");
}

/// Another process that has the database.
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
        assert!(lines.map_while(Result::ok).any(|line| line == "open"), "it has the database");
        Self(child)
    }
}

#[test]
#[ignore = "started by another test"]
fn holder() {
    let Ok(folder) = std::env::var("STEPRAIL_FOLDER") else { return };
    let _store = open(Path::new(&folder)).expect("a database");
    println!("open");
    // Until it is killed, or whoever started it is gone.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[tokio::test]
async fn a_database_of_a_newer_format_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let hands = Hands::new(1);
    let run = park(folder.path(), &hands).await;
    let connection = Connection::open(database(folder.path())).expect("the database");
    let known: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("a number");
    connection.pragma_update(None, "user_version", 99).expect("a newer format");
    let told = open(folder.path()).expect_err("a newer format");
    assert_eq!(told.code(), "storage_newer");
    assert!(matches!(told, StoreError::Newer { found: 99, known: to } if to == known));
    let text = told.to_string();
    assert!(text.contains("99") && text.contains(&known.to_string()), "{text}");
    connection.pragma_update(None, "user_version", known).expect("the format of today");
    drop(connection);
    unpark(folder.path(), &hands, run).await;
}
