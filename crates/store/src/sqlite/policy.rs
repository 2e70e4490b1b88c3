//! The rows of the policy: counters of budgets, the freeze and remembered approvals.

use rusqlite::{Connection, OptionalExtension, params};
use steprail_core::run::{BudgetUse, Event, Millis, Started};

use super::rows;
use crate::{Freeze, PolicyChange, PolicyState, Remembered, StoreError};

/// Id of the row of the freeze. There is at most one.
const FREEZE: &str = "freeze";
const REMEMBERED: &str = "remembered";

const COUNT: &str = "INSERT INTO policy_counters (subject, rule, start, count) VALUES (?1, ?2, ?3, 1)
    ON CONFLICT (subject, rule, start) DO UPDATE SET count = count + 1";
const DELETE_EARLIER: &str = "DELETE FROM policy_counters WHERE subject = ?1 AND rule = ?2 AND start < ?3";
const SELECT_COUNT: &str =
    "SELECT count FROM policy_counters WHERE subject = ?1 AND rule = ?2 AND start = ?3";
const PUT: &str = "INSERT INTO policy_state (kind, id, body_json) VALUES (?1, ?2, ?3)
    ON CONFLICT (kind, id) DO UPDATE SET body_json = ?3";
const DELETE: &str = "DELETE FROM policy_state WHERE kind = ?1 AND id = ?2";
const DELETE_ENDED: &str =
    "DELETE FROM policy_state WHERE kind = 'remembered' AND json_extract(body_json, '$.until') <= ?1";

/// Counts the call of an event for the budget that it uses. Windows that have ended are deleted.
pub(super) fn count(connection: &Connection, event: &Event) -> Result<(), StoreError> {
    let Event::StepStarted { what: Started::Call { policy: Some(policy), .. }, .. } = event else {
        return Ok(());
    };
    let Some(BudgetUse { subject, start }) = &policy.budget else { return Ok(()) };
    let rule = &*policy.rule.rule;
    connection.prepare_cached(DELETE_EARLIER)?.execute(params![subject, rule, start])?;
    connection.prepare_cached(COUNT)?.execute(params![subject, rule, start])?;
    Ok(())
}

pub(super) fn counter(
    connection: &Connection,
    subject: &str,
    rule: &str,
    start: Millis,
) -> Result<u64, StoreError> {
    let mut statement = connection.prepare_cached(SELECT_COUNT)?;
    let count = statement.query_row(params![subject, rule, start], |row| row.get(0)).optional()?;
    Ok(count.unwrap_or(0))
}

/// Deletes the counters of a run.
pub(super) fn forget_run(connection: &Connection, run: crate::RunId) -> Result<(), StoreError> {
    let sql = "DELETE FROM policy_counters WHERE subject = ?1";
    connection.prepare_cached(sql)?.execute([format!("run:{run}")])?;
    Ok(())
}

pub(super) fn change(connection: &Connection, change: &PolicyChange, now: Millis) -> Result<(), StoreError> {
    match change {
        PolicyChange::Freeze(freeze) => put(connection, FREEZE, FREEZE, &serde_json::to_string(freeze)?),
        PolicyChange::Unfreeze => delete(connection, FREEZE, FREEZE),
        PolicyChange::Remember(remembered) => {
            connection.prepare_cached(DELETE_ENDED)?.execute([now])?;
            put(connection, REMEMBERED, &remembered.id, &serde_json::to_string(remembered)?)
        }
        PolicyChange::Revoke { id } => delete(connection, REMEMBERED, id),
    }
}

fn put(connection: &Connection, kind: &str, id: &str, body: &str) -> Result<(), StoreError> {
    connection.prepare_cached(PUT)?.execute(params![kind, id, body])?;
    Ok(())
}

fn delete(connection: &Connection, kind: &str, id: &str) -> Result<(), StoreError> {
    connection.prepare_cached(DELETE)?.execute(params![kind, id])?;
    Ok(())
}

pub(super) fn state(connection: &Connection) -> Result<PolicyState, StoreError> {
    let sql = "SELECT kind, body_json FROM policy_state ORDER BY kind, id";
    let found =
        rows::all(connection, sql, [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    let mut state = PolicyState::default();
    for (kind, body) in found {
        if kind == FREEZE {
            state.freeze = Some(serde_json::from_str::<Freeze>(&body)?);
        } else {
            state.remembered.push(serde_json::from_str::<Remembered>(&body)?);
        }
    }
    Ok(state)
}
