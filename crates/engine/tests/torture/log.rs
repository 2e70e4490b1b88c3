//! Reads runs and the history of their calls from the database.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use serde_json::Value;
use steprail_core::run::{Event, FailureKind, Resolved, Started, StepRef};
use steprail_engine::RunId;

/// A run with its log.
pub(crate) struct RunLog {
    pub key: i64,
    pub id: RunId,
    pub status: String,
    pub output: Option<Value>,
    /// Number of the run in the worker; `None` for child runs.
    pub n: Option<u64>,
    /// Key of the parent run, and the number of its step.
    pub parent: Option<(i64, u32)>,
    pub events: Vec<(i64, Event)>,
}

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    /// Unknown outcome, and retried.
    Lost,
    /// Failed, and retried.
    Repeated,
    Done {
        from: Option<String>,
    },
    Failed,
}

/// The calls of one step.
#[derive(Debug, Default)]
pub(crate) struct CallHistory {
    /// Committed intent of each attempt: idempotency key, tool, hash of the arguments.
    pub intents: BTreeMap<u32, (String, String, String)>,
    pub results: BTreeMap<u32, AttemptResult>,
    pub uncertain: BTreeSet<u32>,
    pub resolved: BTreeMap<u32, Resolved>,
}

/// Returns all runs, the oldest first.
pub(crate) fn read(connection: &Connection) -> Vec<RunLog> {
    let sql = "SELECT id, run_id, status, output_json, request_key, parent_id, parent_n FROM workflow_runs
               ORDER BY id";
    let mut statement = connection.prepare(sql).expect("a statement");
    let rows = statement.query_map([], |row| {
        let text = |at: usize| row.get::<_, Option<String>>(at);
        let key = row.get(0)?;
        Ok(RunLog {
            key,
            id: row.get::<_, String>(1)?.parse().expect("a run id"),
            status: row.get(2)?,
            output: text(3)?.map(|json| serde_json::from_str(&json).expect("JSON")),
            n: text(4)?.map(|n| n.parse().expect("a number")),
            parent: row.get::<_, Option<i64>>(5)?.zip(row.get(6)?),
            events: events(connection, key),
        })
    });
    rows.expect("runs").collect::<Result<_, _>>().expect("a run")
}

fn events(connection: &Connection, run: i64) -> Vec<(i64, Event)> {
    let sql = "SELECT at, body FROM workflow_events WHERE run_id = ?1 ORDER BY seq";
    let mut statement = connection.prepare_cached(sql).expect("a statement");
    let rows = statement.query_map([run], |row| {
        let body: String = row.get(1)?;
        Ok((row.get(0)?, serde_json::from_str(&body).expect("an event")))
    });
    rows.expect("events").collect::<Result<_, _>>().expect("an event")
}

impl RunLog {
    /// Returns the path of a `workflow` step.
    pub(crate) fn path_of(&self, n: u32) -> Option<&str> {
        self.events.iter().find_map(|(_, event)| match event {
            Event::StepStarted { step, what: Started::Workflow { .. }, .. } if step.n == n => {
                Some(&*step.path)
            }
            _ => None,
        })
    }

    /// Returns the history of calls, by path.
    pub(crate) fn histories(&self) -> BTreeMap<String, CallHistory> {
        let mut histories: BTreeMap<String, CallHistory> = BTreeMap::new();
        for (_, event) in &self.events {
            let Some(step) = event.step() else { continue };
            if let Event::StepStarted { what: Started::Call { tool, args, key, .. }, .. } = event {
                let intent = (key.to_string(), tool.to_string(), args.to_string());
                histories.entry(step.path.to_string()).or_default().intents.insert(step.attempt, intent);
            } else if let Some(history) = histories.get_mut(&*step.path) {
                history.record(step, event);
            }
        }
        histories
    }

    /// Counts sleeps that ended before they were due.
    pub(crate) fn early_wakeups(&self) -> usize {
        let mut due = BTreeMap::new();
        let mut early = 0;
        for (at, event) in &self.events {
            match event {
                Event::StepStarted { step, what: Started::Sleep { due: time }, .. } => {
                    due.insert(step.n, *time);
                }
                Event::StepCompleted { step, .. } => {
                    early += usize::from(due.get(&step.n).is_some_and(|due| at < due));
                }
                _ => {}
            }
        }
        early
    }
}

impl CallHistory {
    fn record(&mut self, step: &StepRef, event: &Event) {
        let result = match event {
            Event::RetryScheduled { error, .. } if error.kind == FailureKind::Lost => AttemptResult::Lost,
            Event::RetryScheduled { .. } => AttemptResult::Repeated,
            Event::StepCompleted { from, .. } => {
                AttemptResult::Done { from: from.as_deref().map(str::to_owned) }
            }
            Event::StepFailed { .. } => AttemptResult::Failed,
            Event::StepUncertain { .. } => {
                self.uncertain.insert(step.attempt);
                return;
            }
            Event::UncertaintyResolved { how, .. } => {
                self.resolved.insert(step.attempt, *how);
                return;
            }
            _ => return,
        };
        self.results.insert(step.attempt, result);
    }

    /// Whether the step has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.results
            .values()
            .any(|result| matches!(result, AttemptResult::Done { .. } | AttemptResult::Failed))
    }

    /// Whether the result of the step was supplied and not returned by its tool.
    pub(crate) fn was_supplied(&self) -> bool {
        self.resolved.values().any(|how| *how == Resolved::Happened)
    }
}
