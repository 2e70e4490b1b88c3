//! The tables of a SQLite database, for the audit.

use rusqlite::{Connection, Params, Row};
use steprail_core::run::{Event, Millis};
use steprail_store::RunId;

use super::{Approval, LogRow, Rows, RunState, Tables};

/// The key of the run with the id `?1`.
const KEY: &str = "(SELECT id FROM runs WHERE run_id = ?1)";

impl Tables for Connection {
    fn log(&self) -> Vec<LogRow> {
        let sql = "SELECT l.id, coalesce(r.run_id, iif(l.run_id = 0, '00000000-0000-0000-0000-000000000000', NULL)), l.seq, l.at,
                   l.body, l.hashes, l.hash FROM workflow_log l
                   LEFT JOIN runs r ON r.id = l.run_id ORDER BY l.id";
        query(self, sql, [], |row| {
            let run: String = row.get(1)?;
            Ok(LogRow {
                id: row.get(0)?,
                run: run.parse().expect("a run id"),
                seq: row.get(2)?,
                at: row.get(3)?,
                body: row.get(4)?,
                hashes: row.get(5)?,
                hash: row.get(6)?,
            })
        })
    }

    fn runs(&self) -> Vec<RunState> {
        query(self, "SELECT run_id, status, active FROM runs ORDER BY id", [], |row| {
            let id: String = row.get(0)?;
            Ok(RunState { id: id.parse().expect("a run id"), status: row.get(1)?, active: row.get(2)? })
        })
    }

    fn events(&self, run: RunId) -> Vec<(u64, Millis, Event)> {
        let sql = format!("SELECT seq, at, body FROM workflow_events WHERE run_id = {KEY} ORDER BY seq");
        query(self, &sql, [run.to_string()], |row| {
            let body: String = row.get(2)?;
            Ok((row.get(0)?, row.get(1)?, serde_json::from_str(&body).expect("an event")))
        })
    }

    fn rows(&self, run: RunId) -> Rows {
        let run = run.to_string();
        let steps = format!("SELECT n, attempt, status FROM workflow_step_runs WHERE run_id = {KEY}");
        let timers = format!("SELECT n, kind FROM alarms WHERE run_id = {KEY}");
        let waits = format!("SELECT n, event FROM workflow_waits WHERE run_id = {KEY}");
        let gates = format!("SELECT n FROM approvals WHERE run_id = {KEY} AND status = 'open'");
        let claims = format!("SELECT n FROM idempotency_keys WHERE run_id = {KEY} AND status = 'claimed'");
        Rows {
            steps: query(self, &steps, [&run], |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?)))
                .into_iter()
                .collect(),
            timers: query(self, &timers, [&run], |row| Ok((row.get(0)?, row.get(1)?))),
            waits: query(self, &waits, [&run], |row| Ok((row.get(0)?, row.get(1)?))).into_iter().collect(),
            gates: query(self, &gates, [&run], |row| row.get(0)).into_iter().collect(),
            claims: query(self, &claims, [&run], |row| row.get(0)).into_iter().collect(),
        }
    }

    fn outputs(&self, run: RunId) -> Vec<(u32, u32, String)> {
        let sql = format!(
            "SELECT n, attempt, output_json FROM workflow_step_runs WHERE run_id = {KEY} AND output_json IS NOT NULL"
        );
        query(self, &sql, [run.to_string()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
    }

    fn approvals(&self, run: RunId) -> Vec<Approval> {
        let sql = "SELECT a.path, a.args_json, a.decided_by, (SELECT s.input_json FROM workflow_step_runs s
                   WHERE s.run_id = a.run_id AND s.n = a.n AND s.started_at >= a.decided_at AND s.tool IS NOT NULL
                   AND s.status IN ('running', 'done') ORDER BY s.attempt LIMIT 1)
                   FROM approvals a JOIN runs r ON r.id = a.run_id
                   WHERE r.run_id = ?1 AND a.status = 'approved'
                   AND a.id = (SELECT max(id) FROM approvals WHERE run_id = a.run_id AND n = a.n)";
        query(self, sql, [run.to_string()], |row| {
            Ok(Approval { path: row.get(0)?, args: row.get(1)?, by: row.get(2)?, sent: row.get(3)? })
        })
    }
}

fn query<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Vec<T> {
    let mut statement = connection.prepare_cached(sql).expect("a statement");
    let found = statement.query_map(params, read).expect("rows");
    found.collect::<Result<_, _>>().expect("a row")
}
