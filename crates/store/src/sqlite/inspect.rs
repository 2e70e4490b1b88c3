//! Diagnostics of a database for `steprail doctor`.

use std::path::Path;

use rusqlite::Connection;
use serde::Serialize;
use steprail_core::run::{Millis, RunStatus};

use super::{backup, beside, migrate, read_only, rows, size};
use crate::{RunId, StoreError};

/// Runs that are named; more are only counted.
const NAMED: usize = 10;

/// How a database is doing.
#[derive(Debug, Clone, Serialize)]
pub struct Inspected {
    /// Its format.
    pub format: i64,
    /// Its size.
    pub bytes: u64,
    /// The size of its write-ahead log.
    pub log_bytes: u64,
    /// What SQLite finds wrong with it.
    pub problems: Vec<String>,
    /// How many runs have which status.
    pub runs: Vec<(RunStatus, u64)>,
    /// How many runs an engine is at work with, or was when it ended.
    pub active: u64,
    /// Some of the runs that nothing would ever move on.
    pub stuck: Vec<RunId>,
    /// Some of the runs that an engine is at work with and that have not moved since a time.
    pub slow: Vec<RunId>,
}

/// Looks at a database, beside whoever writes to it. Runs that have not moved since `quiet_since` are slow.
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

/// A run goes on because an engine is at work with it, or because of an timer, a human, an event or another run.
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
    let sql = format!("SELECT run_id FROM runs r WHERE {which} ORDER BY id LIMIT {NAMED}");
    rows::all(connection, &sql, [], |row| rows::run_id(row.get_ref(0)?.as_str().map_err(rows::damaged)?))
}
