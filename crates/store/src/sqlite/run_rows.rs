//! The row of a run compared with its first event: what it executes, as whom and for whom.

use rusqlite::{Connection, Row};
use steprail_core::run::Event;

use super::{bindings, rows};
use crate::{RowKind, StoreError, run_facts};

const SELECT: &str = "SELECT d.name, d.version, d.hash, r.created_by, p.run_id, r.parent_n, r.parent_attempt, r.depth,
    r.principal_json, r.rerun_json, r.request_key, r.interruptible, r.name, r.parent_id,
    json_extract(r.rerun_json, '$.of'), json_extract(r.principal_json, '$.id')
    FROM runs r LEFT JOIN workflow_definitions d ON d.id = r.definition_id LEFT JOIN runs p ON p.id = r.parent_id
    WHERE r.id = ?1";

/// An error unless the row of a run is what its first event, and the baseline of an earlier format, say.
pub(super) fn check(connection: &Connection, key: i64, first: &Event) -> Result<(), StoreError> {
    compare(connection, key, first)?;
    // The first event of an earlier format does not cover the whole row.
    if matches!(first, Event::RunStarted { facts: None, .. })
        && let Some(content) = bindings::find(connection, RowKind::Run, &key.to_string())?
    {
        bindings::check(connection, RowKind::Run, &key.to_string(), content)?;
    }
    Ok(())
}

/// An error unless the row of a run is what its first event says.
pub(super) fn compare(connection: &Connection, key: i64, first: &Event) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(SELECT)?;
    let mut found = statement.query([key])?;
    let Some(row) = found.next()? else {
        return Err(StoreError::Corrupt("the row of the run is missing".to_owned()));
    };
    match difference(row, first)? {
        Some(what) => {
            Err(StoreError::Corrupt(format!("the row of the run is not what its log says: {what}")))
        }
        None => Ok(()),
    }
}

/// The first column that differs.
fn difference(row: &Row<'_>, first: &Event) -> Result<Option<&'static str>, StoreError> {
    let Event::RunStarted { definition, version, hash, by, parent, rerun_of, facts, .. } = first else {
        return Ok(Some("the first event"));
    };
    let text = |at: usize| row.get_ref(at)?.as_str_or_null().map_err(rows::damaged);
    let number = |at: usize| Ok::<_, StoreError>(row.get::<_, Option<u32>>(at)?);
    if text(0)? != Some(definition) || text(12)? != Some(definition) || number(1)? != Some(*version) {
        return Ok(Some("the definition"));
    }
    if text(2)? != Some(&hash.to_string()) {
        return Ok(Some("the hash of the definition"));
    }
    if text(3)? != Some(by) || text(15)? != Some(by) {
        return Ok(Some("the user"));
    }
    let steps = (number(5)?, number(6)?, number(7)?);
    let is_parent = match parent {
        None => row.get::<_, Option<i64>>(13)?.is_none() && steps == (None, None, Some(0)),
        // The parent may have been purged.
        Some(parent) => {
            text(4)?.is_none_or(|run| *run == *parent.run)
                && row.get::<_, Option<i64>>(13)?.is_some()
                && steps == (Some(parent.n), Some(parent.attempt), Some(parent.depth))
        }
    };
    if !is_parent {
        return Ok(Some("the parent"));
    }
    if text(14)?.is_some_and(|of| rerun_of.as_deref() != Some(of)) {
        return Ok(Some("the run that it repeats"));
    }
    let Some(principal) = text(8)? else { return Ok(Some("the principal")) };
    let found = run_facts(principal, text(9)?, text(10)?, row.get(11)?);
    Ok(facts
        .is_some_and(|facts| facts != found)
        .then_some("the principal, the reuse of results or the request key"))
}
