//! Migrations of the database format, applied when a database is opened.

use rusqlite::{Connection, TransactionBehavior};

use super::admin;
use crate::{StoreError, log_row};

/// The format whose approvals have a subject and the users who approved.
pub(super) const GOVERNED: i64 = 2;
/// The format whose log contains administrative actions.
pub(super) const AUDITED: i64 = 4;
/// The format whose definitions and schedules keep versions of sub-workflows, and that has proposals.
pub(super) const OWNED: i64 = 5;

/// Every migration from an empty file to the current format. A released migration never changes.
const STEPS: &[&str] = &[
    include_str!("001_start.sql"),
    include_str!("002_governance.sql"),
    include_str!("003_policy.sql"),
    include_str!("004_audit.sql"),
    include_str!("005_ownership.sql"),
    include_str!("006_outbox.sql"),
];

/// Follows the encoding of the log, so every migration creates it anew.
const EVENTS_VIEW: &str = include_str!("events_view.sql");

/// The `application_id` of a database of steprail: "STPR".
const APPLICATION: i32 = 0x5354_5052;

/// Refuses a database of another program. The file is not modified.
pub(super) fn refuse_others(connection: &Connection) -> Result<(), StoreError> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i32>(0));
    let is_ours = number("PRAGMA application_id")? == APPLICATION;
    if !is_ours && number("SELECT count(*) FROM sqlite_schema")? > 0 {
        return Err(StoreError::Foreign(connection.path().unwrap_or_default().to_owned()));
    }
    Ok(())
}

/// The newest format that this version supports.
pub(super) fn known() -> i64 {
    i64::try_from(STEPS.len()).unwrap_or(i64::MAX)
}

/// The format of a database, if this version supports it.
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
        transaction.execute_batch(step)?;
    }
    if found < AUDITED {
        admin::take_baseline(&transaction)?;
    }
    if found < known {
        let events = log_row::sql_text("l.body", "l.hashes");
        transaction.execute_batch(&EVENTS_VIEW.replace("{EVENTS}", &events))?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", known)?;
    }
    transaction.commit()?;
    Ok(())
}
