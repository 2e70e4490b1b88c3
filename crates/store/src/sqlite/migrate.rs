//! The format of a database, brought up to date whenever it is opened.

use rusqlite::{Connection, TransactionBehavior};

use crate::StoreError;

/// Every step from an empty file to the format of today. A step that was released never changes.
const STEPS: &[&str] = &[include_str!("001_start.sql")];

pub(super) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    let done = usize::try_from(found).map_err(|_| StoreError::Corrupt(format!("format {found}")))?;
    for step in &STEPS[done..] {
        transaction.execute_batch(step)?;
    }
    if found < known {
        transaction.pragma_update(None, "user_version", known)?;
    }
    transaction.commit()?;
    Ok(())
}
