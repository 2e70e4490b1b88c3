//! What the database says became of runs and of every call in them.

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
    /// The number that the worker gave it.
    pub n: Option<u64>,
    /// The run that waits for it, and the number of the step there.
    pub parent: Option<(i64, u32)>,
    pub events: Vec<(i64, Event)>,
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nobody knows; another one followed.
    Lost,
    /// It failed; another one followed.
    Repeated,
    Done {
        from: Option<String>,
    },
    Failed,
}

/// Everything about the calls of one step.
#[derive(Debug, Default)]
pub(crate) struct Tale {
    /// What was committed before each attempt: key, tool, hash of the arguments.
    pub intents: BTreeMap<u32, (String, String, String)>,
    pub fates: BTreeMap<u32, Fate>,
    pub uncertain: BTreeSet<u32>,
    pub resolved: BTreeMap<u32, Resolved>,
}

/// Every run, the oldest first.
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
    /// The path of a step of this run that started another run.
    pub(crate) fn path_of(&self, n: u32) -> Option<&str> {
        self.events.iter().find_map(|(_, event)| match event {
            Event::StepStarted { step, what: Started::Workflow { .. }, .. } if step.n == n => {
                Some(&*step.path)
            }
            _ => None,
        })
    }

    /// What became of calls, by path.
    pub(crate) fn tales(&self) -> BTreeMap<String, Tale> {
        let mut tales: BTreeMap<String, Tale> = BTreeMap::new();
        for (_, event) in &self.events {
            let Some(step) = event.step() else { continue };
            if let Event::StepStarted { what: Started::Call { tool, args, key, .. }, .. } = event {
                let intent = (key.to_string(), tool.to_string(), args.to_string());
                tales.entry(step.path.to_string()).or_default().intents.insert(step.attempt, intent);
            } else if let Some(tale) = tales.get_mut(&*step.path) {
                tale.note(step, event);
            }
        }
        tales
    }

    /// Sleeps that ended before their time.
    pub(crate) fn woken_early(&self) -> usize {
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

impl Tale {
    fn note(&mut self, step: &StepRef, event: &Event) {
        let fate = match event {
            Event::RetryScheduled { error, .. } if error.kind == FailureKind::Lost => Fate::Lost,
            Event::RetryScheduled { .. } => Fate::Repeated,
            Event::StepCompleted { from, .. } => Fate::Done { from: from.as_deref().map(str::to_owned) },
            Event::StepFailed { .. } => Fate::Failed,
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
        self.fates.insert(step.attempt, fate);
    }

    /// Whether the step has ended, well or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.fates.values().any(|fate| matches!(fate, Fate::Done { .. } | Fate::Failed))
    }

    /// Whether the step has a result that its tool did not give.
    pub(crate) fn was_told(&self) -> bool {
        self.resolved.values().any(|how| *how == Resolved::Happened)
    }
}
