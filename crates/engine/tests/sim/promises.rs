//! The promises, checked on everything that is stored.

use std::collections::{BTreeSet, HashMap};

use steprail_core::run::{Event, Millis, Started};
use steprail_engine::kernel::CallOrder;
use steprail_engine::{RunId, RunStatus};

use super::Sim;
use super::common::audit::audit;
use super::common::laws::broken_laws;

impl Sim {
    /// Every promise, on everything that is stored.
    pub(super) fn check(&mut self) {
        let found = audit(self.store.lock().expect("the store").connection());
        self.broken.extend(found);
        for run in self.all_runs() {
            let events = self.events(run);
            let Some((_, Event::RunStarted { definition, .. })) = events.first() else { continue };
            let plan = &self.plans[&**definition];
            let broken = broken_laws(plan, &self.bench.tools, &events);
            self.broken.extend(broken.into_iter().map(|broken| format!("{definition}: {broken}")));
            self.broken_gates(run);
            self.unanswered(run, &events);
        }
        self.owed_calls();
        self.borrowed_results();
        for run in &self.runs {
            if self.events(*run).is_empty() {
                self.broken.push(format!("run {run} was acknowledged and is gone"));
            }
        }
    }

    /// What the log says is in flight is in flight: recovery would ask for nothing else.
    fn owed_calls(&mut self) {
        if !self.backlog.is_empty() {
            return;
        }
        for run in self.unfinished() {
            let Some(state) = self.bench.kernel().inspect(run).ok().flatten() else { continue };
            if state.status() == RunStatus::Interrupted {
                continue;
            }
            for (_, live) in state.calls() {
                let made = |order: &CallOrder| {
                    order.run == run && order.path == live.path && order.attempt == live.attempt
                };
                if !self.bench.calls.values().any(made) {
                    self.broken.push(format!("{}: waits for a call that nobody makes", live.path));
                }
            }
        }
    }

    /// A step that a call completed has the answer of that very call.
    fn unanswered(&mut self, run: RunId, events: &[(Millis, Event)]) {
        let called = events.iter().filter_map(|(_, event)| match event {
            Event::StepStarted { step, what: Started::Call { .. }, .. } => Some(step.n),
            _ => None,
        });
        let called: BTreeSet<u32> = called.collect();
        for (_, event) in events {
            let Event::StepCompleted { step, from: None, .. } = event else { continue };
            let answer = (run, step.path.to_string(), step.attempt);
            if called.contains(&step.n) && !self.answered.contains(&answer) {
                self.broken.push(format!("{}: attempt {} took another's answer", step.path, step.attempt));
            }
        }
    }

    /// A result that is taken over by its key was given to the same user.
    fn borrowed_results(&mut self) {
        let (mut given, mut taken) = (BTreeSet::new(), Vec::new());
        for run in self.all_runs() {
            let mut calls: HashMap<u32, (String, String, bool)> = HashMap::new();
            let mut user = String::new();
            for (_, event) in self.events(run) {
                match event {
                    Event::RunStarted { by, .. } => user = by.to_string(),
                    Event::StepStarted { step, what: Started::Call { tool, key, claimed, .. }, .. } => {
                        calls.insert(step.n, (tool.to_string(), key.to_string(), claimed));
                    }
                    Event::StepCompleted { step, from, .. } => {
                        let Some((tool, key, claimed)) = calls.get(&step.n) else { continue };
                        let result = (user.clone(), tool.clone(), key.clone());
                        if from.as_deref() == Some("idempotency") {
                            taken.push(result);
                        } else if *claimed {
                            given.insert(result);
                        }
                    }
                    _ => {}
                }
            }
        }
        let foreign = taken.into_iter().filter(|result| !given.contains(result));
        self.broken.extend(
            foreign.map(|(user, tool, key)| format!("{user} got what {tool} gave another for {key}")),
        );
    }

    /// What an approver saw is what ran, and who decided was allowed to.
    fn broken_gates(&mut self, run: RunId) {
        let starter = self.events(run).into_iter().find_map(|(_, event)| match event {
            Event::RunStarted { by, .. } => Some(by.to_string()),
            _ => None,
        });
        let rows: Vec<Decision> = {
            let store = self.store.lock().expect("the store");
            let mut statement = store
                .connection()
                .prepare_cached(
                    "SELECT a.path, a.args_json, a.decided_by, (SELECT s.input_json FROM workflow_step_runs s
                     WHERE s.run_id = a.run_id AND s.n = a.n AND s.started_at >= a.decided_at AND s.tool IS NOT NULL
                     AND s.status IN ('running', 'done') ORDER BY s.attempt LIMIT 1)
                     FROM approvals a JOIN workflow_runs r ON r.id = a.run_id
                     WHERE r.run_id = ?1 AND a.status = 'approved'
                     AND a.id = (SELECT max(id) FROM approvals WHERE run_id = a.run_id AND n = a.n)",
                )
                .expect("a statement");
            let rows = statement
                .query_map([run.to_string()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
                .expect("rows");
            rows.collect::<Result<_, _>>().expect("a row")
        };
        for (path, seen, by, ran) in rows {
            if let (Some(seen), Some(ran)) = (&seen, &ran)
                && seen != ran
            {
                self.broken.push(format!("{path}: {seen} was approved, {ran} ran"));
            }
            if seen.is_some() && by == starter {
                self.broken.push(format!("{path}: the starter approved it"));
            }
        }
    }
}

/// A yes at a gate: the path, what was seen, by whom, and what ran.
type Decision = (String, Option<String>, Option<String>, Option<String>);
