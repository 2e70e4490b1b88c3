//! Invariants of the stored data and of the calls in flight.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Millis, Run, Started};
use steprail_engine::kernel::CallOrder;
use steprail_engine::{RunId, RunStatus};

use super::Sim;
use super::common::audit::{Approval, audit};
use super::common::invariants::violations;

impl Sim {
    /// Checks all invariants.
    pub(super) fn check(&mut self) {
        let found = self.read(audit);
        self.violations.extend(found);
        for run in self.all_runs() {
            let events = self.events(run);
            let Some((_, Event::RunStarted { definition, .. })) = events.first() else { continue };
            let plan = &self.plans[&**definition];
            let found = violations(plan, &self.bench.tools, &events);
            self.violations.extend(found.into_iter().map(|violation| format!("{definition}: {violation}")));
            self.check_approvals(run);
            self.check_results(run, &events);
            self.check_fold(run, &events);
            self.check_values(run, &events);
        }
        self.check_calls_in_flight();
        self.check_reused_results();
        for run in &self.runs {
            if self.events(*run).is_empty() {
                self.violations.push(format!("run {run} was acknowledged and is missing"));
            }
        }
    }

    /// The state in memory is the fold of the log, at the boundaries of slices too.
    fn check_fold(&mut self, run: RunId, events: &[(Millis, Event)]) {
        let Some((_, Event::RunStarted { definition, .. })) = events.first() else { return };
        let plan = &self.plans[&**definition];
        let mut folded = Run::default();
        events.iter().for_each(|(_, event)| folded.apply(plan, event));
        let state = self.bench.kernel().inspect(run).ok().flatten();
        if state.as_ref() != Some(&folded) {
            self.violations.push(format!("run {run}: the state is {state:?}, but the log says {folded:?}"));
        }
        if !folded.has_future() {
            self.violations.push(format!("run {run}: can never continue: {folded:?}"));
        }
    }

    /// The values of `let` steps follow from the log, and never change: the time is that of the event, UUIDs that of the
    /// attempt.
    fn check_values(&mut self, run: RunId, events: &[(Millis, Event)]) {
        let outputs = self.read(|tables| tables.outputs(run));
        let outputs: HashMap<(u32, u32), String> =
            outputs.into_iter().map(|(n, attempt, output)| ((n, attempt), output)).collect();
        let mut computed = BTreeSet::new();
        for (at, event) in events {
            match event {
                Event::StepStarted { step, place, .. } if &*place.kind == "let" => {
                    computed.insert(step.n);
                }
                Event::StepCompleted { step, from: None, .. } if computed.contains(&step.n) => {
                    let Some(output) = outputs.get(&(step.n, step.attempt)) else { continue };
                    let known = self.values.entry((run, step.n)).or_insert_with(|| output.clone());
                    if known != output {
                        self.violations.push(format!("{}: {known} became {output}", step.path));
                    }
                    if let Some(problem) = wrong_value(run, *at, (step.n, step.attempt), output) {
                        self.violations.push(format!("{}: {problem}", step.path));
                    }
                }
                _ => {}
            }
        }
    }

    /// Calls in flight according to the log are in flight in the simulation.
    fn check_calls_in_flight(&mut self) {
        if !self.backlog.is_empty() {
            return;
        }
        for run in self.unfinished() {
            let Some(state) = self.bench.kernel().inspect(run).ok().flatten() else { continue };
            if state.status() == RunStatus::Interrupted {
                continue;
            }
            for (_, live) in state.calls() {
                let matches = |order: &CallOrder| {
                    order.run == run && order.path == live.path && order.attempt == live.attempt
                };
                if !self.bench.calls.values().any(matches) {
                    self.violations.push(format!("{}: waits for a call that is not in flight", live.path));
                }
            }
        }
    }

    /// A completed step has the result of its own attempt.
    pub(super) fn check_results(&mut self, run: RunId, events: &[(Millis, Event)]) {
        let called = events.iter().filter_map(|(_, event)| match event {
            Event::StepStarted { step, what: Started::Call { .. }, .. } => Some(step.n),
            _ => None,
        });
        let called: BTreeSet<u32> = called.collect();
        for (_, event) in events {
            let Event::StepCompleted { step, from: None, .. } = event else { continue };
            let answer = (run, step.path.to_string(), step.attempt);
            if called.contains(&step.n) && !self.answered.contains(&answer) {
                self.violations.push(format!(
                    "{}: attempt {} has the result of another attempt",
                    step.path, step.attempt
                ));
            }
        }
    }

    /// Results that are reused by an idempotency key belong to the same user.
    fn check_reused_results(&mut self) {
        let (mut stored, mut reused) = (BTreeSet::new(), Vec::new());
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
                            reused.push(result);
                        } else if *claimed {
                            stored.insert(result);
                        }
                    }
                    _ => {}
                }
            }
        }
        let foreign = reused.into_iter().filter(|result| !stored.contains(result));
        self.violations.extend(foreign.map(|(user, tool, key)| {
            format!("{user} got the result of {tool} of another user for key {key}")
        }));
    }

    /// The arguments that were sent are those that were approved, and the starter of a run did not approve.
    fn check_approvals(&mut self, run: RunId) {
        let starter = self.events(run).into_iter().find_map(|(_, event)| match event {
            Event::RunStarted { by, .. } => Some(by.to_string()),
            _ => None,
        });
        for Approval { path, args: seen, by, sent } in self.read(|tables| tables.approvals(run)) {
            if let (Some(seen), Some(sent)) = (&seen, &sent)
                && seen != sent
            {
                self.violations.push(format!("{path}: {seen} was approved, but {sent} was sent"));
            }
            if seen.is_some() && by == starter {
                self.violations.push(format!("{path}: approved by the starter of the run"));
            }
        }
    }
}

/// The first value of a generated `let` step that does not follow from its event.
fn wrong_value(run: RunId, at: Millis, attempt: (u32, u32), output: &str) -> Option<String> {
    let output: Value = serde_json::from_str(output).expect("JSON");
    let time = |at: Millis| jiff::Timestamp::from_millisecond(at).expect("a time").to_string();
    let uuids: Vec<String> = (0..3).map(|count| uuid(run, attempt, count)).collect();
    let expected = [
        ("at", Value::from(time(at))),
        ("later", Value::from(time(at + 90 * 60_000))),
        ("id", Value::from(uuids[0].as_str())),
        ("ids", Value::from(&uuids[1..])),
    ];
    let wrong =
        expected.into_iter().find(|(name, value)| output.get(*name).is_some_and(|found| found != value));
    wrong.map(|(name, value)| format!("`{name}` is {} instead of {value}", output[name]))
}

/// The UUID with a number, as the documentation describes it.
fn uuid(run: RunId, (n, attempt): (u32, u32), count: u32) -> String {
    let mut seed = format!("steprail uuid\n{run}\n{n}\n{attempt}\n").into_bytes();
    seed.extend(count.to_be_bytes());
    let mut bytes = Hash::of(&seed).0;
    bytes[6] = 0x80 | bytes[6] & 0x0f;
    bytes[8] = 0x80 | bytes[8] & 0x3f;
    let digits: String = bytes[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}
