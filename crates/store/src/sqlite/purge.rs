//! Retention: deletes ended runs, unused definitions and expired results under idempotency keys.

use rusqlite::{Connection, params};
use steprail_core::run::Millis;

use super::{policy, rows};
use crate::{Purge, Purged, RowContent, RunId, StoreError};

/// Tables with rows of a run, beside the run itself and its log.
const TABLES: [&str; 5] = ["run_values", "step_runs", "alarms", "workflow_waits", "approvals"];

const SELECT_ENDED: &str = "SELECT r.id, r.run_id FROM runs r WHERE r.completed_at < ?1
    AND NOT EXISTS (SELECT 1 FROM runs p WHERE p.id = r.parent_id AND p.completed_at IS NULL)
    AND r.run_id NOT IN (SELECT json_extract(w.rerun_json, '$.of') FROM runs w
                         WHERE w.rerun_json IS NOT NULL AND w.completed_at IS NULL)
    ORDER BY r.completed_at LIMIT ?2";
const SELECT_LOG: &str =
    "SELECT id, seq, at, body, hashes FROM workflow_log WHERE run_id = ?1 AND body <> '' ORDER BY seq";
const CLEAR_LOG: &str = "UPDATE workflow_log SET body = '', hashes = ?2 WHERE id = ?1";

pub(super) fn purge(connection: &Connection, purge: Purge, now: Millis) -> Result<Purged, StoreError> {
    let runs = purge_runs(connection, purge)?;
    let definitions = "DELETE FROM workflow_definitions WHERE id IN (
        SELECT d.id FROM workflow_definitions d WHERE d.deleted_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.definition_id = d.id) LIMIT ?1)";
    let keys = "DELETE FROM idempotency_keys WHERE (scope, tool, key) IN (
        SELECT scope, tool, key FROM idempotency_keys WHERE expires_at <= ?1 AND status = 'done' LIMIT ?2)";
    let others = connection.prepare_cached(definitions)?.execute([purge.limit])?
        + connection.prepare_cached(keys)?.execute(params![now, purge.limit])?;
    Ok(Purged { runs, others })
}

/// A run is kept while its parent, or a run that reuses its results, is unfinished.
fn purge_runs(connection: &Connection, purge: Purge) -> Result<usize, StoreError> {
    let ended = rows::all(connection, SELECT_ENDED, params![purge.before, purge.limit], |row| {
        Ok((row.get(0)?, rows::run_id(row.get_ref(1)?.as_str().map_err(rows::damaged)?)?))
    })?;
    for (key, run) in &ended {
        connection.prepare_cached("DELETE FROM runs WHERE id = ?1")?.execute([key])?;
        for table in TABLES {
            let sql = format!("DELETE FROM {table} WHERE run_id = ?1");
            connection.prepare_cached(&sql)?.execute([key])?;
        }
        policy::forget_run(connection, *run)?;
        clear_log(connection, *key, *run)?;
    }
    Ok(ended.len())
}

/// Replaces the contents of log rows by their digests, so that the hash chain can still be verified.
fn clear_log(connection: &Connection, key: i64, run: RunId) -> Result<(), StoreError> {
    let digests = rows::all(connection, SELECT_LOG, [key], |row| {
        let (body, hashes) = rows::log_body(row, 3)?;
        let content = RowContent { run, seq: row.get(1)?, at: row.get(2)?, body, hashes };
        Ok((row.get::<_, i64>(0)?, content.digest()))
    })?;
    for (id, digest) in digests {
        connection.prepare_cached(CLEAR_LOG)?.execute(params![id, &digest.0[..]])?;
    }
    Ok(())
}
