//! The audit: verifies the hash chain of every log and the values that it covers.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use rusqlite::{Connection, Params, Row, params};
use serde::Serialize;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, StepRef, StepStatus, ValueChange};

use super::{migrate, read_only, rows};
use crate::{Link, RunId, StoreError, link};

/// Runs that are looked at in one transaction: a long one would keep the write-ahead log from being copied back.
const RUNS: usize = 100;
/// Events after which somebody is told how far it is.
const EVENTS: u64 = 1_000;
/// Damages that are told one by one.
const TOLD: usize = 100;

/// What an audit found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Runs that were looked at.
    pub runs: u64,
    /// Their events.
    pub events: u64,
    /// Inputs and outputs that were compared with what the events say.
    pub values: u64,
    /// Whether everything was looked at.
    pub complete: bool,
    /// How many damages there are.
    pub damages: u64,
    /// The first of them.
    pub damaged: Vec<Damage>,
}

/// Something that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The run; none where even that cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The event where it shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// What.
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

/// Looks at one run or at all of them, beside whoever writes. `progress` is told the events that were looked at and
/// those of the whole, and may end it.
///
/// A log is in order if its numbers have no gaps, each hash follows from the one before, the run's row points at the
/// end, and inputs and outputs have the hashes that the events name. That a run was deleted with all of its events
/// cannot be seen here.
pub fn verify(
    database: &Path,
    run: Option<RunId>,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Verified, StoreError> {
    let connection = read_only(database)?;
    migrate::format(&connection)?;
    let of_run = "WHERE run_id = (SELECT id FROM workflow_runs WHERE run_id = ?1)";
    let sql = format!("SELECT count(*) FROM workflow_events {}", run.map_or("", |_| of_run));
    let total =
        connection
            .query_row(&sql, rusqlite::params_from_iter(run.map(|run| run.to_string())), |row| row.get(0))?;
    let mut audit = Audit { connection: &connection, found: Verified::default(), total, progress };
    let ended = match run {
        Some(run) => audit.one(run)?,
        None => audit.all()?,
    };
    audit.found.complete = ended.is_continue();
    Ok(audit.found)
}

/// The row of a run, as it stands there.
struct Head {
    key: i64,
    id: String,
    seq: i64,
    hash: Vec<u8>,
}

const HEAD: &str = "SELECT id, run_id, seq, head_hash FROM workflow_runs";

struct Audit<'a> {
    connection: &'a Connection,
    found: Verified,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

impl Audit<'_> {
    fn one(&mut self, run: RunId) -> Result<ControlFlow<()>, StoreError> {
        let _moment = self.connection.unchecked_transaction()?;
        match self.heads(&format!("{HEAD} WHERE run_id = ?1"), [run.to_string()])?.pop() {
            Some(head) => self.run(&head),
            None => Ok(ControlFlow::Continue(())),
        }
    }

    fn all(&mut self) -> Result<ControlFlow<()>, StoreError> {
        let mut after = i64::MIN;
        loop {
            let _moment = self.connection.unchecked_transaction()?;
            let sql = format!("{HEAD} WHERE id > ?1 ORDER BY id LIMIT ?2");
            let heads = self.heads(&sql, params![after, RUNS])?;
            let Some(last) = heads.last() else { break };
            after = last.key;
            for head in &heads {
                if self.run(head)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        self.strays()?;
        Ok(ControlFlow::Continue(()))
    }

    fn heads(&self, sql: &str, params: impl Params) -> Result<Vec<Head>, StoreError> {
        rows::all(self.connection, sql, params, |row| {
            Ok(Head { key: row.get(0)?, id: row.get(1)?, seq: row.get(2)?, hash: row.get(3)? })
        })
    }

    /// Damage concerns the run that it is in: the others are looked at all the same.
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
        let sql = "SELECT seq, at, body, hash FROM workflow_events WHERE run_id = ?1 ORDER BY seq";
        let mut statement = connection.prepare_cached(sql)?;
        let mut events = statement.query([head.key])?;
        let mut log = Log { run: head.key, last: 0, before: Hash([0; 32]), given: BTreeMap::new() };
        while let Some(row) = events.next()? {
            let damages = log.follow(id, row)?;
            damages.into_iter().for_each(|what| self.damaged(Some(id), Some(log.last), what));
            let body = row.get_ref(2)?.as_str().map_err(rows::damaged)?;
            // What cannot be read was not written by us: the hash has told already.
            if let Ok(event) = serde_json::from_str::<Event>(body) {
                self.values(id, &mut log, &event)?;
            }
            self.found.events += 1;
            if self.found.events.is_multiple_of(EVENTS) && self.tell().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        for ((n, attempt), hash) in std::mem::take(&mut log.given) {
            self.given(id, &log, n, attempt, hash)?;
        }
        if i64::try_from(log.last) != Ok(head.seq) {
            let what =
                format!("the log ends here, and the run's row says that it ends with event {}", head.seq);
            self.damaged(Some(id), Some(log.last), what);
        } else if log.before.0[..] != head.hash[..] {
            self.damaged(Some(id), Some(log.last), "the run's row has another hash of it".to_owned());
        }
        Ok(self.tell())
    }

    fn tell(&mut self) -> ControlFlow<()> {
        (self.progress)(self.found.events, self.total.max(self.found.events))
    }

    /// Compares the values that an event speaks of. What a step was given is compared when the attempt is over.
    fn values(&mut self, id: RunId, log: &mut Log, event: &Event) -> Result<(), StoreError> {
        if let (Some(step), Some(ValueChange::StepInput(hash))) = (event.step(), event.changes().value) {
            log.given.insert((step.n, step.attempt), hash);
        }
        if let Some(StepRef { n, attempt, .. }) = event.step().filter(|_| is_over(event))
            && let Some(hash) = log.given.remove(&(*n, *attempt))
        {
            self.given(id, log, *n, *attempt, hash)?;
        }
        match event {
            Event::RunStarted { inputs, .. } => {
                let sql = "SELECT input_json FROM workflow_inputs WHERE run_id = ?1";
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

    /// Attempts after the first send what the first sent, and have no copy of it.
    fn given(&mut self, id: RunId, log: &Log, n: u32, attempt: u32, hash: Hash) -> Result<(), StoreError> {
        let sql = "SELECT input_json FROM workflow_step_runs WHERE run_id = ?1 AND n = ?2 AND attempt <= ?3
                   AND input_json IS NOT NULL ORDER BY attempt DESC LIMIT 1";
        let what = format!("what step {n} was given");
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
            Some(_) => self.damaged(Some(id), Some(log.last), format!("{what}: not what was written")),
            None => self.damaged(Some(id), Some(log.last), format!("{what}: missing")),
        }
        Ok(())
    }

    /// Events whose run is not there.
    fn strays(&mut self) -> Result<(), StoreError> {
        let sql = "WITH RECURSIVE logs (id) AS (
                       SELECT min(run_id) FROM workflow_events
                       UNION ALL SELECT (SELECT min(run_id) FROM workflow_events WHERE run_id > logs.id) FROM logs
                       WHERE logs.id IS NOT NULL)
                   SELECT id FROM logs WHERE id IS NOT NULL
                   AND NOT EXISTS (SELECT 1 FROM workflow_runs WHERE workflow_runs.id = logs.id)";
        for key in rows::all(self.connection, sql, [], |row| Ok(row.get::<_, i64>(0)?))? {
            self.damaged(None, None, format!("there are events of run number {key}, but not the run"));
        }
        Ok(())
    }

    fn damaged(&mut self, run: Option<RunId>, seq: Option<u64>, what: String) {
        self.found.damages += 1;
        if self.found.damaged.len() < TOLD {
            self.found.damaged.push(Damage { run, seq, what });
        }
    }
}

/// How far a log was followed.
struct Log {
    run: i64,
    /// The number of the last event.
    last: u64,
    /// Its hash, as it stands there: one damage is told once.
    before: Hash,
    /// What steps under way were given: by number and attempt.
    given: BTreeMap<(u32, u32), Hash>,
}

impl Log {
    /// Goes on to the next event; says what is wrong with it.
    fn follow(&mut self, run: RunId, row: &Row<'_>) -> Result<Vec<String>, StoreError> {
        let mut damages = Vec::new();
        let seq = u64::try_from(row.get::<_, i64>(0)?).map_err(rows::damaged)?;
        let body = row.get_ref(2)?.as_str().map_err(rows::damaged)?;
        let hash = rows::hash_from_bytes(row.get_ref(3)?.as_blob().map_err(rows::damaged)?)?;
        if seq != self.last + 1 {
            damages.push(format!("it follows event {}: what was between them is missing", self.last));
        } else if link(&self.before, Link { run, seq, at: row.get(1)?, body }) != hash {
            damages.push("it was changed, or one before it was".to_owned());
        }
        (self.last, self.before) = (seq, hash);
        Ok(damages)
    }
}

/// Whether an attempt of a step ends with an event.
fn is_over(event: &Event) -> bool {
    event.changes().step.is_some_and(|step| step.status.is_some_and(StepStatus::is_end))
}
