//! Migrations of the database format, applied when a database is opened.

use rusqlite::{Connection, TransactionBehavior};

use super::admin;
use crate::{StoreError, log_row};

/// The format whose log contains administrative actions.
pub(super) const AUDITED: i64 = 2;

/// Every step from an empty file to the format of today. A step that was released never changes.
const STEPS: &[&str] = &[include_str!("001_start.sql"), include_str!("002_audit.sql")];

/// What marks a database as one of ours: "STPR".
const APPLICATION: i32 = 0x5354_5052;

/// Refuses a database that another program made, before anything in it is changed.
pub(super) fn refuse_others(connection: &Connection) -> Result<(), StoreError> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i32>(0));
    let is_ours = number("PRAGMA application_id")? == APPLICATION;
    if !is_ours && number("SELECT count(*) FROM sqlite_schema")? > 0 {
        return Err(StoreError::Foreign(connection.path().unwrap_or_default().to_owned()));
    }
    Ok(())
}

/// The newest format that is known here.
pub(super) fn known() -> i64 {
    i64::try_from(STEPS.len()).unwrap_or(i64::MAX)
}

/// The format of a database that is one of ours and that is known here.
pub(super) fn format(connection: &Connection) -> Result<i64, StoreError> {
    refuse_others(connection)?;
    match connection.query_row("PRAGMA user_version", [], |row| row.get(0))? {
        found if found > known() => Err(StoreError::Newer { found, known: known() }),
        found if found < 1 => Err(StoreError::Foreign(connection.path().unwrap_or_default().to_owned())),
        found => Ok(found),
    }
}

pub(super) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = known();
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    let done = usize::try_from(found).map_err(|_| StoreError::Corrupt(format!("format {found}")))?;
    for step in &STEPS[done..] {
        transaction.execute_batch(&step.replace("{EVENTS}", &log_row::sql_text("l.body", "l.hashes")))?;
    }
    if found < AUDITED {
        admin::take_baseline(&transaction)?;
    }
    if found < known {
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", known)?;
    }
    transaction.commit()?;
    Ok(())
}
