//! Retention: deletes ended runs with their notifications, unused definitions and expired results under idempotency keys.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};
use steprail_core::run::Millis;

use super::commit::Transaction;
use super::{bindings, outbox, policy, rows};
use crate::{
    AdminAction, AdminEvent, Binding, BudgetCount, Purge, Purged, PurgedRun, RowContent, RowKind, RunId,
    StoreError,
};

/// Tables with rows of a run, beside the run itself and its log.
const TABLES: [&str; 5] = ["run_values", "step_runs", "alarms", "workflow_waits", "approvals"];

const SELECT_ENDED: &str = "SELECT r.id, r.run_id FROM runs r WHERE r.completed_at < ?1
    AND NOT EXISTS (SELECT 1 FROM runs p WHERE p.id = r.parent_id AND p.completed_at IS NULL)
    AND r.run_id NOT IN (SELECT json_extract(w.rerun_json, '$.of') FROM runs w
                         WHERE w.rerun_json IS NOT NULL AND w.completed_at IS NULL)
    ORDER BY r.completed_at LIMIT ?2";
/// The last version that was deleted is kept: the name belongs to its owner.
const SELECT_UNUSED: &str = "SELECT d.id FROM workflow_definitions d WHERE d.deleted_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.definition_id = d.id)
    AND (d.deleted_at <= d.created_at OR EXISTS (SELECT 1 FROM workflow_definitions n
         WHERE n.name = d.name AND n.version > d.version AND n.deleted_at > n.created_at)) LIMIT ?1";
/// The id of a key is as in its binding.
const SELECT_KEYS: &str = "SELECT json_array(scope, tool, key) FROM idempotency_keys WHERE run_id = ?1";
const SELECT_EXPIRED: &str = "SELECT json_array(scope, tool, key) FROM idempotency_keys
    WHERE expires_at <= ?1 AND status = 'done' LIMIT ?2";
const DELETE_KEY: &str = "DELETE FROM idempotency_keys WHERE scope = json_extract(?1, '$[0]')
    AND tool = json_extract(?1, '$[1]') AND key = json_extract(?1, '$[2]')";
const SELECT_LOG: &str =
    "SELECT id, seq, at, body, hashes FROM workflow_log WHERE run_id = ?1 AND body <> '' ORDER BY seq";
const CLEAR_LOG: &str = "UPDATE workflow_log SET body = '', hashes = ?2 WHERE id = ?1";

impl Transaction<'_> {
    /// Deletes what retention no longer keeps, and records which runs and definitions these were.
    pub(super) fn purge(&mut self, purge: Purge, now: Millis) -> Result<Purged, StoreError> {
        let PurgedRuns { runs, keys, budgets } = purge_runs(self.connection(), purge)?;
        let purged = runs.len();
        if !runs.is_empty() {
            let removed = runs.iter().map(|run| (RowKind::Run, run.key.to_string()));
            let mut event = AdminEvent::new(purge_action(Vec::new(), Vec::new()), None);
            for (kind, id) in removed.filter(|(kind, id)| self.has_binding(*kind, id)) {
                event.rows.push(Binding { kind, id, hash: None });
            }
            // The log no longer contains the results under these keys.
            for id in keys {
                let hash = bindings::find(self.connection(), RowKind::Key, &id)?;
                event.rows.push(Binding { kind: RowKind::Key, id, hash });
            }
            event.action = purge_action(runs, counters(self.connection(), &budgets)?);
            self.actions.push(event);
        }
        Ok(Purged { runs: purged, others: self.purge_others(purge, now)? })
    }

    fn has_binding(&self, kind: RowKind, id: &str) -> bool {
        matches!(bindings::bound(self.connection(), kind, id), Ok(Some(_)))
    }

    fn purge_others(&mut self, purge: Purge, now: Millis) -> Result<usize, StoreError> {
        let unused =
            rows::all(self.connection(), SELECT_UNUSED, [purge.limit], |row| Ok(row.get::<_, i64>(0)?))?;
        for id in &unused {
            self.connection()
                .prepare_cached("DELETE FROM workflow_definitions WHERE id = ?1")?
                .execute([id])?;
        }
        let count = unused.len() as u64;
        let ids = unused.iter().map(ToString::to_string);
        self.record(None, RowKind::Definition, ids, |_| AdminAction::DefinitionsPurged { count })?;
        let keys = rows::all(self.connection(), SELECT_EXPIRED, params![now, purge.limit], |row| {
            Ok(row.get::<_, String>(0)?)
        })?;
        let mut forgotten = Vec::new();
        for id in &keys {
            self.connection().prepare_cached(DELETE_KEY)?.execute([id])?;
            if self.has_binding(RowKind::Key, id) {
                forgotten.push(Binding { kind: RowKind::Key, id: id.clone(), hash: None });
            }
        }
        if !forgotten.is_empty() {
            let action = purge_action(Vec::new(), Vec::new());
            self.actions.push(AdminEvent { action, by: None, rows: forgotten });
        }
        let messages = outbox::purge(self.connection(), purge.before, purge.limit)?;
        Ok(unused.len() + keys.len() + messages)
    }
}

/// Runs that were deleted.
#[derive(Default)]
struct PurgedRuns {
    runs: Vec<PurgedRun>,
    /// Keys under which results of them are kept longer.
    keys: Vec<String>,
    /// The budgets of users and tools for which their calls counted: subjects and rules.
    budgets: BTreeSet<(String, String)>,
}

fn purge_action(runs: Vec<PurgedRun>, budgets: Vec<BudgetCount>) -> AdminAction {
    AdminAction::RunsPurged { runs, budgets }
}

/// The counters of budgets.
fn counters(
    connection: &Connection,
    budgets: &BTreeSet<(String, String)>,
) -> Result<Vec<BudgetCount>, StoreError> {
    let of = |(subject, rule): &(String, String)| policy::counters_of_rule(connection, subject, rule);
    Ok(budgets.iter().map(of).collect::<Result<Vec<_>, _>>()?.concat())
}

/// A run is kept while its parent, or a run that reuses its results, is unfinished.
fn purge_runs(connection: &Connection, purge: Purge) -> Result<PurgedRuns, StoreError> {
    let ended = rows::all(connection, SELECT_ENDED, params![purge.before, purge.limit], |row| {
        let run = rows::run_id(row.get_ref(1)?.as_str().map_err(rows::damaged)?)?;
        Ok(PurgedRun { key: row.get(0)?, run })
    })?;
    let mut purged = PurgedRuns::default();
    for PurgedRun { key, run } in &ended {
        connection.prepare_cached("DELETE FROM runs WHERE id = ?1")?.execute([key])?;
        for table in TABLES {
            let sql = format!("DELETE FROM {table} WHERE run_id = ?1");
            connection.prepare_cached(&sql)?.execute([key])?;
        }
        policy::forget_run(connection, *run)?;
        outbox::forget_run(connection, *key)?;
        clear_log(connection, *key, *run, &mut purged.budgets)?;
        let keys = rows::all(connection, SELECT_KEYS, [key], |row| Ok(row.get::<_, String>(0)?))?;
        purged.keys.extend(keys);
    }
    purged.runs = ended;
    Ok(purged)
}

/// Replaces the contents of log rows by their digests, so that the hash chain can still be verified. Adds the budgets for
/// which their calls counted.
fn clear_log(
    connection: &Connection,
    key: i64,
    run: RunId,
    budgets: &mut BTreeSet<(String, String)>,
) -> Result<(), StoreError> {
    let digests = rows::all(connection, SELECT_LOG, [key], |row| {
        let (body, hashes) = rows::log_body(row, 3)?;
        let of_row = policy::budgets_of_others(body, hashes)?.into_iter();
        budgets.extend(of_row.map(|(rule, budget)| (budget.subject.into(), rule)));
        let content = RowContent { run, seq: row.get(1)?, at: row.get(2)?, body, hashes };
        Ok((row.get::<_, i64>(0)?, content.digest()))
    })?;
    for (id, digest) in digests {
        connection.prepare_cached(CLEAR_LOG)?.execute(params![id, &digest.0[..]])?;
    }
    Ok(())
}
