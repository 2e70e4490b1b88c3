//! Diagnostics of a database for `steprail doctor`.

use std::path::Path;

use rusqlite::Connection;
use serde::Serialize;
use steprail_core::run::{Millis, RunStatus};

use super::{backup, beside, migrate, read_only, rows, size};
use crate::{RunId, StoreError};

/// The maximum number of runs in a list.
const LISTED_RUNS: usize = 10;

/// The state of a database.
#[derive(Debug, Clone, Serialize)]
pub struct Inspected {
    /// Its format.
    pub format: i64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The size of its write-ahead log in bytes.
    pub log_bytes: u64,
    /// Problems that SQLite reports.
    pub problems: Vec<String>,
    /// The number of runs by status.
    pub runs: Vec<(RunStatus, u64)>,
    /// The number of runs on which an engine works, or worked when it stopped.
    pub active: u64,
    /// The first runs that wait for nothing and can therefore never continue.
    pub stuck: Vec<RunId>,
    /// The first active runs without an event since a given time.
    pub slow: Vec<RunId>,
}

/// Inspects a database, also while an engine writes to it. Active runs without an event since `quiet_since` are slow.
pub fn inspect(database: &Path, quiet_since: Millis) -> Result<Inspected, StoreError> {
    let connection = read_only(database)?;
    let format = migrate::format(&connection)?;
    let problems = backup::check(&connection, "quick_check")?;
    let _moment = connection.unchecked_transaction()?;
    let runs = rows::all(&connection, "SELECT status, count(*) FROM runs GROUP BY status", [], |row| {
        Ok((rows::status(row.get_ref(0)?.as_str().map_err(rows::damaged)?)?, row.get(1)?))
    })?;
    Ok(Inspected {
        format,
        bytes: size(database),
        log_bytes: size(&beside(database, "-wal")),
        problems,
        runs,
        active: connection.query_row("SELECT count(*) FROM runs WHERE active = 1", [], |row| row.get(0))?,
        stuck: stuck(&connection)?,
        slow: some_runs(
            &connection,
            &format!(
                "active = 1 AND (SELECT l.at FROM workflow_log l WHERE l.run_id = r.id ORDER BY l.seq DESC LIMIT 1) < {quiet_since}"
            ),
        )?,
    })
}

/// Finds unfinished runs that nothing continues: no engine, timer, human, signal or child run.
fn stuck(connection: &Connection) -> Result<Vec<RunId>, StoreError> {
    some_runs(
        connection,
        "status IN ('pending', 'running') AND active = 0
         AND NOT EXISTS (SELECT 1 FROM alarms a WHERE a.run_id = r.id)
         AND NOT EXISTS (SELECT 1 FROM workflow_waits w WHERE w.run_id = r.id)
         AND NOT EXISTS (SELECT 1 FROM approvals a WHERE a.run_id = r.id AND a.status = 'open')
         AND NOT EXISTS (SELECT 1 FROM runs c WHERE c.parent_id = r.id AND c.completed_at IS NULL)
         AND NOT EXISTS (SELECT 1 FROM step_runs s WHERE s.run_id = r.id
                         AND s.status IN ('ready', 'uncertain'))",
    )
}

fn some_runs(connection: &Connection, which: &str) -> Result<Vec<RunId>, StoreError> {
    let sql = format!("SELECT run_id FROM runs r WHERE {which} ORDER BY id LIMIT {LISTED_RUNS}");
    rows::all(connection, &sql, [], |row| rows::run_id(row.get_ref(0)?.as_str().map_err(rows::damaged)?))
}
