//! Runs a kernel until no timer and no action is left. An oracle answers its calls, gates and waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use steprail_core::run::{Event, Failure, FailureKind, Millis, Payload, Phase, Resolution, Started};
use steprail_engine::kernel::{CallId, CallOrder, Command, Handled, Notification, Request, Signal};
use steprail_engine::{DecisionRequest, Error, Limits, Principal, RunId};
use steprail_store::sqlite::SqliteStore;

use super::audit::audit;
use super::oracle::{APPROVER, Called, OnCancel, Oracle, Outcome, Reaction, RunTrace, Verdict};
use super::shared::Shared;
use super::{Bench, NoTools};

/// A kernel, and the scheduled actions of its environment.
pub(crate) struct Player {
    pub bench: Bench,
    pub store: Arc<Mutex<SqliteStore>>,
    oracle: Oracle,
    /// Prefix of the paths of each run: the path of its `workflow` step in the parent run.
    names: BTreeMap<RunId, String>,
    ends: BTreeMap<RunId, Outcome>,
    /// Scheduled actions by time. The second number orders actions at the same time.
    plans: BTreeMap<(Millis, u64), WorldAction>,
    calls: BTreeMap<CallId, Called>,
    /// Calls that were cancelled.
    told: BTreeSet<CallId>,
    /// Runs that started. A step that is cancelled at once does not start its child run.
    begun: BTreeSet<RunId>,
    count: u64,
    /// Id of the last event that was observed.
    seen: i64,
}

/// An action of the environment.
#[derive(Debug, Clone)]
enum WorldAction {
    EndCall { id: CallId, outcome: Result<Value, Failure> },
    Decide { run: RunId, path: String },
    Signal { run: RunId, path: String, event: String, payload: Value },
    Resolve { run: RunId, path: String, verdict: Verdict },
}

impl Player {
    pub(crate) fn new(oracle: Oracle, definitions: &[&str], limits: Limits) -> Self {
        let store = Arc::new(Mutex::new(SqliteStore::in_memory().expect("a database")));
        let tools = NoTools::default();
        let shared = Box::new(Shared::new(store.clone()));
        let mut bench = Bench::new(shared, tools, limits, oracle.seed);
        definitions.iter().for_each(|definition| bench.define(definition));
        Self {
            bench,
            store,
            oracle,
            names: BTreeMap::new(),
            ends: BTreeMap::new(),
            plans: BTreeMap::new(),
            calls: BTreeMap::new(),
            told: BTreeSet::new(),
            begun: BTreeSet::new(),
            count: 0,
            seen: 0,
        }
    }

    /// Starts a run and continues until no timer and no action is left. Returns its trace, or a violated invariant.
    pub(crate) fn play(&mut self, name: &str, inputs: Value) -> Result<RunTrace, String> {
        let (run, answer, _) = self.bench.start(name, inputs);
        if !matches!(answer, Some(Ok(_))) {
            return Err(format!("the run did not start: {answer:?}"));
        }
        self.names.insert(run, String::new());
        self.observe()?;
        while self.step()? {}
        let outcome = self.ends.get(&run).cloned().ok_or_else(|| "the run is stalled".to_owned())?;
        if let Some(open) = self.begun.iter().find(|run| !self.ends.contains_key(run)) {
            return Err(format!("run {open} is stalled"));
        }
        let broken = audit(self.store.lock().expect("the store").connection());
        if !broken.is_empty() {
            return Err(broken.join("\n"));
        }
        let mut calls: Vec<Called> = self.calls.values().cloned().collect();
        calls.sort();
        Ok(RunTrace { outcome, calls, steps: self.steps() })
    }

    /// Returns the status of each step execution that was not cancelled.
    fn steps(&self) -> BTreeMap<String, &'static str> {
        let store = self.store.lock().expect("the store");
        let sql = "SELECT r.run_id, s.path, s.status FROM workflow_step_runs s
                   JOIN workflow_runs r ON r.id = s.run_id ORDER BY s.n, s.attempt";
        let mut statement = store.connection().prepare_cached(sql).expect("a statement");
        let rows = statement.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        });
        let mut steps = BTreeMap::new();
        for row in rows.expect("rows") {
            let (run, path, status) = row.expect("a row");
            let path = self.name(run.parse().expect("a run id"), &path);
            match ["done", "failed", "skipped"].into_iter().find(|known| **known == status) {
                Some(status) => drop(steps.insert(path, status)),
                None => drop(steps.remove(&path)),
            }
        }
        steps
    }

    /// Fires the next timer or does the next action. Returns false if nothing is left.
    fn step(&mut self) -> Result<bool, String> {
        let timer = self.bench.kernel().next_timer().map_err(|error| error.to_string())?;
        let next = self.plans.first_key_value().map(|((at, _), _)| *at);
        match (timer, next) {
            (Some(timer), next) if next.is_none_or(|next| timer <= next) => {
                self.bench.now = self.bench.now.max(timer);
                faultless(&self.bench.notify(Notification::TimersDue))?;
            }
            (_, Some(_)) => {
                let Some(((at, _), action)) = self.plans.pop_first() else { return Ok(false) };
                self.bench.now = self.bench.now.max(at);
                self.act(action)?;
            }
            _ => return Ok(false),
        }
        self.observe()?;
        Ok(true)
    }

    fn act(&mut self, action: WorldAction) -> Result<(), String> {
        match action {
            WorldAction::EndCall { id, outcome } => faultless(&self.bench.end_call(id, outcome)),
            WorldAction::Decide { run, path } => self.decide(run, &path),
            WorldAction::Signal { run, path, event, payload } => {
                let inspected = self.bench.kernel().inspect(run).map_err(|error| error.to_string())?;
                let live = inspected.as_ref().and_then(|run| run.find(&path));
                if live.is_some_and(|(_, live)| matches!(live.phase, Phase::Waiting { .. })) {
                    let signal = Signal { event, payload, run: Some(run) };
                    faultless(&self.bench.ask(|reply| Request::Signal(signal, reply)).1)?;
                }
                Ok(())
            }
            WorldAction::Resolve { run, path, verdict } => {
                let resolution = match verdict {
                    Verdict::Happened(output) => Resolution::Happened(Payload::new(output)),
                    Verdict::Retry => Resolution::Retry,
                    Verdict::Skip => Resolution::Skip,
                    Verdict::Fail => Resolution::Fail,
                };
                let by = Principal::user(APPROVER);
                let command = Command::Resolve { run, path, resolution, digest: None, by };
                faultless(&self.bench.command(command).1)
            }
        }
    }

    /// Decides at a gate. If the first user is not allowed to, another one decides.
    fn decide(&mut self, run: RunId, path: &str) -> Result<(), String> {
        let decision = self.oracle.decision(&self.name(run, path));
        for by in [decision.by, APPROVER] {
            let (answer, handled) = self.bench.command(Command::Decide {
                run,
                path: path.to_owned(),
                by: Principal::user(by),
                decision: Box::new(DecisionRequest {
                    approved: decision.approved,
                    reason: decision.reason.clone(),
                    ..DecisionRequest::default()
                }),
            });
            faultless(&handled)?;
            if !matches!(answer, Some(Err(Error::Denied(_)))) {
                return Ok(());
            }
        }
        Err(format!("no user can decide at `{path}`"))
    }

    fn name(&self, run: RunId, path: &str) -> String {
        format!("{}{path}", self.names.get(&run).map_or("?", String::as_str))
    }

    fn plan(&mut self, at: Millis, action: WorldAction) {
        self.count += 1;
        self.plans.insert((at, self.count), action);
    }

    /// Reads new events and calls of the kernel, and schedules the reactions of the environment.
    fn observe(&mut self) -> Result<(), String> {
        for (run, event) in self.new_events() {
            self.notice(run, &event);
        }
        let is_known = |id: &CallId| self.calls.contains_key(id) || self.told.contains(id);
        let new = self.bench.calls.values().filter(|order| !is_known(&order.id));
        for order in new.cloned().collect::<Vec<_>>() {
            self.called(&order);
        }
        for id in std::mem::take(&mut self.bench.stopped) {
            self.cancel_call(id);
        }
        let over = self.ends.len() == self.begun.len();
        let timer = self.bench.kernel().next_timer().map_err(|error| error.to_string())?;
        match timer {
            Some(timer) if over => Err(format!("all runs ended, but a timer is due at {timer}")),
            _ => Ok(()),
        }
    }

    fn notice(&mut self, run: RunId, event: &Event) {
        let now = self.bench.now;
        match event {
            Event::StepStarted { step, what: Started::Workflow { run: child, .. }, .. } => {
                let name = format!("{}@{}/", self.name(run, &step.path), step.attempt);
                self.names.insert(child.parse().expect("a run id"), name);
            }
            Event::RunStarted { .. } => drop(self.begun.insert(run)),
            Event::StepStarted { step, what: Started::Wait { event, correlate, signal: None }, .. } => {
                let after = self.oracle.signal(&self.name(run, &step.path));
                let payload = self.oracle.payload(event, correlate.as_ref());
                let (path, event) = (step.path.to_string(), event.to_string());
                self.plan(now + after, WorldAction::Signal { run, path, event, payload });
            }
            Event::ApprovalRequested { step, .. } => {
                let after = self.oracle.decision(&self.name(run, &step.path)).after;
                self.plan(now + after, WorldAction::Decide { run, path: step.path.to_string() });
            }
            Event::StepUncertain { step, .. } => {
                let (after, verdict) = self.oracle.verdict(&self.name(run, &step.path), step.attempt);
                self.plan(now + after, WorldAction::Resolve { run, path: step.path.to_string(), verdict });
            }
            event => self.notice_end(run, event),
        }
    }

    fn notice_end(&mut self, run: RunId, event: &Event) {
        let outcome = match event {
            Event::RunCompleted { .. } => {
                let output = self.bench.kernel().result(run).expect("the store").expect("an output");
                Outcome::Completed(output.value().clone())
            }
            Event::RunFailed { error } => Outcome::Failed(error.clone()),
            Event::RunCancelled { .. } => Outcome::Cancelled,
            _ => return,
        };
        self.ends.insert(run, outcome);
    }

    fn called(&mut self, order: &CallOrder) {
        let called = Called {
            at: self.bench.now,
            path: self.name(order.run, &order.path),
            attempt: order.attempt,
            tool: order.tool.to_string(),
            args: order.args.json().to_owned(),
        };
        let reaction = self.reaction(&called);
        let at = self.bench.now + reaction.takes;
        self.plan(at, WorldAction::EndCall { id: order.id, outcome: reaction.outcome });
        self.calls.insert(order.id, called);
    }

    /// Returns the behaviour of a tool for a call. It can differ after each rejected call.
    fn reaction(&self, called: &Called) -> Reaction {
        let same = |other: &&Called| {
            (&other.path, other.attempt, &other.tool) == (&called.path, called.attempt, &called.tool)
        };
        let refusals = self.calls.values().filter(same).filter(|other| other.at < called.at).count();
        let refusals = u32::try_from(refusals).expect("a count");
        self.oracle.reaction(&called.path, (called.attempt, refusals), &called.tool)
    }

    /// Cancels a call. A call that is cancelled at the time of its start does not count as made.
    fn cancel_call(&mut self, id: CallId) {
        let Some(called) = self.calls.get(&id).cloned().filter(|_| self.told.insert(id)) else { return };
        let now = self.bench.now;
        if called.at == now {
            self.calls.remove(&id);
        }
        let reaction = self.reaction(&called);
        let stopped = Failure::new(FailureKind::Cancelled, "stopped");
        let (at, outcome) = match reaction.told {
            OnCancel::Ignores => return,
            OnCancel::Stops(after) => (now + after, Err(stopped)),
            OnCancel::Ends(after) => (now + after, reaction.outcome),
        };
        self.plans
            .retain(|_, action| !matches!(action, WorldAction::EndCall { id: other, .. } if *other == id));
        self.plan(at, WorldAction::EndCall { id, outcome });
    }

    /// Returns all events as text, for debugging.
    pub(crate) fn log(&self) -> String {
        let store = self.store.lock().expect("the store");
        let sql = "SELECT r.id || ' +' || (e.at - ?1) || ' ' || e.body FROM workflow_events e
                   JOIN workflow_runs r ON r.id = e.run_id ORDER BY e.id";
        let mut statement = store.connection().prepare(sql).expect("a statement");
        let lines = statement.query_map([super::EPOCH], |row| row.get::<_, String>(0)).expect("rows");
        lines.map(|line| line.expect("a row") + "\n").collect()
    }

    fn new_events(&mut self) -> Vec<(RunId, Event)> {
        let store = self.store.lock().expect("the store");
        let sql =
            "SELECT e.id, r.run_id, e.body FROM workflow_events e JOIN workflow_runs r ON r.id = e.run_id
                   WHERE e.id > ?1 ORDER BY e.id";
        let mut statement = store.connection().prepare_cached(sql).expect("a statement");
        let rows = statement.query_map([self.seen], |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        });
        let mut events = Vec::new();
        for row in rows.expect("rows") {
            let (id, run, body) = row.expect("a row");
            self.seen = id;
            events.push((run.parse().expect("a run id"), serde_json::from_str(&body).expect("an event")));
        }
        events
    }
}

fn faultless(handled: &Handled) -> Result<(), String> {
    match &handled.fault {
        Some(fault) => Err(format!("a fault: {fault}")),
        None => Ok(()),
    }
}
