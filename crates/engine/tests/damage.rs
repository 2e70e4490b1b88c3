//! Damaged databases: damage is reported and never used as a result, and unaffected runs continue.

#[path = "common/audit.rs"]
mod audit;
#[path = "torture/held_tool.rs"]
mod held_tool;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use held_tool::{
    HOLD, HeldTool, SAID, SAID_TWICE, database, engine, fault, open, output, park, start, unpark,
    within_a_minute,
};
use rusqlite::Connection;
use serde_json::json;
use steprail_core::plan::Hash;
use steprail_engine::{
    Cursor, Engine, Error, Event, ManualClock, Principal, RunHandle, RunId, RunStatus, Start, Tools,
};
use steprail_store::{RowContent, link};

/// A run that sleeps.
const NAP: &str = "name: nap\nsteps:\n  - { id: nap, kind: sleep, for: 1h }\n";
const HOUR: i64 = 3_600_000;
/// A run that waits between a result and the step that reads it.
const TWO: &str = "
name: two
steps:
  - { id: a, tool: demo__say }
  - { id: nap, kind: wait, event: go }
  - { id: b, tool: demo__say, args: { text: '{{steps.a.output}}' } }
";

/// Returns the bytes of a database after a checkpoint.
fn checkpointed(folder: &Path) -> Vec<u8> {
    let connection = Connection::open(database(folder)).expect("the database");
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a checkpoint");
    drop(connection);
    std::fs::read(database(folder)).expect("the database")
}

/// Copies an open database with its WAL, as a crash would leave it.
fn crash_copy(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for name in ["test.db", "test.db-wal", "test.db-anchor"] {
        std::fs::copy(folder.join(name), copy.path().join(name)).expect("a copy");
    }
    copy
}

/// Makes the log of a run unreadable.
fn corrupt_log(folder: &Path, run: &RunHandle) {
    let connection = Connection::open(database(folder)).expect("the database");
    let sql = "DROP TRIGGER events_never_change;
               UPDATE workflow_log SET body = body || ' '
               WHERE run_id = (SELECT id FROM workflow_runs WHERE run_id = 'RUN');";
    connection.execute_batch(&sql.replace("RUN", &run.id().to_string())).expect("damage");
}

async fn status(engine: &Engine, run: &RunHandle) -> RunStatus {
    engine.status(run.id()).await.expect("a status").run.status
}

#[tokio::test]
async fn invalid_database_file_is_rejected_and_not_modified() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = HeldTool::new(1);
    let run = park(folder.path(), &tool).await;
    let sound = checkpointed(folder.path());
    let mut bytes = sound.clone();
    bytes[..16].fill(b'x');
    std::fs::write(database(folder.path()), &bytes).expect("damage");
    let error = open(folder.path()).expect_err("no database");
    assert_eq!(error.code(), "storage_corrupt", "{error}");
    assert_eq!(std::fs::read(database(folder.path())).expect("the file"), bytes);
    std::fs::write(database(folder.path()), sound).expect("a backup");
    unpark(folder.path(), &tool, run).await;
}

#[tokio::test]
async fn changed_value_is_detected_by_its_hash() {
    let folder = tempfile::tempdir().expect("a folder");
    let say = || Tools::new().tool("demo__say", |_| async { Ok(json!({ "sum": 120 })) });
    let engine = Engine::builder()
        .store(open(folder.path()).expect("a store"))
        .tools(say())
        .spawn()
        .expect("an engine");
    let run = engine.start(Start::inline(TWO, Principal::user("ann"))).await.expect("a run").id();
    let mut events = engine.subscribe(Some(run), Cursor::START);
    while let Some(event) = events.next().await.expect("events") {
        if matches!(&event.event, Event::StepStarted { step, .. } if &*step.path == "nap") {
            break;
        }
    }
    engine.shutdown().await.expect("shut down");
    drop(engine);
    let connection = Connection::open(database(folder.path())).expect("the database");
    let sql = "UPDATE step_runs SET output_json = replace(output_json, '120', '820')";
    assert!(connection.execute(sql, []).expect("damage") > 0);
    drop(connection);
    let engine = Engine::builder()
        .store(open(folder.path()).expect("a store"))
        .tools(say())
        .spawn()
        .expect("an engine");
    engine.signal("go", json!(null), Some(run)).await.expect_err("the step cannot start");
    let error = engine.handle(run).wait().await.expect_err("the run does not continue");
    assert!(error.to_string().contains("was changed"), "{error}");
    assert_eq!(engine.status(run).await.expect("a status").run.status, RunStatus::Running);
}

/// The outcome of a run in a database with a changed byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The database could not be opened.
    Rejected,
    /// The caller or the engine reported an error.
    Reported,
    /// The run completed correctly: the changed byte did not affect it.
    Unaffected,
    /// The run ended with a wrong log or result, and no error was reported.
    Missed,
}

#[tokio::test]
async fn changed_bytes_never_cause_wrong_results() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(park(folder.path(), &HeldTool::new(1)).await);
    }
    let sound = checkpointed(folder.path());
    let anchor = std::fs::read(folder.path().join("test.db-anchor")).expect("the anchor");
    let (mut outcomes, mut bad) = (BTreeMap::<Outcome, u32>::new(), Vec::new());
    // Most bytes are the text of the schema, and a change there rejects the database.
    for seed in 0..300 {
        for what in open_damaged(&sound, &anchor, &runs, seed).await {
            *outcomes.entry(what).or_default() += 1;
            bad.extend((what == Outcome::Missed).then_some(seed));
        }
    }
    println!("{outcomes:?}");
    assert_eq!(bad, [0; 0], "seeds with undetected damage");
    assert!(outcomes.len() > 2, "the damage has different outcomes");
}

/// Changes a letter or a digit, so that the text stays valid JSON.
fn with_changed_byte(sound: &[u8], seed: u64) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at].is_ascii_alphanumeric()).collect();
    let at = written[fastrand::Rng::with_seed(seed).usize(..written.len())];
    bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
    bytes
}

async fn open_damaged(sound: &[u8], anchor: &[u8], runs: &[RunId], seed: u64) -> Vec<Outcome> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(database(folder.path()), with_changed_byte(sound, seed)).expect("a damaged database");
    std::fs::write(folder.path().join("test.db-anchor"), anchor).expect("the anchor");
    let Ok(store) = open(folder.path()) else { return vec![Outcome::Rejected] };
    let tool = HeldTool::new(runs.len());
    let Ok(engine) = Engine::builder().store(store).tools(tool.tools()).spawn() else {
        return vec![Outcome::Rejected];
    };
    let mut outcomes = Vec::new();
    for run in runs {
        outcomes.push(continue_run(&engine, *run, folder.path()).await);
    }
    engine.shutdown().await.expect("shut down");
    outcomes
}

async fn continue_run(engine: &Engine, run: RunId, folder: &Path) -> Outcome {
    let ended = async {
        engine.signal("go", json!(null), Some(run)).await?;
        engine.handle(run).wait().await
    };
    let view = tokio::select! {
        ended = ended => match ended {
            Err(Error::Storage(_) | Error::NotFound(_)) => return Outcome::Reported,
            Err(other) => panic!("{other}"),
            Ok(view) => view,
        },
        _ = fault(engine) => return Outcome::Reported,
    };
    let connection = Connection::open(database(folder)).expect("the database");
    let whole = is_chain_valid(&connection, run).unwrap_or_default();
    if whole && (view.run.status, output(&view)) == (RunStatus::Completed, SAID_TWICE) {
        Outcome::Unaffected
    } else {
        Outcome::Missed
    }
}

/// Whether the hash chain of the rows of a run is valid.
fn is_chain_valid(connection: &Connection, run: RunId) -> rusqlite::Result<bool> {
    let sql = "SELECT l.seq, l.at, l.body, l.hashes, l.hash, b.hash FROM workflow_log l
               LEFT JOIN workflow_log b ON b.id = l.id - 1
               WHERE l.run_id = (SELECT id FROM runs WHERE run_id = ?1) ORDER BY l.seq";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([run.to_string()])?;
    let mut valid = true;
    while let Some(row) = rows.next()? {
        let (body, hashes): (String, Vec<u8>) = (row.get(2)?, row.get(3)?);
        let before: Option<Vec<u8>> = row.get(5)?;
        let before = before.map_or(Hash([0; 32]), |hash| Hash(hash.try_into().expect("32 bytes")));
        let content = RowContent { run, seq: row.get(0)?, at: row.get(1)?, body: &body, hashes: &hashes };
        valid &= link(&before, &content.digest()).0[..] == row.get::<_, Vec<u8>>(4)?[..];
    }
    Ok(valid)
}

#[tokio::test]
async fn damaged_run_does_not_block_recovery_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tool, text) = (HeldTool::new(0), HOLD.replace("demo__hold", "demo__hold, effects: idempotent"));
    let first = engine(folder.path(), &tool);
    let damaged = start(&first, &text).await.expect("started");
    let other = start(&first, &text).await.expect("started");
    tool.wait_for_calls(2).await;
    let folder = crash_copy(folder.path());
    corrupt_log(folder.path(), &damaged);
    let again = engine(folder.path(), &HeldTool::new(100));
    let view = within_a_minute("the other run ends", again.handle(other.id()).wait()).await.expect("ended");
    assert_eq!((view.run.status, output(&view)), (RunStatus::Completed, SAID));
    assert_eq!(status(&again, &damaged).await, RunStatus::Running);
    assert_eq!(fault(&again).await.code(), "storage_corrupt");
    tool.release(100);
}

#[tokio::test]
async fn damaged_run_does_not_block_timers_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let builder =
        |folder: &Path| Engine::builder().store(open(folder).expect("a database")).clock(clock.clone());
    let first = builder(folder.path()).spawn().expect("an engine");
    let damaged = start(&first, NAP).await.expect("started");
    let other = start(&first, NAP).await.expect("started");
    let folder = crash_copy(folder.path());
    corrupt_log(folder.path(), &damaged);
    let again = builder(folder.path()).spawn().expect("an engine");
    clock.advance(HOUR);
    let view = within_a_minute("the other run ends", again.handle(other.id()).wait()).await.expect("ended");
    assert_eq!(view.run.status, RunStatus::Completed);
    assert_eq!(status(&again, &damaged).await, RunStatus::Running);
    assert_eq!(fault(&again).await.code(), "storage_corrupt");
}

#[tokio::test]
async fn result_that_cannot_be_stored_does_not_block_timers_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let tool = HeldTool::new(0);
    let store = open(folder.path()).expect("a database");
    let engine = Engine::builder().store(store).tools(tool.tools()).clock(clock.clone()).spawn();
    let engine = engine.expect("an engine");
    let damaged = start(&engine, HOLD).await.expect("started");
    let other = start(&engine, NAP).await.expect("started");
    tool.wait_for_call("a").await;
    let connection = Connection::open(database(folder.path())).expect("the database");
    connection.execute("DELETE FROM step_runs WHERE path = 'a'", []).expect("damage");
    tool.release(1);
    assert_eq!(fault(&engine).await.code(), "storage_corrupt");
    clock.advance(HOUR);
    let view = within_a_minute("the other run ends", other.wait()).await.expect("ended");
    assert_eq!(view.run.status, RunStatus::Completed);
    assert_eq!(status(&engine, &damaged).await, RunStatus::Running);
}
