//! Schedules in SQLite.

use rusqlite::{Connection, Row, params};
use steprail_core::run::Millis;

use super::rows;
use crate::{Fired, Overlap, Schedule, StoreError};

const COLUMNS: &str = "name, definition, cron, zone, input_json, principal_json, overlap, due_at, last_at, last_run, last_error";

pub(super) fn put(connection: &Connection, schedule: &Schedule) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT OR REPLACE INTO schedules ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
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
    ])?;
    Ok(())
}

pub(super) fn remove(connection: &Connection, name: &str) -> Result<bool, StoreError> {
    Ok(connection.prepare_cached("DELETE FROM schedules WHERE name = ?1")?.execute([name])? > 0)
}

pub(super) fn due(connection: &Connection, now: Millis, limit: usize) -> Result<Vec<Schedule>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM schedules WHERE due_at <= ?1 ORDER BY due_at LIMIT ?2");
    rows::all(connection, &sql, params![now, limit], read)
}

pub(super) fn all(connection: &Connection) -> Result<Vec<Schedule>, StoreError> {
    rows::all(connection, &format!("SELECT {COLUMNS} FROM schedules ORDER BY name"), [], read)
}

fn read(row: &Row<'_>) -> Result<Schedule, StoreError> {
    let text = |at: usize| row.get_ref(at)?.as_str().map_err(rows::damaged);
    let overlap = Overlap::from_name(text(6)?)
        .ok_or_else(|| StoreError::Corrupt("a schedule with an unknown overlap".to_owned()))?;
    let last: Option<Millis> = row.get(8)?;
    let run: Option<String> = row.get(9)?;
    let run = run.map(|run| rows::run_id(&run)).transpose()?;
    let error: Option<String> = row.get(10)?;
    Ok(Schedule {
        name: row.get(0)?,
        definition: row.get(1)?,
        cron: row.get(2)?,
        zone: row.get(3)?,
        inputs: serde_json::from_str(text(4)?)?,
        principal: serde_json::from_str(text(5)?)?,
        overlap,
        due: row.get(7)?,
        last: last.map(|at| Fired { at, run, error }),
    })
}
