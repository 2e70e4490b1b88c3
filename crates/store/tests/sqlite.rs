//! What the database itself refuses, whatever the program around it does.

mod common;

use rusqlite::Connection;
use steprail_store::StoreError;
use steprail_store::sqlite::{Options, SqliteStore};
use tempfile::TempDir;

/// A database with one definition and one run that has begun.
fn with_a_run() -> SqliteStore {
    let mut store = SqliteStore::in_memory().expect("a database");
    common::begin(&mut store, 7, serde_json::json!({}), Vec::new());
    store
}

fn refused(connection: &Connection, sql: &str) -> String {
    connection.execute_batch(sql).expect_err("it must be refused").to_string()
}

#[test]
fn history_and_endings_cannot_be_rewritten() {
    let store = with_a_run();
    let connection = store.connection();
    let said = [
        "UPDATE workflow_log SET body = '{}'",
        "UPDATE workflow_log SET body = '', hashes = zeroblob(32)",
        "DELETE FROM workflow_log",
        "UPDATE workflow_definitions SET spec_json = '{}'",
        "UPDATE runs SET status = 'done'",
        "UPDATE runs SET status = 'completed'",
        "UPDATE runs SET input_json = '{}'",
        "INSERT INTO workflow_log (run_id, seq, count, at, body, hashes, hash)
         VALUES (1, 1, 1, 1, '{}', x'', zeroblob(32))",
    ]
    .map(|sql| format!("{sql}\n  {}", refused(connection, sql)));
    connection.execute_batch("UPDATE runs SET status = 'failed', completed_at = 2").expect("an end");
    let revived = refused(connection, "UPDATE runs SET status = 'running', completed_at = NULL");
    let changed = refused(connection, "UPDATE runs SET error_json = '{}'");
    insta::assert_snapshot!(format!("{}\nafter the end\n  {revived}\n  {changed}", said.join("\n")));
}

#[test]
fn workflows_and_steps_can_be_read_as_two_tables() {
    let store = with_a_run();
    let connection = store.connection();
    let columns = |view: &str| {
        let statement = connection.prepare(&format!("SELECT * FROM {view}")).expect("a view");
        statement.column_names().collect::<Vec<_>>().join(", ")
    };
    insta::assert_snapshot!(format!("{}\n{}", columns("workflows"), columns("workflow_steps")));
    let (name, status): (String, String) = connection
        .query_row("SELECT name, status FROM workflows", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("a row");
    assert_eq!((name.as_str(), status.as_str()), ("one", "running"));
}

#[test]
fn a_database_is_opened_again_but_not_twice_and_not_from_the_future() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("test.db");
    let options = Options { address: Some("127.0.0.1:7000".to_owned()), ..Options::default() };
    let first = SqliteStore::open(&path, &options).expect("a database");
    let second = SqliteStore::open(&path, &Options::default()).expect_err("it is in use");
    let pid = std::process::id();
    assert!(second.to_string().contains(&format!("process {pid} at 127.0.0.1:7000")), "{second}");
    drop(first);
    drop(SqliteStore::open(&path, &options).expect("it is free again"));
    Connection::open(&path).expect("a file").pragma_update(None, "user_version", 99).expect("a newer format");
    let newer = SqliteStore::open(&path, &options).expect_err("it is from the future");
    assert!(matches!(newer, StoreError::Newer { found: 99, known: 6 }), "{newer}");
}

#[test]
fn a_database_has_one_writer_whatever_it_is_called() {
    let folder = TempDir::new().expect("a folder");
    let (path, link) = (folder.path().join("real.db"), folder.path().join("link.db"));
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let first = SqliteStore::open(&link, &Options::default()).expect("a database");
    let second = SqliteStore::open(&path, &Options::default()).expect_err("it is in use");
    assert!(matches!(second, StoreError::InUse { .. }), "{second}");
    drop(first);
}

#[test]
fn a_database_of_another_program_is_left_as_it_is() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("places.db");
    let sql = "CREATE TABLE places (name TEXT); PRAGMA user_version = 1;";
    Connection::open(&path).expect("a file").execute_batch(sql).expect("a table");
    let before = std::fs::read(&path).expect("the file");
    let refused = SqliteStore::open(&path, &Options::default()).expect_err("it is not ours");
    assert_eq!(refused.code(), "storage_foreign", "{refused}");
    assert_eq!(std::fs::read(&path).expect("the file"), before);
}

#[test]
fn a_log_without_its_database_is_not_thrown_away() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("test.db");
    let mut store = SqliteStore::open(&path, &Options::default()).expect("a database");
    common::begin(&mut store, 7, serde_json::json!({}), Vec::new());
    let moved = folder.path().join("moved.db");
    std::fs::copy(folder.path().join("test.db-wal"), folder.path().join("moved.db-wal")).expect("a log");
    let refused = SqliteStore::open(&moved, &Options::default()).expect_err("its database is missing");
    assert!(refused.to_string().contains("exists without its database"), "{refused}");
    assert!(folder.path().join("moved.db-wal").metadata().expect("the log").len() > 0);
}
