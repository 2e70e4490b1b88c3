//! Backups, restoring them, and the audit of what is stored.

mod common;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde_json::json;
use steprail_core::run::{Event, PauseReason, Payload, Record, RunStatus};
use steprail_store::StoreError;
use steprail_store::sqlite::{Options, Restore, SqliteStore, Verified, backup, inspect, verify};
use tempfile::TempDir;

fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, &Options::default()).expect("a database")
}

fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("test.db");
    (folder, path)
}

/// A run that was paused, went on and is done.
fn whole_run(store: &mut SqliteStore, number: u128) {
    let output = Payload::new(json!("fine"));
    let end = Event::RunCompleted { output: output.hash() };
    let pause = Record::plain(Event::RunPaused { reason: PauseReason::Requested, by: None });
    let run = common::begin(store, number, json!({ "n": 1 }), Vec::new());
    let (running, paused) = (RunStatus::Running, RunStatus::Paused);
    common::decide(store, run, 1, [running, paused], pause);
    common::decide(store, run, 2, [paused, running], Record::plain(Event::RunResumed { by: None }));
    let end = Record { payload: Some(output), ..Record::plain(end) };
    common::decide(store, run, 3, [running, RunStatus::Completed], end);
}

fn back_up(from: &Path, to: &Path) -> Result<u64, StoreError> {
    backup(from, to, &mut |_, _| {}).map(|made| made.runs)
}

fn prepare(from: &Path, database: &Path) -> Result<Restore, StoreError> {
    Restore::prepare(from, database, &mut |_, _| {})
}

fn audit(path: &Path) -> Verified {
    verify(path, None, &mut |_, _| ControlFlow::Continue(())).expect("an audit")
}

fn runs(path: &Path) -> u64 {
    let sql = "SELECT count(*) FROM workflow_runs";
    Connection::open(path).expect("a database").query_row(sql, [], |row| row.get(0)).expect("a number")
}

/// The names of the files in a folder.
fn files(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("a file").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Changes what the database itself would refuse to change.
fn damage(path: &Path, sql: &str) {
    let connection = Connection::open(path).expect("a database");
    let triggers = "DROP TRIGGER events_never_change; DROP TRIGGER events_are_never_deleted;
                    DROP TRIGGER an_end_is_final; DROP TRIGGER inputs_never_change;";
    connection.execute_batch(&format!("{triggers} {sql}")).expect("damage");
}

#[test]
fn a_backup_is_one_moment_and_the_writer_goes_on_meanwhile() {
    let (folder, path) = folder();
    let mut store = open(&path);
    // Large enough to be copied in several steps.
    for number in 1..=6 {
        common::begin(&mut store, number, json!({ "text": "x".repeat(1_000_000) }), Vec::new());
    }
    let to = folder.path().join("copy.db");
    let (mut number, mut steps) = (100, Vec::new());
    let made = backup(&path, &to, &mut |done, all| {
        number += 1;
        whole_run(&mut store, number);
        steps.push((done, all));
    });
    let made = made.expect("a backup");
    let (last, before) = steps.split_last().expect("steps");
    assert!(!before.is_empty() && before.iter().all(|(done, all)| done < all), "{steps:?}");
    assert_eq!(*last, (made.bytes, made.bytes));
    assert_eq!((made.runs, made.unfinished, made.format), (6, 6, 6));
    assert_eq!((runs(&to), runs(&path)), (6, 6 + steps.len() as u64));
    assert_eq!((audit(&to).damages, audit(&to).runs), (0, 6));
    assert_eq!(to.metadata().expect("the copy").len(), made.bytes);
    let names = ["copy.db", "test.db", "test.db-anchor", "test.db-reserve", "test.db-shm", "test.db-wal"];
    assert_eq!(files(&folder), names, "it is one file");
}

#[test]
fn a_backup_overwrites_nothing_and_a_damaged_database_gives_none() {
    let (folder, path) = folder();
    let mut store = open(&path);
    whole_run(&mut store, 1);
    let to = folder.path().join("copy.db");
    std::fs::write(&to, "mine").expect("a file");
    let refused = back_up(&path, &to).expect_err("it is there");
    assert_eq!((refused.code(), &*std::fs::read(&to).expect("it")), ("storage_exists", &b"mine"[..]));
    drop(store);

    let mut bytes = std::fs::read(&path).expect("the file");
    // Every page but the first, which says what it is.
    bytes[4096..].iter_mut().step_by(97).for_each(|byte| *byte ^= 0x55);
    std::fs::write(&path, bytes).expect("damage");
    let before = files(&folder);
    let refused = back_up(&path, &folder.path().join("other.db")).expect_err("it is damaged");
    assert_eq!(refused.code(), "storage_corrupt", "{refused}");
    let left: Vec<String> = files(&folder).into_iter().filter(|name| !name.contains("test.db-")).collect();
    assert_eq!(left, before.into_iter().filter(|name| !name.contains("test.db-")).collect::<Vec<_>>());
}

#[test]
fn what_was_there_before_a_restore_is_kept_with_its_log() {
    let (folder, path) = folder();
    let mut store = open(&path);
    whole_run(&mut store, 1);
    let saved = folder.path().join("saved.db");
    assert_eq!(back_up(&path, &saved).expect("a backup"), 1);
    whole_run(&mut store, 2);

    // What a kill leaves: the second run is in the log alone.
    let (other, killed) = crate::folder();
    for suffix in ["", "-wal"] {
        std::fs::copy(format!("{}{suffix}", path.display()), format!("{}{suffix}", killed.display()))
            .expect("a copy");
    }
    let previous = other.path().join("previous.db");
    let ready = prepare(&saved, &killed).expect("a backup that is in order");
    assert_eq!(ready.found().runs, 1);
    assert!(ready.put(&previous).expect("it is put there"), "something was there");
    assert_eq!((runs(&previous), runs(&killed)), (2, 1));
    let mut restored = open(&killed);
    whole_run(&mut restored, 3);
    drop(restored);
    assert_eq!((runs(&killed), audit(&killed).damages), (2, 0));

    let fresh = other.path().join("fresh.db");
    assert!(!prepare(&saved, &fresh).expect("ready").put(&previous.with_extension("2")).expect("put"));
    assert_eq!(runs(&fresh), 1);
}

#[test]
fn a_restore_is_refused_and_changes_nothing() {
    let (folder, path) = folder();
    let mut store = open(&path);
    whole_run(&mut store, 1);
    let file = |name: &str| folder.path().join(name);
    back_up(&path, &file("good.db")).expect("a backup");
    let copied = |name: &str| {
        std::fs::copy(file("good.db"), file(name)).expect("a copy");
        file(name)
    };
    damage(&copied("changed.db"), "UPDATE workflow_log SET body = replace(body, 'ann', 'bob')");
    let newer = Connection::open(copied("newer.db")).expect("a database");
    newer.pragma_update(None, "user_version", 99).expect("a format");
    drop(newer);
    let foreign = Connection::open(file("foreign.db")).expect("a database");
    foreign.execute_batch("CREATE TABLE places (name TEXT)").expect("a table");
    drop(foreign);
    std::fs::write(file("text.db"), "no database at all, however long it is").expect("a file");
    let good = std::fs::read(file("good.db")).expect("the file");
    std::fs::write(file("half.db"), &good[..good.len() / 2]).expect("a file");

    let in_use = prepare(&file("good.db"), &path).expect_err("it is in use");
    drop(store);
    let before = std::fs::read(&path).expect("the file");
    let mut said = vec![format!("in use: {}", in_use.code())];
    for name in ["changed", "newer", "foreign", "text", "half", "missing"] {
        let refused = prepare(&file(&format!("{name}.db")), &path).expect_err("it is refused");
        said.push(format!("{name}: {}", refused.code()));
    }
    let taken = prepare(&file("good.db"), &path).expect("ready").put(&file("half.db"));
    said.push(format!("a name that is taken: {}", taken.expect_err("it is taken").code()));
    insta::assert_snapshot!(said.join("\n"));
    assert_eq!(std::fs::read(&path).expect("the file"), before);
    assert!(files(&folder).iter().all(|name| !name.starts_with('.')), "{:?}", files(&folder));
}

#[test]
fn an_audit_finds_every_kind_of_damage() {
    let kinds = [
        ("nothing", "SELECT 1"),
        ("a body", "UPDATE workflow_log SET body = replace(body, 'requested', 'attention') WHERE id = 3"),
        ("a time", "UPDATE workflow_log SET at = 3 WHERE id = 4"),
        ("a row in the middle", "DELETE FROM workflow_log WHERE id = 3"),
        ("the last row", "DELETE FROM workflow_log WHERE id = 9"),
        (
            "a purged body of a run that exists",
            "UPDATE workflow_log SET body = '', hashes = zeroblob(32) WHERE id = 3",
        ),
        ("the status", "UPDATE runs SET status = 'failed', output_json = NULL WHERE id = 1"),
        ("the inputs", "UPDATE runs SET input_json = '{\"n\":2}' WHERE id = 1"),
        ("the output", "UPDATE runs SET output_json = '\"bad\"' WHERE id = 1"),
        ("the run", "DELETE FROM runs WHERE id = 1"),
        ("its id", "UPDATE runs SET run_id = 'odd' WHERE id = 1"),
        ("a run with its events", "DELETE FROM runs WHERE id = 1; DELETE FROM workflow_log WHERE run_id = 1"),
    ];
    let mut said = String::new();
    for (kind, sql) in kinds {
        let (_folder, path) = folder();
        let mut store = open(&path);
        whole_run(&mut store, 1);
        whole_run(&mut store, 2);
        drop(store);
        damage(&path, sql);
        let found = audit(&path);
        assert!(found.complete && found.damages == found.damaged.len() as u64, "{found:?}");
        let Verified { runs, events, values, .. } = found;
        said.push_str(&format!("{kind}: {runs} runs, {events} events, {values} values\n"));
        found.damaged.iter().for_each(|damage| said.push_str(&format!("  {damage}\n")));
    }
    insta::assert_snapshot!(said);
}

#[test]
fn an_audit_of_one_run_looks_at_that_one_and_can_be_ended() {
    let (_folder, path) = folder();
    let mut store = open(&path);
    whole_run(&mut store, 1);
    let second = common::begin(&mut store, 2, json!({}), Vec::new());
    let mut steps = Vec::new();
    let mut note = |done, all| {
        steps.push((done, all));
        ControlFlow::Continue(())
    };
    let found = verify(&path, Some(second), &mut note).expect("an audit");
    assert_eq!((found.runs, found.events, found.complete, steps), (1, 1, true, vec![(1, 1)]));
    let ended = verify(&path, None, &mut |_, _| ControlFlow::Break(())).expect("an audit");
    assert_eq!((ended.runs, ended.events, ended.complete), (1, 4, false));
}

#[test]
fn a_run_that_nothing_would_move_on_is_found() {
    let (_folder, path) = folder();
    let mut store = open(&path);
    let stuck = common::begin(&mut store, 1, json!({}), Vec::new());
    whole_run(&mut store, 2);
    let found = inspect(&path, 0).expect("a look");
    assert_eq!((found.stuck, found.active, found.problems.len()), (vec![stuck], 0, 0));
    let counts: Vec<String> =
        found.runs.iter().map(|(status, count)| format!("{} {count}", status.name())).collect();
    assert_eq!(counts, ["completed 1", "running 1"]);
    store.connection().execute("INSERT INTO alarms VALUES (1, 1, 'sleep', 5, 0)", []).expect("an timer");
    assert_eq!(inspect(&path, 0).expect("a look").stuck, []);
}
