//! Files of a database that another program changes, while it is open and while it is closed.

mod common;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use steprail_store::limits::{WAL_RESTART_BYTES, WAL_RESTART_STEP};
use steprail_store::sqlite::{Durability, Options, Restore, SqliteStore, backup};
use steprail_store::{
    Account, AccountKind, Commit, Cursor, Reads, Refused, RegistryChange, Store, StoreError, Upkeep,
    Visibility,
};
use tempfile::TempDir;

fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("test.db");
    (folder, path)
}

fn try_open(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(path, &Options::default())
}

fn open(path: &Path) -> SqliteStore {
    try_open(path).expect("a database")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

fn write_run(store: &mut SqliteStore, number: u128) {
    common::begin(store, number, json!({ "n": 1 }), Vec::new());
}

/// The error that ends further writes. A file that was overwritten in place is detected at the next check of the files.
fn refused(store: &mut SqliteStore) -> StoreError {
    let commits = std::iter::repeat_with(|| store.commit(&Commit::default()));
    match commits.take(100_000).find_map(Result::err).expect("the files were changed") {
        Refused::Unavailable(error) => error,
        refused => panic!("{refused:?}"),
    }
}

/// Copies the files of a database as a crash would leave them.
fn crash_copy(path: &Path) -> (TempDir, PathBuf) {
    let (folder, copy) = folder();
    for suffix in ["", "-wal", "-anchor"] {
        std::fs::copy(beside(path, suffix), beside(&copy, suffix)).expect("a copy");
    }
    (folder, copy)
}

fn truncate(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).expect("the file").set_len(bytes).expect("truncated");
}

#[test]
fn every_change_of_the_files_of_an_open_database_stops_the_next_commit() {
    type Fault = fn(&Path);
    let faults: [(&str, Fault); 10] = [
        ("the database is removed", |path| std::fs::remove_file(path).expect("removed")),
        ("the WAL is removed", |path| std::fs::remove_file(beside(path, "-wal")).expect("removed")),
        ("the WAL index is removed", |path| std::fs::remove_file(beside(path, "-shm")).expect("removed")),
        ("the anchor is removed", |path| std::fs::remove_file(beside(path, "-anchor")).expect("removed")),
        ("the directory is renamed", |path| {
            let folder = path.parent().expect("a folder");
            std::fs::rename(folder, folder.with_extension("moved")).expect("renamed");
        }),
        ("the database is replaced by a copy", |path| {
            std::fs::copy(path, beside(path, "-copy")).expect("a copy");
            std::fs::rename(beside(path, "-copy"), path).expect("replaced");
        }),
        ("the database is truncated", |path| truncate(path, 4096)),
        ("the WAL is truncated", |path| truncate(&beside(path, "-wal"), 0)),
        ("the database is overwritten by text", |path| {
            let bytes = std::fs::read(path).expect("a file").len();
            std::fs::write(path, vec![b'x'; bytes + 1]).expect("written");
        }),
        ("the database is overwritten by a backup", |path| {
            let copy = beside(path, "-backup");
            backup(path, &copy, &mut |_, _| {}).expect("a backup");
            let mut bytes = std::fs::read(copy).expect("the backup");
            bytes.resize(bytes.len().max(std::fs::read(path).expect("a file").len()), 0);
            std::fs::write(path, bytes).expect("written");
        }),
    ];
    for (name, fault) in faults {
        let (folder, path) = folder();
        let path = std::fs::create_dir(folder.path().join("data"))
            .map(|()| folder.path().join("data").join(path.file_name().expect("a name")))
            .expect("a folder");
        let mut store = open(&path);
        write_run(&mut store, 1);
        fault(&path);
        let error = refused(&mut store);
        assert_eq!((error.code(), error.is_final()), ("storage_replaced", true), "{name}: {error}");
    }
}

#[test]
fn another_writer_that_keeps_the_data_is_no_fault() {
    let (_folder, path) = folder();
    let mut store = open(&path);
    write_run(&mut store, 1);
    let other = Connection::open(&path).expect("another connection");
    other.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).expect("a checkpoint");
    other.execute("INSERT INTO steprail_meta VALUES ('other', '1')", []).expect("a row");
    drop(other);
    write_run(&mut store, 2);
}

#[test]
fn a_database_that_the_anchor_does_not_describe_is_refused_until_it_is_accepted() {
    type Fault = fn(&Path, &Path);
    // What is done to a closed database of two runs; the second path is a copy from when it had one.
    let faults: [(&str, Fault, &str); 7] = [
        (
            "the database is removed",
            |path, _| std::fs::remove_file(path).expect("removed"),
            "missing or empty",
        ),
        ("the database is emptied", |path, _| truncate(path, 0), "missing or empty"),
        ("an older copy", |path, old| std::fs::rename(old, path).expect("a copy"), "an older copy"),
        (
            "a backup of the same age",
            |path, _| {
                let copy = beside(path, "-backup");
                backup(path, &copy, &mut |_, _| {}).expect("a backup");
                std::fs::rename(copy, path).expect("replaced");
            },
            "is a backup",
        ),
        (
            "another database",
            |path, _| {
                let (_folder, other) = folder();
                write_run(&mut open(&other), 1);
                std::fs::copy(other, path).expect("a copy");
            },
            "another database",
        ),
        (
            "the anchor is removed",
            |path, _| std::fs::remove_file(beside(path, "-anchor")).expect("removed"),
            "anchor file is missing",
        ),
        (
            "the anchor is damaged",
            |path, _| std::fs::write(beside(path, "-anchor"), vec![b'x'; 1024]).expect("written"),
            "anchor file is damaged",
        ),
    ];
    for (name, fault, reason) in faults {
        let (_folder, path) = folder();
        let mut store = open(&path);
        write_run(&mut store, 1);
        drop(store);
        let old = beside(&path, "-old");
        std::fs::copy(&path, &old).expect("a copy");
        write_run(&mut open(&path), 2);
        fault(&path, &old);
        let error = try_open(&path).expect_err(name);
        assert_eq!(error.code(), "storage_mismatch", "{name}: {error}");
        assert!(error.to_string().contains(reason), "{name}: {error}");
        let Ok(restore) = Restore::in_place(&path) else { continue };
        restore.put(&beside(&path, "-previous")).expect("accepted");
        let opened = open(&path).into_storage().expect("a store").opened;
        assert!(opened.restored.is_some_and(|restored| restored.incarnation >= 2), "{name}: {opened:?}");
    }
}

#[test]
fn a_wal_that_is_removed_after_a_crash_is_noticed() {
    for durability in [Durability::Full, Durability::Process] {
        let (_folder, path) = folder();
        let mut store =
            SqliteStore::open(&path, &Options { durability, ..Options::default() }).expect("open");
        write_run(&mut store, 1);
        let (_whole, crashed) = crash_copy(&path);
        let (_cut, cut) = crash_copy(&path);
        std::fs::remove_file(beside(&cut, "-wal")).expect("removed");
        drop(open(&crashed));
        assert_eq!(try_open(&cut).expect_err("commits are missing").code(), "storage_mismatch");
    }
}

#[test]
fn a_reader_that_merges_the_wal_after_a_crash_is_no_fault() {
    let (_folder, path) = folder();
    let mut store = open(&path);
    write_run(&mut store, 1);
    let (_copy, crashed) = crash_copy(&path);
    // The last connection copies the WAL into the database and deletes it.
    drop(Connection::open(&crashed).expect("a connection").execute("DELETE FROM sessions", []));
    assert!(!beside(&crashed, "-wal").exists());
    drop(open(&crashed));
}

#[test]
fn a_deleted_lock_file_does_not_admit_a_second_writer() {
    let (_folder, path) = folder();
    let mut store = open(&path);
    write_run(&mut store, 1);
    assert_eq!(try_open(&path).expect_err("in use").code(), "storage_in_use");
    std::fs::remove_file(beside(&path, "-anchor")).expect("removed");
    assert_eq!(try_open(&path).expect_err("no anchor").code(), "storage_mismatch");
    assert_eq!(refused(&mut store).code(), "storage_replaced");
}

#[test]
fn the_database_file_alone_is_complete_after_a_close_and_when_idle() {
    let (_folder, path) = folder();
    let runs = |path: &Path| {
        let (_other, copy) = folder();
        std::fs::copy(path, &copy).expect("a copy");
        let connection = Connection::open(copy).expect("a database");
        connection
            .query_row("SELECT count(*) FROM workflow_runs", [], |row| row.get::<_, i64>(0))
            .expect("runs")
    };
    let mut store = open(&path);
    let readers = store.readers().expect("readers");
    write_run(&mut store, 1);
    assert_ne!(readers.last_event().expect("an event"), Cursor::START, "an idle reader stays connected");
    assert_eq!(runs(&path), 0, "the run is in the WAL alone");
    store.maintain(Upkeep::Idle).expect("a checkpoint");
    assert_eq!(runs(&path), 1);
    write_run(&mut store, 2);
    drop(store);
    assert_eq!(runs(&path), 2);
    assert_eq!(beside(&path, "-wal").metadata().map_or(0, |wal| wal.len()), 0);
}

#[test]
fn readers_that_overlap_do_not_let_the_wal_grow() {
    let (_folder, path) = folder();
    let options = Options { durability: Durability::Process, ..Options::default() };
    let mut store = SqliteStore::open(&path, &options).expect("a database");
    let is_done = AtomicBool::new(false);
    // Some milliseconds: at every commit, one of the readers is in the middle of a query.
    let query = "BEGIN; SELECT count(*) FROM workflow_runs;
                 WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) SELECT max(i) FROM n;
                 COMMIT";
    let largest = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let reader = Connection::open(&path).expect("a reader");
                while !is_done.load(Ordering::Relaxed) {
                    reader.execute_batch(query).expect("a query");
                }
            });
        }
        let sizes = (1..=250).map(|number| {
            let body = "x".repeat(1_000_000);
            let account = Account { kind: AccountKind::User, id: number.to_string(), body };
            let registry = vec![RegistryChange::PutAccount(account, None)];
            store.commit(&Commit { registry, ..Commit::default() }).expect("a commit");
            store.maintain(Upkeep::Report).expect("health").wal_bytes
        });
        let largest = sizes.max().expect("commits");
        is_done.store(true, Ordering::Relaxed);
        largest
    });
    assert!(largest < WAL_RESTART_BYTES + 6 * WAL_RESTART_STEP, "{largest}");
}

#[test]
fn a_query_ends_at_its_time_limit() {
    let (_folder, path) = folder();
    let mut store = open(&path);
    for number in 1..=300 {
        write_run(&mut store, number);
    }
    let readers = store.readers().expect("readers");
    assert_eq!(readers.feed(Cursor::START, 1_000, &Visibility::default()).expect("events").events.len(), 300);
    let readers = store.readers().expect("readers").with_read_time(Duration::ZERO);
    let error = readers.feed(Cursor::START, 1_000, &Visibility::default()).expect_err("too slow");
    assert_eq!(error.code(), "storage_timeout", "{error}");
}
