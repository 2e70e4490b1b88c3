//! The rows of the policy: counters of budgets, the freeze and remembered approvals.

use rusqlite::{Connection, OptionalExtension, params};
use steprail_core::run::{BudgetUse, Event, Millis, Started};

use super::commit::Transaction;
use super::{bindings, rows};
use crate::{Actor, AdminAction, Freeze, PolicyChange, PolicyState, Remembered, RowKind, StoreError};

/// Id of the row of the freeze. There is at most one.
const FREEZE: &str = "freeze";

const COUNT: &str = "INSERT INTO policy_counters (subject, rule, start, count) VALUES (?1, ?2, ?3, 1)
    ON CONFLICT (subject, rule, start) DO UPDATE SET count = count + 1";
const DELETE_EARLIER: &str = "DELETE FROM policy_counters WHERE subject = ?1 AND rule = ?2 AND start < ?3";
const SELECT_COUNT: &str =
    "SELECT count FROM policy_counters WHERE subject = ?1 AND rule = ?2 AND start = ?3";
const PUT: &str = "INSERT INTO policy_state (kind, id, body_json) VALUES (?1, ?2, ?3)
    ON CONFLICT (kind, id) DO UPDATE SET body_json = ?3";
const DELETE: &str = "DELETE FROM policy_state WHERE kind = ?1 AND id = ?2";
const DELETE_ENDED: &str = "DELETE FROM policy_state WHERE kind = 'remembered' AND json_extract(body_json, '$.until') <= ?1 RETURNING id";

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

impl Transaction<'_> {
    /// Changes the state of the policy and records the action.
    pub(super) fn change_policy(&mut self, change: &PolicyChange, now: Millis) -> Result<(), StoreError> {
        match change {
            PolicyChange::Freeze(freeze) => {
                put(self.connection(), RowKind::Freeze, FREEZE, &serde_json::to_string(freeze)?)?;
                let action = AdminAction::Frozen { reason: freeze.reason.clone() };
                self.record_policy(&Actor::user(&*freeze.by), RowKind::Freeze, FREEZE, action)
            }
            PolicyChange::Unfreeze { by } => {
                delete(self.connection(), RowKind::Freeze, FREEZE)?;
                self.record_policy(by, RowKind::Freeze, FREEZE, AdminAction::Unfrozen {})
            }
            PolicyChange::Remember(remembered) => self.remember(remembered, now),
            PolicyChange::Revoke { id, by } => {
                delete(self.connection(), RowKind::Remembered, id)?;
                let action = AdminAction::RememberedRevoked { id: id.clone() };
                self.record_policy(by, RowKind::Remembered, id, action)
            }
        }
    }

    /// Stores a remembered approval. Those that have ended are deleted.
    fn remember(&mut self, remembered: &Remembered, now: Millis) -> Result<(), StoreError> {
        let ended = rows::all(self.connection(), DELETE_ENDED, [now], |row| Ok(row.get::<_, String>(0)?))?;
        let action = AdminAction::RememberedExpired { count: ended.len() };
        self.record(None, RowKind::Remembered, ended, |_| action)?;
        put(self.connection(), RowKind::Remembered, &remembered.id, &serde_json::to_string(remembered)?)?;
        let Remembered { id, rule, user, tool, by, .. } = remembered.clone();
        let action = AdminAction::ApprovalRemembered { id, rule, user, tool };
        self.record_policy(&Actor::user(by), RowKind::Remembered, &remembered.id, action)
    }

    fn record_policy(
        &mut self,
        by: &Actor,
        kind: RowKind,
        id: &str,
        action: AdminAction,
    ) -> Result<(), StoreError> {
        self.record(Some(by), kind, [id.to_owned()], |_| action)
    }
}

fn put(connection: &Connection, kind: RowKind, id: &str, body: &str) -> Result<(), StoreError> {
    connection.prepare_cached(PUT)?.execute(params![kind.name(), id, body])?;
    Ok(())
}

fn delete(connection: &Connection, kind: RowKind, id: &str) -> Result<(), StoreError> {
    connection.prepare_cached(DELETE)?.execute(params![kind.name(), id])?;
    Ok(())
}

/// The freeze and the remembered approvals. A row that the log does not contain is an error, and so is a missing one.
pub(super) fn state(connection: &Connection) -> Result<PolicyState, StoreError> {
    // A row and its binding change together.
    let _snapshot = connection.unchecked_transaction()?;
    bindings::check_all(connection, RowKind::Freeze)?;
    bindings::check_all(connection, RowKind::Remembered)?;
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
