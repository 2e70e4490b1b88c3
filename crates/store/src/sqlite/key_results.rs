//! Results under idempotency keys, compared with the log.

use rusqlite::{Connection, Row, params};
use steprail_core::plan::Hash;
use steprail_core::run::Event;

use super::{bindings, rows};
use crate::{ClaimKey, RowKind, StoreError, log_row};

/// The row of the log, or all rows of the run for a result of an earlier format.
const SELECT: &str = "SELECT body, hashes FROM workflow_log WHERE id = ?1 AND run_id = ?2";
const SELECT_ALL: &str =
    "SELECT body, hashes FROM workflow_log WHERE run_id = ?2 AND ?1 IS NULL ORDER BY seq";

/// An error unless a call of the step that holds a key returned the result. `row` has the number of the run, the step
/// and the row of the log in its third to fifth columns.
pub(super) fn check(
    connection: &Connection,
    key: &ClaimKey,
    result: &str,
    row: &Row<'_>,
) -> Result<(), StoreError> {
    let (run, n, log_row): (i64, u32, Option<i64>) = (row.get(2)?, row.get(3)?, row.get(4)?);
    let id = serde_json::to_string(&(&key.scope, &key.tool, &key.key))?;
    let expected = Hash::of(result.as_bytes());
    let (mut is_found, mut is_purged) = (false, true);
    let sql = if log_row.is_some() { SELECT } else { SELECT_ALL };
    rows::each(connection, sql, params![log_row, run], |row| {
        let (body, hashes) = rows::log_body(row, 0)?;
        if !body.is_empty() {
            is_purged = false;
            is_found = log_row::events(body, hashes)?.iter().any(|event| {
                matches!(event, Event::StepCompleted { step, output, .. } if step.n == n && *output == expected)
            });
        }
        Ok(!is_found)
    })?;
    match (is_found, is_purged) {
        (true, _) => Ok(()),
        (false, true) => match bindings::find(connection, RowKind::Key, &id)? {
            Some(content) => bindings::check(connection, RowKind::Key, &id, content),
            None => Err(bindings::changed(RowKind::Key, &id)),
        },
        (false, false) => Err(bindings::changed(RowKind::Key, &id)),
    }
}
