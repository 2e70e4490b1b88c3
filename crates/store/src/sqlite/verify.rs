//! The audit: verifies the hash chain, the values that it covers and the rows that follow from it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use rusqlite::{Connection, Params, Row, params};
use serde::Serialize;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Millis, RunStatus, StepRef, StepStatus, ValueChange};

use super::verify_admin::Actions;
use super::verify_run::ExpectedRows;
use super::{backup, migrate, read_only, rows, run_rows};
use crate::{ADMIN_LOG, RowContent, RunId, StoreError, link, log_row};

/// Runs that are verified in one transaction. A long transaction would block checkpoints.
const RUNS: usize = 100;
/// Rows of the log that are verified in one transaction.
const ROWS: usize = 5_000;
/// The number of events between two reports of progress.
const EVENTS: u64 = 1_000;
/// The maximum number of damages that are listed.
const LISTED: usize = 100;

/// The result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Verified runs.
    pub runs: u64,
    /// Verified events.
    pub events: u64,
    /// Inputs and outputs that were compared with the hashes in the events.
    pub values: u64,
    /// Verified administrative actions.
    pub actions: u64,
    /// Whether the audit reached the end.
    pub complete: bool,
    /// The number of damages.
    pub damages: u64,
    /// The first damages.
    pub damaged: Vec<Damage>,
}

/// A mismatch between the log and its hashes, or between the log and the rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The run, if it can be determined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The sequence number of the event at which it was detected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// A description of the damage.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(run) = self.run {
            write!(out, "run {run}: ")?;
        }
        if let Some(seq) = self.seq {
            write!(out, "event {seq}: ")?;
        }
        out.write_str(&self.what)
    }
}

/// Verifies one run or all runs, also while an engine writes. `progress` gets the number of verified events and the
/// total, and can end the audit.
///
/// The log is intact if its rows have no gaps, each hash follows from the row and the previous hash, and the rows of runs,
/// steps, approvals, idempotency keys, definitions, schedules, accounts and the policy match the events. A purged row is
/// represented by its digest, if an action recorded that its run was purged.
pub fn verify(
    database: &Path,
    run: Option<RunId>,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Verified, StoreError> {
    let connection = read_only(database)?;
    let format = migrate::format(&connection)?;
    let of_run = "WHERE run_id = (SELECT id FROM runs WHERE run_id = ?1)";
    let sql = format!("SELECT coalesce(sum(count), 0) FROM workflow_log {}", run.map_or("", |_| of_run));
    let params = rusqlite::params_from_iter(run.map(|run| run.to_string()));
    let total = connection.query_row(&sql, params, |row| row.get(0))?;
    let mut audit = Audit {
        connection: &connection,
        found: Verified::default(),
        total,
        progress,
        actions: Actions::default(),
        has_actions: format >= migrate::AUDITED,
    };
    let ended = match run {
        Some(run) => audit.one(run)?,
        None => audit.all(database)?,
    };
    audit.found.complete = ended.is_continue();
    Ok(audit.found)
}

/// The columns of a run that the audit compares with its log.
struct Head {
    key: i64,
    id: String,
    status: String,
    last_n: u32,
    times: (Millis, Option<Millis>),
    error: Option<String>,
}

const HEAD: &str =
    "SELECT r.id, r.run_id, r.status, coalesce((SELECT max(s.n) FROM step_runs s WHERE s.run_id = r.id), 0),
    r.created_at, r.completed_at, r.error_json FROM runs r";
/// A row of the log, its run, and the hash of the row before.
const ROW: &str = "SELECT l.id, l.seq, l.at, l.body, l.hashes, l.hash, r.run_id, l.run_id,
    (SELECT b.hash FROM workflow_log b WHERE b.id = l.id - 1), l.count FROM workflow_log l LEFT JOIN runs r ON r.id = l.run_id";

struct Audit<'a> {
    connection: &'a Connection,
    found: Verified,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    actions: Actions,
    /// Whether the format of the database has administrative actions.
    has_actions: bool,
}

impl Audit<'_> {
    fn one(&mut self, run: RunId) -> Result<ControlFlow<()>, StoreError> {
        let _moment = self.connection.unchecked_transaction()?;
        match self.heads(&format!("{HEAD} WHERE r.run_id = ?1"), [run.to_string()])?.pop() {
            Some(head) => {
                self.links(&format!("{ROW} WHERE l.run_id = ?1 ORDER BY l.seq"), [head.key], None)?;
                self.run(&head)
            }
            None => Ok(ControlFlow::Continue(())),
        }
    }

    fn all(&mut self, database: &Path) -> Result<ControlFlow<()>, StoreError> {
        // A damaged index finds other rows than the table has.
        for problem in backup::check(self.connection, "integrity_check")? {
            self.damaged(None, None, problem);
        }
        let committed = super::identity::anchored_row(self.connection, database)?;
        let last = self.chain()?;
        if let Some(committed) = committed.filter(|committed| *committed > last) {
            let what = format!("the log ends at row {last}, and row {committed} was committed");
            self.damaged(None, None, what);
        }
        self.bound_rows(last)?;
        let mut after = i64::MIN;
        loop {
            let _moment = self.connection.unchecked_transaction()?;
            let sql = format!("{HEAD} WHERE r.id > ?1 ORDER BY r.id LIMIT ?2");
            let heads = self.heads(&sql, params![after, RUNS])?;
            let Some(last) = heads.last() else { break };
            after = last.key;
            for head in &heads {
                if self.run(head)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Verifies the hash chain over all rows of the log.
    fn chain(&mut self) -> Result<i64, StoreError> {
        let mut last = 0;
        loop {
            let _moment = self.connection.unchecked_transaction()?;
            let sql = format!("{ROW} WHERE l.id > ?1 ORDER BY l.id LIMIT ?2");
            match self.links(&sql, params![last, ROWS], Some(last))? {
                Some(row) => last = row,
                None => return Ok(last),
            }
        }
    }

    /// Compares definitions, schedules and accounts with the actions, in one moment.
    fn bound_rows(&mut self, last: i64) -> Result<(), StoreError> {
        if !self.has_actions {
            return Ok(());
        }
        let _moment = self.connection.unchecked_transaction()?;
        self.links(&format!("{ROW} WHERE l.id > ?1 ORDER BY l.id"), [last], Some(last))?;
        let actions = std::mem::take(&mut self.actions);
        self.found.actions = actions.count;
        for what in actions.differences(self.connection)? {
            self.damaged(None, None, what);
        }
        Ok(())
    }

    /// Verifies the links of rows. With `after`, the rows have no gaps. Returns the last row.
    fn links(
        &mut self,
        sql: &str,
        params: impl Params,
        after: Option<i64>,
    ) -> Result<Option<i64>, StoreError> {
        let connection = self.connection;
        let (mut last, mut expected) = (None, after.map(|after| after + 1));
        rows::each(connection, sql, params, |row| {
            let id: i64 = row.get(0)?;
            if expected.is_some_and(|expected| expected != id) {
                let what = format!("rows before row {id} of the log are missing");
                self.damaged(None, None, what);
            } else if let Some((run, seq, what)) = broken_link(row)? {
                self.damaged(run, Some(seq), what);
            }
            if after.is_some()
                && let Err(error) = self.actions.follow(row)
            {
                self.damaged(None, None, format!("row {id} of the log: {error}"));
            }
            (last, expected) = (Some(id), expected.map(|_| id + 1));
            Ok(true)
        })?;
        Ok(last)
    }

    fn heads(&self, sql: &str, params: impl Params) -> Result<Vec<Head>, StoreError> {
        rows::all(self.connection, sql, params, |row| {
            let (key, id, status, last_n) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
            let times = (row.get(4)?, row.get(5)?);
            Ok(Head { key, id, status, last_n, times, error: row.get(6)? })
        })
    }

    /// Damage in one run does not keep the others from being verified.
    fn run(&mut self, head: &Head) -> Result<ControlFlow<()>, StoreError> {
        self.found.runs += 1;
        let walked = rows::run_id(&head.id).and_then(|id| match self.log(head, id) {
            Err(StoreError::Corrupt(what)) => {
                self.damaged(Some(id), None, what);
                Ok(ControlFlow::Continue(()))
            }
            walked => walked,
        });
        match walked {
            Err(StoreError::Corrupt(what)) => {
                self.damaged(None, None, what);
                Ok(ControlFlow::Continue(()))
            }
            walked => walked,
        }
    }

    fn log(&mut self, head: &Head, id: RunId) -> Result<ControlFlow<()>, StoreError> {
        let connection = self.connection;
        let sql = "SELECT seq, body, hashes, at, count FROM workflow_log WHERE run_id = ?1 ORDER BY seq";
        let mut statement = connection.prepare_cached(sql)?;
        let mut found = statement.query([head.key])?;
        let mut log =
            Log { run: head.key, last: 0, last_n: 0, status: RunStatus::Pending, inputs: BTreeMap::new() };
        let mut expected = ExpectedRows::default();
        while let Some(row) = found.next()? {
            let seq = u64::try_from(row.get::<_, i64>(0)?).map_err(rows::damaged)?;
            if seq != log.last + 1 {
                let what = format!("it follows event {}: the events between them are missing", log.last);
                self.damaged(Some(id), Some(seq), what);
            }
            log.last = seq - 1;
            let (body, hashes) = rows::log_body(row, 1)?;
            let (at, count): (Millis, usize) = (row.get(3)?, row.get(4)?);
            let events = log_row::events(body, hashes)?;
            if events.len() != count {
                let what = format!("its row has {} events, and its count is {count}", events.len());
                self.damaged(Some(id), Some(seq), what);
            }
            for event in events {
                if log.last == 0
                    && let Err(error) = run_rows::compare(connection, head.key, &event)
                {
                    self.damaged(Some(id), Some(1), error.to_string());
                }
                log.follow(&event);
                expected.follow(&event, at)?;
                self.values(id, &mut log, &event)?;
                self.found.events += 1;
                if self.found.events.is_multiple_of(EVENTS) && self.report_progress().is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        for ((n, attempt), hash) in std::mem::take(&mut log.inputs) {
            self.input(id, &log, n, attempt, hash)?;
        }
        for what in expected.differences(connection, head.key, id, (head.times, head.error.as_deref()))? {
            self.damaged(Some(id), Some(log.last), what);
        }
        if log.status.name() != head.status {
            let what = format!("the log ends here as {}, and the run is {}", log.status.name(), head.status);
            self.damaged(Some(id), Some(log.last), what);
        } else if log.last_n != head.last_n {
            let what =
                format!("the log ends with step {}, and the run has {} steps", log.last_n, head.last_n);
            self.damaged(Some(id), Some(log.last), what);
        }
        Ok(self.report_progress())
    }

    fn report_progress(&mut self) -> ControlFlow<()> {
        (self.progress)(self.found.events, self.total.max(self.found.events))
    }

    /// Compares the values whose hashes an event contains. The input of a step is compared when the attempt has ended.
    fn values(&mut self, id: RunId, log: &mut Log, event: &Event) -> Result<(), StoreError> {
        if let (Some(step), Some(ValueChange::StepInput(hash))) = (event.step(), event.changes().value) {
            log.inputs.insert((step.n, step.attempt), hash);
        }
        if let Some(StepRef { n, attempt, .. }) = event.step().filter(|_| is_over(event))
            && let Some(hash) = log.inputs.remove(&(*n, *attempt))
        {
            self.input(id, log, *n, *attempt, hash)?;
        }
        match event {
            Event::RunStarted { inputs, .. } => {
                let sql = "SELECT input_json FROM workflow_runs WHERE id = ?1";
                self.value(id, log, *inputs, "the inputs of the run", sql, [log.run])
            }
            Event::RunCompleted { output } => {
                let sql = "SELECT output_json FROM workflow_runs WHERE id = ?1";
                self.value(id, log, *output, "the output of the run", sql, [log.run])
            }
            Event::StepCompleted { step, output, .. } => {
                let sql = "SELECT output_json FROM workflow_step_runs WHERE run_id = ?1 AND n = ?2 AND attempt = ?3";
                let what = format!("the output of {}", step.path);
                self.value(id, log, *output, &what, sql, params![log.run, step.n, step.attempt])
            }
            _ => Ok(()),
        }
    }

    /// A retry sends the input of the first attempt and stores no copy of it.
    fn input(&mut self, id: RunId, log: &Log, n: u32, attempt: u32, hash: Hash) -> Result<(), StoreError> {
        let sql = "SELECT input_json FROM workflow_step_runs WHERE run_id = ?1 AND n = ?2 AND attempt <= ?3
                   AND input_json IS NOT NULL ORDER BY attempt DESC LIMIT 1";
        let what = format!("the input of step {n}");
        self.value(id, log, hash, &what, sql, params![log.run, n, attempt])
    }

    fn value(
        &mut self,
        id: RunId,
        log: &Log,
        hash: Hash,
        what: &str,
        sql: &str,
        params: impl Params,
    ) -> Result<(), StoreError> {
        self.found.values += 1;
        let found = rows::all(self.connection, sql, params, |row| {
            let text = row.get_ref(0)?.as_str_or_null().map_err(rows::damaged)?;
            Ok(text.map(|text| Hash::of(text.as_bytes())))
        })?;
        match found.first().copied().flatten() {
            Some(found) if found == hash => {}
            Some(_) => self.damaged(
                Some(id),
                Some(log.last),
                format!("{what}: the stored value does not match its hash"),
            ),
            None => self.damaged(Some(id), Some(log.last), format!("{what}: missing")),
        }
        Ok(())
    }

    fn damaged(&mut self, run: Option<RunId>, seq: Option<u64>, what: String) {
        self.found.damages += 1;
        if self.found.damaged.len() < LISTED {
            self.found.damaged.push(Damage { run, seq, what });
        }
    }
}

/// The state of a log up to the last verified event.
struct Log {
    run: i64,
    /// The sequence number of the last event.
    last: u64,
    /// The number of the last execution.
    last_n: u32,
    status: RunStatus,
    /// Inputs of unfinished attempts, by execution and attempt.
    inputs: BTreeMap<(u32, u32), Hash>,
}

impl Log {
    fn follow(&mut self, event: &Event) {
        self.last += 1;
        let changes = event.changes();
        self.status = changes.run.status.unwrap_or(self.status);
        let place = changes.step.filter(|change| change.info.is_some());
        self.last_n = place.map_or(self.last_n, |change| change.step.n.max(self.last_n));
    }
}

/// The damage of a log row, with its run and the sequence number of its first event.
fn broken_link(row: &Row<'_>) -> Result<Option<(Option<RunId>, u64, String)>, StoreError> {
    let seq = u64::try_from(row.get::<_, i64>(1)?).map_err(rows::damaged)?;
    let (body, hashes) = rows::log_body(row, 3)?;
    let hash = rows::hash_from_bytes(row.get_ref(5)?.as_blob().map_err(rows::damaged)?)?;
    let before = row.get_ref(8)?.as_blob_or_null().map_err(rows::damaged)?;
    let before = before.map_or(Ok(Hash([0; 32])), rows::hash_from_bytes)?;
    let run: Option<String> = row.get(6)?;
    let key: i64 = row.get(7)?;
    let run = match run.as_deref().map(rows::run_id).transpose() {
        Ok(None) if key == 0 => Some(ADMIN_LOG),
        Ok(run) => run,
        Err(error) => return Ok(Some((None, seq, error.to_string()))),
    };
    let digest = match run {
        _ if body.is_empty() && key != 0 => rows::hash_from_bytes(hashes)?,
        Some(run) => RowContent { run, seq, at: row.get(2)?, body, hashes }.digest(),
        None => {
            let what = format!("events of run number {key} exist without the run");
            return Ok(Some((None, seq, what)));
        }
    };
    let what = "this event or an earlier one was modified".to_owned();
    let run = run.filter(|run| *run != ADMIN_LOG);
    Ok((link(&before, &digest) != hash).then_some((run, seq, what)))
}

/// Whether an event ends an attempt of a step.
fn is_over(event: &Event) -> bool {
    event.changes().step.is_some_and(|step| step.status.is_some_and(StepStatus::is_end))
}
