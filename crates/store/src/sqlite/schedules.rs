//! Schedules in SQLite.

use rusqlite::{Connection, Row, params};
use steprail_core::plan::Hash;
use steprail_core::run::Millis;

use super::{bindings, rows};
use crate::{Fired, Overlap, Schedule, StoreError};

/// The number of columns of [`bindings::SCHEDULE`].
const BOUND_COLUMNS: usize = 9;
const COLUMNS: &str = "name, definition, cron, zone, input_json, principal_json, overlap, due_at, last_at, last_run, last_error, version_json";

pub(super) fn put(connection: &Connection, schedule: &Schedule) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT OR REPLACE INTO schedules ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
    );
    let last = schedule.last.as_ref();
    connection.prepare_cached(&sql)?.execute(params![
        schedule.name,
        schedule.definition,
        schedule.cron,
        schedule.zone,
        schedule.inputs.to_string(),
        serde_json::to_string(&schedule.principal)?,
        schedule.overlap.name(),
        schedule.due,
        last.map(|last| last.at),
        last.and_then(|last| last.run).map(|run| run.to_string()),
        last.and_then(|last| last.error.as_deref()),
        schedule.version.as_ref().map(serde_json::to_string).transpose()?,
    ])?;
    Ok(())
}

pub(super) fn remove(connection: &Connection, name: &str) -> Result<bool, StoreError> {
    Ok(connection.prepare_cached("DELETE FROM schedules WHERE name = ?1")?.execute([name])? > 0)
}

/// Stops a schedule without changing what it starts.
pub(super) fn refuse(connection: &Connection, name: &str, message: &str) -> Result<(), StoreError> {
    let sql = "UPDATE schedules SET due_at = NULL, last_error = ?2, last_at = coalesce(due_at, last_at) WHERE name = ?1";
    connection.prepare_cached(sql)?.execute([name, message])?;
    Ok(())
}

/// A schedule that is due: its name, content hash and due time, and its contents as far as they can be read.
pub(super) struct DueSchedule {
    pub name: String,
    pub content: Hash,
    pub due: Millis,
    pub schedule: Result<Schedule, StoreError>,
}

pub(super) fn due(
    connection: &Connection,
    now: Millis,
    limit: usize,
) -> Result<Vec<DueSchedule>, StoreError> {
    let sql = format!(
        "SELECT {}, {COLUMNS} FROM schedules WHERE due_at <= ?1 ORDER BY due_at LIMIT ?2",
        bindings::SCHEDULE
    );
    rows::all(connection, &sql, params![now, limit], |row| {
        let (name, content) = bindings::content(row, BOUND_COLUMNS)?;
        let due = row.get(BOUND_COLUMNS + 7)?;
        Ok(DueSchedule { name, content, due, schedule: read(row, BOUND_COLUMNS) })
    })
}

pub(super) fn all(connection: &Connection) -> Result<Vec<Schedule>, StoreError> {
    rows::all(connection, &format!("SELECT {COLUMNS} FROM schedules ORDER BY name"), [], |row| read(row, 0))
}

/// A schedule from the columns after the first ones.
fn read(row: &Row<'_>, first: usize) -> Result<Schedule, StoreError> {
    let text = |at: usize| row.get_ref(first + at)?.as_str().map_err(rows::damaged);
    let overlap = Overlap::from_name(text(6)?)
        .ok_or_else(|| StoreError::Corrupt("a schedule with an unknown overlap".to_owned()))?;
    let last: Option<Millis> = row.get(first + 8)?;
    let run: Option<String> = row.get(first + 9)?;
    let run = run.map(|run| rows::run_id(&run)).transpose()?;
    let error: Option<String> = row.get(first + 10)?;
    let version = row.get_ref(first + 11)?.as_str_or_null().map_err(rows::damaged)?;
    Ok(Schedule {
        name: row.get(first)?,
        definition: row.get(first + 1)?,
        version: version.map(serde_json::from_str).transpose()?,
        cron: row.get(first + 2)?,
        zone: row.get(first + 3)?,
        inputs: serde_json::from_str(text(4)?)?,
        principal: serde_json::from_str(text(5)?)?,
        overlap,
        due: row.get(first + 7)?,
        last: last.map(|at| Fired { at, run, error }),
    })
}
