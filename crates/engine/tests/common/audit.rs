//! Invariants of a store: hash chain, sequence numbers, and rows that are derived from the log.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Started};
use steprail_store::{RowContent, RunId, link};

/// Returns all violations, as text.
pub(crate) fn audit(connection: &Connection) -> Vec<String> {
    let mut violations = chain(connection);
    let runs: Vec<(i64, String, String, bool)> =
        query(connection, "SELECT id, run_id, status, active FROM workflow_runs ORDER BY id", |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        });
    for (key, id, status, active) in runs {
        let id: RunId = id.parse().expect("a run id");
        let events: Vec<(u64, String)> = query(
            connection,
            &format!("SELECT seq, body FROM workflow_events WHERE run_id = {key} ORDER BY seq"),
            |row| Ok((row.get(0)?, row.get(1)?)),
        );
        let mut fold = Fold::default();
        for (expected, (number, body)) in (1..).zip(&events) {
            if *number != expected {
                violations.push(format!("run {id}: event {expected} is missing"));
            }
            fold.apply(&serde_json::from_str(body).expect("an event"));
        }
        if fold.status != status {
            violations.push(format!("run {id}: status {status}, but the log says {}", fold.status));
        }
        let terminal = matches!(status.as_str(), "completed" | "failed" | "cancelled");
        // The transitions of an interrupted run may wait until it is resumed.
        if !terminal && !active && status != "interrupted" && fold.live.is_empty() {
            violations.push(format!("run {id}: {status}, but it can never continue"));
        }
        if active && (terminal || status == "interrupted") {
            violations.push(format!("run {id}: active and {status}"));
        }
        fold.compare(connection, key, id, &mut violations);
    }
    violations
}

/// Verifies the hash chain over all rows of the log.
fn chain(connection: &Connection) -> Vec<String> {
    type LogRow = (i64, String, u64, i64, String, Vec<u8>, Vec<u8>);
    let rows: Vec<LogRow> = query(
        connection,
        "SELECT l.id, coalesce(r.run_id, iif(l.run_id = 0, '00000000-0000-0000-0000-000000000000', NULL)), l.seq, l.at,
         l.body, l.hashes, l.hash FROM workflow_log l LEFT JOIN runs r ON r.id = l.run_id ORDER BY l.id",
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?)),
    );
    let mut hash = Hash([0; 32]);
    let mut violations = Vec::new();
    for (expected, (id, run, seq, at, body, hashes, stored)) in (1..).zip(&rows) {
        let run = run.parse().expect("a run id");
        hash = link(&hash, &RowContent { run, seq: *seq, at: *at, body, hashes }.digest());
        if *id != expected || hash.0[..] != stored[..] {
            violations.push(format!("the chain breaks at row {id}"));
        }
    }
    violations
}

/// The expected rows, derived from the log independently of the store's projection.
#[derive(Default)]
struct Fold {
    status: &'static str,
    steps: BTreeMap<(u32, u32), &'static str>,
    live: BTreeSet<u32>,
    /// Kinds of timers by step.
    timers: BTreeMap<u32, BTreeSet<&'static str>>,
    waits: BTreeMap<u32, String>,
    gates: BTreeSet<u32>,
    claims: BTreeSet<u32>,
}

impl Fold {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::RunStarted { .. } | Event::RunResumed { .. } | Event::RunCancelling { .. } => {
                self.status = "running";
            }
            Event::RunPaused { .. } => self.status = "paused",
            Event::RunInterrupted { .. } => self.status = "interrupted",
            Event::RunCompleted { .. } => self.status = "completed",
            Event::RunFailed { .. } => self.status = "failed",
            Event::RunCancelled { .. } => self.status = "cancelled",
            _ => {}
        }
        let Some(step) = event.step() else { return };
        let (n, attempt) = (step.n, step.attempt);
        let mut set = |status| {
            self.steps.insert((n, attempt), status);
        };
        let mut ended = false;
        match event {
            Event::StepReady { .. } => {
                set("ready");
                self.resets(n);
                self.live.insert(n);
            }
            Event::KeyAwaited { key, .. } => {
                set("waiting");
                self.resets(n);
                self.live.insert(n);
                self.waits.insert(n, key.to_string());
            }
            Event::ServerAwaited { due, until, .. } => {
                set("waiting");
                self.resets(n);
                self.live.insert(n);
                for (kind, due) in [("retry", due), ("timeout", until)] {
                    if due.is_some() {
                        self.timers.entry(n).or_default().insert(kind);
                    }
                }
            }
            Event::StepStarted { what, until, .. } => {
                set(match what {
                    Started::Approve {}
                    | Started::Sleep { .. }
                    | Started::Wait { .. }
                    | Started::Workflow { .. } => "waiting",
                    _ => "running",
                });
                self.resets(n);
                self.live.insert(n);
                // The deadline of a call is not a durable timer.
                if until.is_some() && !matches!(what, Started::Call { .. }) {
                    self.timers.entry(n).or_default().insert("timeout");
                }
                match what {
                    Started::Sleep { .. } => drop(self.timers.entry(n).or_default().insert("sleep")),
                    Started::Wait { event, signal: None, .. } => {
                        drop(self.waits.insert(n, event.to_string()));
                    }
                    Started::Call { claimed: true, .. } => drop(self.claims.insert(n)),
                    _ => {}
                }
            }
            Event::StepCompleted { .. } => {
                set("done");
                ended = true;
            }
            Event::StepFailed { .. } => {
                set("failed");
                ended = true;
            }
            Event::StepSkipped { .. } => {
                set("skipped");
                ended = true;
            }
            Event::StepCancelled { .. } => {
                set("cancelled");
                ended = true;
            }
            Event::RetryScheduled { .. } => {
                set("failed");
                self.steps.insert((n, attempt + 1), "pending");
                self.resets(n);
                self.timers.entry(n).or_default().insert("retry");
            }
            Event::StepUncertain { .. } => {
                set("uncertain");
                self.resets(n);
            }
            Event::CallTimedOut { .. }
            | Event::ToolCreated { .. }
            | Event::VerifyStarted { .. }
            | Event::ToolRequested { .. } => self.resets(n),
            Event::ApprovalDenied { .. } => self.resets(n),
            Event::ApprovalRequested { until, escalate, .. } => {
                set("waiting");
                self.gates.insert(n);
                self.timers.remove(&n);
                for (kind, due) in [("timeout", until), ("escalate", escalate)] {
                    if due.is_some() {
                        self.timers.entry(n).or_default().insert(kind);
                    }
                }
            }
            Event::ApprovalGranted { .. } => {
                set("ready");
                self.resets(n);
            }
            Event::ApprovalEscalated { escalate: Some(_), .. } => {
                self.timers.entry(n).or_default().insert("escalate");
            }
            _ => {}
        }
        if ended {
            self.resets(n);
            self.live.remove(&n);
            self.claims.remove(&n);
        }
    }

    fn resets(&mut self, n: u32) {
        self.timers.remove(&n);
        self.waits.remove(&n);
        self.gates.remove(&n);
    }

    fn compare(&self, connection: &Connection, key: i64, id: RunId, violations: &mut Vec<String>) {
        let steps: BTreeMap<(u32, u32), String> = query(
            connection,
            &format!("SELECT n, attempt, status FROM workflow_step_runs WHERE run_id = {key}"),
            |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?)),
        )
        .into_iter()
        .collect();
        let expected: BTreeMap<(u32, u32), String> =
            self.steps.iter().map(|(step, status)| (*step, (*status).to_owned())).collect();
        if steps != expected {
            violations.push(format!("run {id}: steps {steps:?}, but the log says {expected:?}"));
        }
        let timers: Vec<(u32, String)> =
            query(connection, &format!("SELECT n, kind FROM alarms WHERE run_id = {key}"), |row| {
                Ok((row.get(0)?, row.get(1)?))
            });
        // A timer that fired is deleted before its effect is logged, so there can be fewer rows.
        for (n, kind) in &timers {
            if !self.timers.get(n).is_some_and(|kinds| kinds.contains(kind.as_str())) {
                violations.push(format!("run {id}: unexpected timer `{kind}` of step {n}"));
            }
        }
        for (n, kinds) in &self.timers {
            let needed = kinds.iter().filter(|kind| matches!(**kind, "retry" | "sleep"));
            for kind in needed {
                if !timers.iter().any(|(step, stored)| step == n && stored == kind) {
                    violations.push(format!("run {id}: missing timer `{kind}` of step {n}"));
                }
            }
        }
        let waits: BTreeMap<u32, String> =
            query(connection, &format!("SELECT n, event FROM workflow_waits WHERE run_id = {key}"), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .into_iter()
            .collect();
        if waits != self.waits {
            violations.push(format!("run {id}: waits {waits:?}, but the log says {:?}", self.waits));
        }
        let gates: BTreeSet<u32> = query(
            connection,
            &format!("SELECT n FROM approvals WHERE run_id = {key} AND status = 'open'"),
            |row| row.get(0),
        )
        .into_iter()
        .collect();
        if gates != self.gates {
            violations.push(format!("run {id}: open gates {gates:?}, but the log says {:?}", self.gates));
        }
        let claims: BTreeSet<u32> = query(
            connection,
            &format!("SELECT n FROM idempotency_keys WHERE run_id = {key} AND status = 'claimed'"),
            |row| row.get(0),
        )
        .into_iter()
        .collect();
        if claims != self.claims {
            violations.push(format!("run {id}: keys held by {claims:?}, but the log says {:?}", self.claims));
        }
    }
}

fn query<T>(
    connection: &Connection,
    sql: &str,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Vec<T> {
    let mut statement = connection.prepare_cached(sql).expect("a statement");
    let found = statement.query_map([], read).expect("rows");
    found.collect::<Result<_, _>>().expect("a row")
}
