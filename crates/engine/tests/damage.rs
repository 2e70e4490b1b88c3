//! A damaged database: the damage is told, it is never taken for a result, and what it did not touch goes on.

#[path = "common/audit.rs"]
mod audit;
#[path = "torture/hands.rs"]
mod hands;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hands::{
    HOLD, Hands, SAID, SAID_TWICE, database, engine, fault, open, output, park, soon, start, unpark,
};
use rusqlite::Connection;
use serde_json::json;
use steprail_core::plan::Hash;
use steprail_engine::{
    Engine, Error, Event, ManualClock, Principal, RunHandle, RunId, RunStatus, Start, Tools,
};
use steprail_store::{Link, link};

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

/// The bytes of a database, all of them in one file.
fn settled(folder: &Path) -> Vec<u8> {
    let connection = Connection::open(database(folder)).expect("the database");
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a checkpoint");
    drop(connection);
    std::fs::read(database(folder)).expect("the database")
}

/// What a kill would leave of a database that is open: calls are in flight, and nobody writes.
fn left_behind(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for name in ["test.db", "test.db-wal"] {
        std::fs::copy(folder.join(name), copy.path().join(name)).expect("a copy");
    }
    copy
}

/// Makes the log of a run unreadable.
fn spoil(folder: &Path, run: &RunHandle) {
    let connection = Connection::open(database(folder)).expect("the database");
    let sql = "DROP TRIGGER events_never_change;
               UPDATE workflow_events SET body = replace(body, 'type', 'tyqe')
               WHERE run_id = (SELECT id FROM workflow_runs WHERE run_id = 'RUN');
               CREATE TRIGGER events_never_change BEFORE UPDATE ON workflow_events
               BEGIN SELECT RAISE(ABORT, 'events never change'); END;";
    connection.execute_batch(&sql.replace("RUN", &run.id().to_string())).expect("damage");
}

async fn status(engine: &Engine, run: &RunHandle) -> RunStatus {
    engine.status(run.id()).await.expect("a status").run.status
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let hands = Hands::new(1);
    let run = park(folder.path(), &hands).await;
    let sound = settled(folder.path());
    let mut bytes = sound.clone();
    bytes[..16].fill(b'x');
    std::fs::write(database(folder.path()), &bytes).expect("damage");
    let told = open(folder.path()).expect_err("no database");
    assert_eq!(told.code(), "storage_corrupt", "{told}");
    assert_eq!(std::fs::read(database(folder.path())).expect("the file"), bytes);
    std::fs::write(database(folder.path()), sound).expect("a backup");
    unpark(folder.path(), &hands, run).await;
}

#[tokio::test]
async fn a_value_that_was_changed_behind_the_log_is_not_passed_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let say = || Tools::new().tool("demo__say", |_| async { Ok(json!({ "sum": 120 })) });
    let engine = Engine::builder()
        .store(open(folder.path()).expect("a store"))
        .tools(say())
        .spawn()
        .expect("an engine");
    let run = engine.start(Start::inline(TWO, Principal::user("ann"))).await.expect("a run").id();
    let mut events = engine.subscribe(Some(run), 0);
    while let Some(event) = events.next().await.expect("events") {
        if matches!(&event.event, Event::StepStarted { step, .. } if &*step.path == "nap") {
            break;
        }
    }
    engine.shutdown().await.expect("shut down");
    drop(engine);
    let connection = Connection::open(database(folder.path())).expect("the database");
    let sql = "UPDATE workflow_step_runs SET output_json = replace(output_json, '120', '820')";
    assert!(connection.execute(sql, []).expect("damage") > 0);
    drop(connection);
    let engine = Engine::builder()
        .store(open(folder.path()).expect("a store"))
        .tools(say())
        .spawn()
        .expect("an engine");
    engine.signal("go", json!(null), Some(run)).await.expect_err("the step cannot begin");
    let told = engine.handle(run).wait().await.expect_err("the run stands still");
    assert!(told.to_string().contains("was changed"), "{told}");
    assert_eq!(engine.status(run).await.expect("a status").run.status, RunStatus::Running);
}

/// What came of a run in a database of which a byte was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    /// The database was refused.
    Refused,
    /// Whoever asked for the run, or for what is wrong, was told.
    Told,
    /// The run is as it should be: the damage was somewhere else.
    Unhurt,
    /// The run ended as if nothing had happened to it.
    PassedOver,
}

#[tokio::test]
async fn a_changed_byte_is_never_taken_for_a_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(park(folder.path(), &Hands::new(1)).await);
    }
    let sound = settled(folder.path());
    let (mut came, mut bad) = (BTreeMap::<Came, u32>::new(), Vec::new());
    for seed in 0..60 {
        for what in try_changed(&sound, &runs, seed).await {
            *came.entry(what).or_default() += 1;
            bad.extend((what == Came::PassedOver).then_some(seed));
        }
    }
    println!("{came:?}");
    assert_eq!(bad, [0; 0], "runs ended over damage with these seeds");
    assert!(came.len() > 2, "the damage bites");
}

/// Changes a letter or a digit: what looks right at first sight.
fn changed(sound: &[u8], seed: u64) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at].is_ascii_alphanumeric()).collect();
    let at = written[fastrand::Rng::with_seed(seed).usize(..written.len())];
    bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
    bytes
}

async fn try_changed(sound: &[u8], runs: &[RunId], seed: u64) -> Vec<Came> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(database(folder.path()), changed(sound, seed)).expect("a damaged database");
    let Ok(store) = open(folder.path()) else { return vec![Came::Refused] };
    let hands = Hands::new(runs.len());
    let Ok(engine) = Engine::builder().store(store).tools(hands.tools()).spawn() else {
        return vec![Came::Refused];
    };
    let mut came = Vec::new();
    for run in runs {
        came.push(try_run(&engine, *run, folder.path()).await);
    }
    engine.shutdown().await.expect("shut down");
    came
}

async fn try_run(engine: &Engine, run: RunId, folder: &Path) -> Came {
    let ended = async {
        engine.signal("go", json!(null), Some(run)).await?;
        engine.handle(run).wait().await
    };
    let view = tokio::select! {
        ended = ended => match ended {
            Err(Error::Storage(_) | Error::NotFound(_)) => return Came::Told,
            Err(other) => panic!("{other}"),
            Ok(view) => view,
        },
        _ = fault(engine) => return Came::Told,
    };
    let connection = Connection::open(database(folder)).expect("the database");
    let whole = chain_holds(&connection, run).unwrap_or_default();
    if whole && (view.run.status, output(&view)) == (RunStatus::Completed, SAID_TWICE) {
        Came::Unhurt
    } else {
        Came::PassedOver
    }
}

/// Whether the log of a run is whole: every event carries the hash of the one before.
fn chain_holds(connection: &Connection, run: RunId) -> rusqlite::Result<bool> {
    let sql = "SELECT id, head_hash FROM workflow_runs WHERE run_id = ?1";
    let (key, head): (i64, Vec<u8>) =
        connection.query_row(sql, [run.to_string()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let sql = "SELECT seq, at, body FROM workflow_events WHERE run_id = ?1 ORDER BY seq";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([key])?;
    let mut hash = Hash([0; 32]);
    while let Some(row) = rows.next()? {
        let body: String = row.get(2)?;
        hash = link(&hash, Link { run, seq: row.get(0)?, at: row.get(1)?, body: &body });
    }
    Ok(hash.0[..] == head[..])
}

#[tokio::test]
async fn a_damaged_run_does_not_keep_others_from_being_picked_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let (hands, text) = (Hands::new(0), HOLD.replace("demo__hold", "demo__hold, effects: idempotent"));
    let first = engine(folder.path(), &hands);
    let hurt = start(&first, &text).await.expect("started");
    let other = start(&first, &text).await.expect("started");
    hands.until_calls(2).await;
    let folder = left_behind(folder.path());
    spoil(folder.path(), &hurt);
    let again = engine(folder.path(), &Hands::new(100));
    let view = soon("the other run ends", again.handle(other.id()).wait()).await.expect("ended");
    assert_eq!((view.run.status, output(&view)), (RunStatus::Completed, SAID));
    assert_eq!(status(&again, &hurt).await, RunStatus::Running);
    assert_eq!(fault(&again).await.code(), "storage_corrupt");
    hands.let_go(100);
}

#[tokio::test]
async fn a_damaged_run_does_not_stop_the_timers_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let builder =
        |folder: &Path| Engine::builder().store(open(folder).expect("a database")).clock(clock.clone());
    let first = builder(folder.path()).spawn().expect("an engine");
    let hurt = start(&first, NAP).await.expect("started");
    let other = start(&first, NAP).await.expect("started");
    let folder = left_behind(folder.path());
    spoil(folder.path(), &hurt);
    let again = builder(folder.path()).spawn().expect("an engine");
    clock.advance(HOUR);
    let view = soon("the other run ends", again.handle(other.id()).wait()).await.expect("ended");
    assert_eq!(view.run.status, RunStatus::Completed);
    assert_eq!(status(&again, &hurt).await, RunStatus::Running);
    assert_eq!(fault(&again).await.code(), "storage_corrupt");
}

/// The result of a call cannot be stored, and never will be.
#[tokio::test]
async fn a_result_without_its_row_does_not_stop_the_timers_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let hands = Hands::new(0);
    let store = open(folder.path()).expect("a database");
    let engine = Engine::builder().store(store).tools(hands.tools()).clock(clock.clone()).spawn();
    let engine = engine.expect("an engine");
    let hurt = start(&engine, HOLD).await.expect("started");
    let other = start(&engine, NAP).await.expect("started");
    hands.until_called("a").await;
    let connection = Connection::open(database(folder.path())).expect("the database");
    connection.execute("DELETE FROM workflow_step_runs WHERE path = 'a'", []).expect("damage");
    hands.let_go(1);
    assert_eq!(fault(&engine).await.code(), "storage_corrupt");
    clock.advance(HOUR);
    let view = soon("the other run ends", other.wait()).await.expect("ended");
    assert_eq!(view.run.status, RunStatus::Completed);
    assert_eq!(status(&engine, &hurt).await, RunStatus::Running);
}
