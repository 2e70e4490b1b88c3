//! Invariants of a store: hash chain, sequence numbers, and rows that are derived from the log.

use std::collections::{BTreeMap, BTreeSet};

use steprail_core::plan::Hash;
use steprail_core::run::{Event, Millis, Started};
use steprail_store::{RowContent, RunId, link};

#[path = "sqlite_tables.rs"]
mod sqlite_tables;

/// What tests read of a store. Each store has its own queries.
pub(crate) trait Tables {
    /// The log of all runs.
    fn log(&self) -> Vec<LogRow>;
    /// The runs, in the order of their creation.
    fn runs(&self) -> Vec<RunState>;
    /// The events of a run, with their sequence numbers and times.
    fn events(&self, run: RunId) -> Vec<(u64, Millis, Event)>;
    /// The rows of a run.
    fn rows(&self, run: RunId) -> Rows;
    /// The last decision of each gate of a run, if it is an approval.
    #[allow(dead_code, reason = "only the simulation reads them")]
    fn approvals(&self, run: RunId) -> Vec<Approval>;
    /// The outputs of the attempts of a run, as JSON: execution, attempt and output.
    #[allow(dead_code, reason = "only the simulation reads them")]
    fn outputs(&self, run: RunId) -> Vec<(u32, u32, String)>;
}

/// A row of the log.
pub(crate) struct LogRow {
    pub id: i64,
    pub run: RunId,
    pub seq: u64,
    pub at: Millis,
    pub body: String,
    pub hashes: Vec<u8>,
    pub hash: Vec<u8>,
}

/// The state of a run in its row.
pub(crate) struct RunState {
    pub id: RunId,
    pub status: String,
    pub active: bool,
}

/// The rows of a run that the log determines.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// The status of each attempt, by execution and attempt.
    pub steps: BTreeMap<(u32, u32), String>,
    /// Executions with the kinds of their timers.
    pub timers: Vec<(u32, String)>,
    pub waits: BTreeMap<u32, String>,
    /// Executions with an open gate.
    pub gates: BTreeSet<u32>,
    /// Executions that hold an idempotency key.
    pub claims: BTreeSet<u32>,
}

/// An approval of a call, and the call that followed.
#[allow(dead_code, reason = "only the simulation reads it")]
pub(crate) struct Approval {
    pub path: String,
    /// The arguments that were approved.
    pub args: Option<String>,
    pub by: Option<String>,
    /// The arguments that were sent.
    pub sent: Option<String>,
}

/// Returns all violations, as text.
pub(crate) fn audit(tables: &dyn Tables) -> Vec<String> {
    let mut violations = chain(tables);
    for RunState { id, status, active } in tables.runs() {
        let mut fold = Fold::default();
        for (expected, (number, _, event)) in (1..).zip(&tables.events(id)) {
            if *number != expected {
                violations.push(format!("run {id}: event {expected} is missing"));
            }
            fold.apply(event);
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
        fold.compare(&tables.rows(id), id, &mut violations);
    }
    violations
}

/// Verifies the hash chain over all rows of the log.
fn chain(tables: &dyn Tables) -> Vec<String> {
    let mut hash = Hash([0; 32]);
    let mut violations = Vec::new();
    for (expected, row) in (1..).zip(&tables.log()) {
        let LogRow { id, run, seq, at, body, hashes, hash: stored } = row;
        hash = link(&hash, &RowContent { run: *run, seq: *seq, at: *at, body, hashes }.digest());
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
            Event::ApprovalRequested { until, escalate, remind, .. } => {
                set("waiting");
                self.gates.insert(n);
                self.timers.remove(&n);
                for (kind, due) in [("timeout", until), ("escalate", escalate), ("escalate", remind)] {
                    if due.is_some() {
                        self.timers.entry(n).or_default().insert(kind);
                    }
                }
            }
            Event::ApprovalGranted { .. } => {
                set("ready");
                self.resets(n);
            }
            Event::ApprovalEscalated { escalate, remind, .. }
            | Event::ApprovalReminded { escalate, remind, .. }
                if escalate.or(*remind).is_some() =>
            {
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

    fn compare(&self, rows: &Rows, id: RunId, violations: &mut Vec<String>) {
        let Rows { steps, timers, waits, gates, claims } = rows;
        let expected: BTreeMap<(u32, u32), String> =
            self.steps.iter().map(|(step, status)| (*step, (*status).to_owned())).collect();
        if *steps != expected {
            violations.push(format!("run {id}: steps {steps:?}, but the log says {expected:?}"));
        }
        self.compare_timers(timers, id, violations);
        if *waits != self.waits {
            violations.push(format!("run {id}: waits {waits:?}, but the log says {:?}", self.waits));
        }
        if *gates != self.gates {
            violations.push(format!("run {id}: open gates {gates:?}, but the log says {:?}", self.gates));
        }
        if *claims != self.claims {
            violations.push(format!("run {id}: keys held by {claims:?}, but the log says {:?}", self.claims));
        }
    }

    fn compare_timers(&self, timers: &[(u32, String)], id: RunId, violations: &mut Vec<String>) {
        // A timer that fired is deleted before its effect is logged, so there can be fewer rows.
        for (n, kind) in timers {
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
    }
}
