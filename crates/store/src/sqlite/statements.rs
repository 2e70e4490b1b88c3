//! Statements that a transaction executes for every step or run. They are held for the whole transaction: to take one from
//! the cache of the connection and to return it costs as much as to write a small row.

use rusqlite::{CachedStatement, Connection, Params};

/// Violates `NOT NULL` if the log of the run does not end at the event before. One row of `VALUES` needs no statement journal,
/// which `INSERT … SELECT … WHERE` would.
const INSERT_LOG: &str = "INSERT INTO workflow_log (run_id, seq, count, at, body, hashes, hash) VALUES (?1,
    (SELECT ?2 WHERE ?2 =
        coalesce((SELECT seq + count FROM workflow_log WHERE run_id = ?1 ORDER BY seq DESC LIMIT 1), 1)),
    ?3, ?4, ?5, ?6, ?7)";
const INSERT_RUN: &str = "INSERT INTO runs (run_id, definition_id, name, status, active, created_by, principal_json,
    parent_id, parent_n, parent_attempt, depth, rerun_json, interruptible, request_key, input_json, input_value,
    created_at, stored_bytes)
    VALUES (?1, ?2, (SELECT d.name FROM workflow_definitions d WHERE d.id = ?2), ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
    ?12, ?13, ?14, ?15, ?16, ?17)";
const UPDATE_RUN: &str = "UPDATE runs SET status = ?2, active = ?3, completed_at = ?4, output_json = ?5,
    output_value = ?6, error_json = ?7, stored_bytes = ?8 WHERE id = ?1";
const START_CALL: &str =
    "INSERT INTO step_runs (run_id, n, attempt, path, step_id, kind, tool, status, input_json, started_at)
    VALUES (?1, ?2, ?3, ?4, ?5, 'tool', ?6, 'running', ?7, ?8)";
const COMPLETE_STEP: &str =
    "UPDATE step_runs SET status = 'done', output_json = ?4, output_value = NULL, error_json = NULL,
    completed_at = ?5 WHERE run_id = ?1 AND n = ?2 AND attempt = ?3 AND completed_at IS NULL";

/// A statement that is executed often.
#[derive(Debug, Clone, Copy)]
pub(super) enum Frequent {
    InsertLog,
    InsertRun,
    UpdateRun,
    /// A step without a row calls a tool, with arguments that are stored in its row.
    StartCall,
    /// A step completes, with an output that is stored in its row.
    CompleteStep,
}

impl Frequent {
    const COUNT: usize = 5;

    fn sql(self) -> &'static str {
        match self {
            Self::InsertLog => INSERT_LOG,
            Self::InsertRun => INSERT_RUN,
            Self::UpdateRun => UPDATE_RUN,
            Self::StartCall => START_CALL,
            Self::CompleteStep => COMPLETE_STEP,
        }
    }
}

/// The statements of one transaction.
pub(super) struct Statements<'c> {
    pub connection: &'c Connection,
    held: [Option<CachedStatement<'c>>; Frequent::COUNT],
}

impl<'c> Statements<'c> {
    pub(super) fn new(connection: &'c Connection) -> Self {
        Self { connection, held: Default::default() }
    }

    /// Executes a frequent statement. Returns the number of changed rows.
    pub(super) fn execute(&mut self, which: Frequent, params: impl Params) -> rusqlite::Result<usize> {
        let held = &mut self.held[which as usize];
        let statement = match held {
            Some(statement) => statement,
            None => held.insert(self.connection.prepare_cached(which.sql())?),
        };
        statement.execute(params)
    }
}
