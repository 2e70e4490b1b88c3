//! The rows of the policy: counters of budgets, the freeze and remembered approvals.

use rusqlite::{Connection, OptionalExtension, Params, params};
use steprail_core::run::{BudgetUse, Event, Millis, Started};

use super::commit::Transaction;
use super::{bindings, rows};
use crate::{
    Actor, AdminAction, BudgetCount, Freeze, PolicyChange, PolicyState, Remembered, RowKind, RunId,
    StoreError, log_row,
};

/// Id of the row of the freeze. There is at most one.
const FREEZE: &str = "freeze";
/// The start of the subject of a run's budget.
const RUN: &str = "run:";
/// A log row without this text counts for no budget and need not be decoded.
const BUDGET: &str = "budget";

const COUNT: &str = "INSERT INTO policy_counters (subject, rule, start, count) VALUES (?1, ?2, ?3, 1)
    ON CONFLICT (subject, rule, start) DO UPDATE SET count = count + 1";
const DELETE_EARLIER: &str = "DELETE FROM policy_counters WHERE subject = ?1 AND rule = ?2 AND start < ?3";
const SELECT_COUNT: &str =
    "SELECT count FROM policy_counters WHERE subject = ?1 AND rule = ?2 AND start = ?3";
const PUT: &str = "INSERT INTO policy_state (kind, id, body_json) VALUES (?1, ?2, ?3)
    ON CONFLICT (kind, id) DO UPDATE SET body_json = ?3";
const DELETE: &str = "DELETE FROM policy_state WHERE kind = ?1 AND id = ?2";
const DELETE_ENDED: &str = "DELETE FROM policy_state WHERE kind = 'remembered' AND json_extract(body_json, '$.until') <= ?1 RETURNING id";

/// The rule and the budget that the call of an event counts for.
pub(super) fn budget_use(event: &Event) -> Option<(&str, &BudgetUse)> {
    let Event::StepStarted { what: Started::Call { policy: Some(policy), .. }, .. } = event else {
        return None;
    };
    Some((&policy.rule.rule, policy.budget.as_ref()?))
}

/// The budgets of users and tools for which the calls of a log row count, with their rules.
pub(super) fn budgets_of_others(body: &str, hashes: &[u8]) -> Result<Vec<(String, BudgetUse)>, StoreError> {
    if !body.contains(BUDGET) {
        return Ok(Vec::new());
    }
    let events = log_row::events(body, hashes)?;
    let budgets = events.iter().filter_map(budget_use).filter(|(_, budget)| !is_run(&budget.subject));
    Ok(budgets.map(|(rule, budget)| (rule.to_owned(), budget.clone())).collect())
}

/// Whether the subject of a budget is a run. Its counters are deleted with it.
pub(super) fn is_run(subject: &str) -> bool {
    subject.starts_with(RUN)
}

/// Counts the call of an event for the budget that it uses. Windows that have ended are deleted.
pub(super) fn count(connection: &Connection, event: &Event) -> Result<(), StoreError> {
    let Some((rule, BudgetUse { subject, start })) = budget_use(event) else { return Ok(()) };
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
pub(super) fn forget_run(connection: &Connection, run: RunId) -> Result<(), StoreError> {
    let sql = "DELETE FROM policy_counters WHERE subject = ?1";
    connection.prepare_cached(sql)?.execute([format!("{RUN}{run}")])?;
    Ok(())
}

/// The counters of a run.
pub(super) fn counters_of_run(connection: &Connection, run: RunId) -> Result<Vec<BudgetCount>, StoreError> {
    counters(connection, "subject = ?1", [format!("{RUN}{run}")])
}

/// The counters of users and tools.
pub(super) fn counters_of_others(connection: &Connection) -> Result<Vec<BudgetCount>, StoreError> {
    counters(connection, "subject NOT GLOB ?1", [format!("{RUN}*")])
}

/// The counters of a user or a tool for a rule.
pub(super) fn counters_of_rule(
    connection: &Connection,
    subject: &str,
    rule: &str,
) -> Result<Vec<BudgetCount>, StoreError> {
    counters(connection, "subject = ?1 AND rule = ?2", [subject, rule])
}

fn counters(connection: &Connection, of: &str, params: impl Params) -> Result<Vec<BudgetCount>, StoreError> {
    let sql = format!("SELECT subject, rule, start, count FROM policy_counters WHERE {of}");
    rows::all(connection, &sql, params, |row| {
        Ok(BudgetCount { subject: row.get(0)?, rule: row.get(1)?, start: row.get(2)?, count: row.get(3)? })
    })
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
