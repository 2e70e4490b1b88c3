//! Seeded simulation: random workflows, random outcomes, storage that fails, a process that dies between any
//! two writes. After each step the promises are checked; at the end everything must come to an end.
//!
//! `STEPRAIL_SEED=7 cargo test --test sim` plays one seed and tells what happened.

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use common::audit::audit;
use common::laws::broken_laws;
use common::shared::{Faults, Shared};
use common::{Bench, NoTools};
use serde_json::{Value, json};
use steprail_core::plan::{Hash, Plan};
use steprail_core::run::{
    Edit, Event, Failure, FailureKind, Intervention, Millis, Payload, Phase, Question, Report, Resolution,
    Started,
};
use steprail_engine::kernel::{
    Action, Answer, CallId, CallOrder, Effect, Handled, Interrupt, Reply, Request, StartOf, StartRun,
};
use steprail_engine::{Error, Limits, Principal, RunId, RunStatus, Traits};
use steprail_store::StoreError;
use steprail_store::sqlite::SqliteStore;

/// Seeds that are played: few with every test run, many by `just sim`.
const SEEDS: u64 = 400;
/// Seeds after which a long run says how far it is.
const TOLD_EVERY: u64 = 2_000;
/// Things that happen in one simulation before faults stop.
const TURNS: u32 = 60;
/// Turns that everything may take to come to an end once nothing fails any more.
const QUIET_TURNS: u32 = 3_000;

#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = variable("STEPRAIL_SEED") {
        let sim = Sim::play(seed, true);
        println!("{}", sim.story);
        assert!(sim.broken.is_empty(), "{:#?}", sim.broken);
        return;
    }
    let seeds = variable("STEPRAIL_SEEDS").unwrap_or(SEEDS);
    let first = variable("STEPRAIL_FIRST").unwrap_or(1);
    let mut tally = Tally::default();
    for seed in first..first + seeds {
        if seeds > TOLD_EVERY && seed > first && (seed - first).is_multiple_of(TOLD_EVERY) {
            println!("{} of {seeds} seeds", seed - first);
        }
        let sim = Sim::play(seed, false);
        tally.add(&sim);
        assert!(sim.broken.is_empty(), "seed {seed}: {:#?}\nreplay with: just sim {seed}", sim.broken);
    }
    println!("{tally:?}");
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 1..20 {
        assert_eq!(Sim::play(seed, true).story, Sim::play(seed, true).story);
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// What a number of simulations came to.
#[derive(Debug, Default)]
struct Tally {
    seeds: u64,
    runs: usize,
    calls: usize,
    crashes: u64,
    faults: u64,
    uncertain: u64,
    simulated_days: i64,
}

impl Tally {
    fn add(&mut self, sim: &Sim) {
        self.seeds += 1;
        self.runs += sim.runs.len();
        self.calls += sim.made.len();
        self.crashes += sim.crashes;
        self.faults += sim.faults;
        self.uncertain += sim.uncertain;
        self.simulated_days += (sim.bench.now - common::EPOCH) / 86_400_000;
    }
}

struct Sim {
    rng: fastrand::Rng,
    bench: Bench,
    store: Arc<Mutex<SqliteStore>>,
    plan_of_faults: Arc<Mutex<Faults>>,
    names: Vec<(String, Vec<Value>)>,
    plans: HashMap<String, Plan>,
    runs: Vec<RunId>,
    /// Requests that a failed store left behind.
    backlog: Vec<Request>,
    /// Calls that were made: run, path, attempt, tool.
    made: BTreeSet<(RunId, String, u32, String)>,
    /// Calls that were answered with a result.
    answered: BTreeSet<(RunId, String, u32)>,
    /// Calls that do not stop when they are told to.
    stubborn: BTreeSet<CallId>,
    crashes: u64,
    faults: u64,
    uncertain: u64,
    broken: Vec<String>,
    story: String,
    tells: bool,
    quiet: bool,
}

impl Sim {
    fn play(seed: u64, tells: bool) -> Self {
        let mut sim = Self::new(seed, tells);
        for _ in 0..TURNS {
            sim.turn();
            if !sim.broken.is_empty() {
                return sim;
            }
        }
        sim.end_well();
        sim
    }

    fn new(seed: u64, tells: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let store = Arc::new(Mutex::new(SqliteStore::in_memory().expect("a database")));
        let faults = Arc::new(Mutex::new(Faults::default()));
        let tools = NoTools(BTreeMap::from([
            ("demo__read".to_owned(), Traits { read_only: true, ..Traits::default() }),
            ("demo__destroy".to_owned(), Traits { destructive: true, ..Traits::default() }),
        ]));
        let narrow = Limits {
            calls: rng.u32(1..4),
            calls_per_definition: rng.u32(1..4),
            calls_per_server: 3,
            ..Limits::default()
        };
        let limits = if rng.u8(0..4) == 0 { narrow } else { Limits::default() };
        let shared = Shared::with_faults(store.clone(), faults.clone());
        let bench = Bench::new(Box::new(shared), tools, limits, seed);
        let mut sim = Self {
            rng,
            bench,
            store,
            plan_of_faults: faults,
            names: Vec::new(),
            plans: HashMap::new(),
            runs: Vec::new(),
            backlog: Vec::new(),
            made: BTreeSet::new(),
            answered: BTreeSet::new(),
            stubborn: BTreeSet::new(),
            crashes: 0,
            faults: 0,
            uncertain: 0,
            broken: Vec::new(),
            story: String::new(),
            tells,
            quiet: false,
        };
        sim.define_some();
        sim
    }

    /// Workflows to run: from the scenarios, and made up.
    fn define_some(&mut self) {
        let scenarios = common::library::scenarios();
        let mut chosen = Vec::new();
        if self.rng.bool() {
            chosen.push(common::library::made_up(&mut self.rng));
        }
        if chosen.is_empty() || self.rng.bool() {
            chosen.push(scenarios[self.rng.usize(0..scenarios.len())].clone());
        }
        for (definitions, inputs) in chosen {
            for (at, text) in definitions.iter().enumerate() {
                let loaded =
                    steprail_core::load(&steprail_core::source::Source::new("definition", text.as_str()));
                let plan = loaded.plan.expect("a plan");
                self.bench.define(text);
                if at == 0 {
                    self.names.push((plan.name.to_string(), inputs.clone()));
                }
                self.plans.insert(plan.name.to_string(), plan);
            }
        }
    }

    fn tell(&mut self, text: std::fmt::Arguments<'_>) {
        if self.tells {
            writeln!(self.story, "{text}").expect("text");
        }
    }

    /// Something happens.
    fn turn(&mut self) {
        match self.rng.u32(0..100) {
            0..12 => self.start_run(),
            12..55 => self.end_some_call(),
            55..70 => self.let_time_pass(),
            70..84 => self.somebody_acts(),
            84..88 => self.plan_fault(),
            88..94 => self.plan_death(),
            94..97 => self.die_now(),
            97 => self.report_some_call(),
            _ => self.try_backlog(),
        }
        if self.rng.u8(0..6) == 0 {
            self.check();
        }
    }

    fn start_run(&mut self) {
        if self.runs.len() >= 4 {
            return;
        }
        let (name, inputs) = self.names[self.rng.usize(0..self.names.len())].clone();
        let inputs =
            if inputs.is_empty() { json!({}) } else { inputs[self.rng.usize(0..inputs.len())].clone() };
        let id = self.bench.new_id();
        let start = StartRun {
            workflow: StartOf::Named { name: name.clone(), version: None },
            inputs,
            principal: Principal::user(if self.rng.bool() { "ann" } else { "tom" }),
            request_key: None,
            id,
        };
        self.tell(format_args!("start {name} as {id}"));
        if let Some(Ok(Answer::Started(id))) = self.ask(Action::Start(Box::new(start))) {
            self.runs.push(id);
        }
    }

    /// One of the calls in flight ends, or is told to stop and does.
    fn end_some_call(&mut self) {
        let ids: Vec<CallId> = self.bench.calls.keys().copied().collect();
        let Some(id) = (!ids.is_empty()).then(|| ids[self.rng.usize(0..ids.len())]) else { return };
        let order = self.bench.calls[&id].clone();
        let told_to_stop = self.bench.stopped.contains(&id);
        if told_to_stop && (self.stubborn.contains(&id) && !self.quiet) {
            return;
        }
        let outcome = if self.quiet { Ok(answer(&order)) } else { self.outcome(&order, told_to_stop) };
        self.tell(format_args!("end {} ({}): {outcome:?}", order.path, order.attempt));
        self.bench.calls.remove(&id);
        self.bench.stopped.retain(|stopped| *stopped != id);
        if outcome.is_ok() {
            self.answered.insert((order.run, order.path.to_string(), order.attempt));
        }
        self.request(Action::CallEnded { id, outcome: outcome.map(Payload::new) });
    }

    /// One of the calls in flight tells how far it is, or under which name it goes on by itself.
    fn report_some_call(&mut self) {
        let ids: Vec<CallId> = self.bench.calls.keys().copied().collect();
        let Some(id) = (!ids.is_empty()).then(|| ids[self.rng.usize(0..ids.len())]) else { return };
        let report = if self.rng.bool() {
            Report::Task { id: format!("task-{}", self.rng.u32(..)).into() }
        } else {
            Report::Progress { progress: 1.0, total: None, message: None }
        };
        self.tell(format_args!("report of {id:?}: {report:?}"));
        self.request(Action::CallReported { id, report });
    }

    fn outcome(&mut self, order: &CallOrder, told_to_stop: bool) -> Result<Value, Failure> {
        // What a tool asked once it does not ask again; what was made available is there.
        let fresh = order.resumes.is_none();
        let kind = match self.rng.u32(0..100) {
            0..66 => return Ok(answer(order)),
            66..70 if fresh && !told_to_stop => {
                let form = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
                return Err(Failure::asks(Question { message: "what?".into(), form, state: json!("s") }));
            }
            66..70 => return Ok(answer(order)),
            70..78 => FailureKind::ToolError,
            78..84 => FailureKind::Transport,
            84..92 => FailureKind::Lost,
            92..94 => FailureKind::Permission,
            94..96 if fresh => FailureKind::NotFound,
            94..96 => return Ok(answer(order)),
            _ => FailureKind::Timeout,
        };
        let kind = if told_to_stop { FailureKind::Cancelled } else { kind };
        let failure = Failure::new(kind, "it went wrong");
        Err(if self.rng.u8(0..4) == 0 { failure.transient() } else { failure })
    }

    fn let_time_pass(&mut self) {
        let due = self.bench.kernel().next_alarm().ok().flatten();
        let until = match due {
            Some(due) if self.rng.u8(0..4) != 0 => due,
            _ => self.bench.now + self.rng.i64(1..5_000),
        };
        self.bench.now = self.bench.now.max(until);
        self.tell(format_args!("time {}", self.bench.now - common::EPOCH));
        if due.is_some_and(|due| due <= self.bench.now) {
            self.request(Action::FireAlarms);
        }
    }

    fn somebody_acts(&mut self) {
        let Some(run) = self.some_run() else { return };
        let Some((path, phase)) = self.some_step(run) else { return };
        let user = ["ann", "tom", "bob", "eve"][self.rng.usize(0..4)];
        let by = Principal::user(user);
        let action = match (self.rng.u32(0..20), phase) {
            (0, _) => Action::Cancel { run, by: by.id, reason: "asked to".to_owned() },
            (1, _) => Action::Pause { run, by: by.id },
            (2..5, _) => {
                Action::Resume { run, by: by.id, force: Vec::new(), expected_hash: None, strict: false }
            }
            (5, _) => Action::Intervene { run, intervention: Intervention::Skip { path: path.into() }, by },
            (6, _) => {
                let output = Payload::new(json!("by hand"));
                Action::Intervene {
                    run,
                    intervention: Intervention::SupplyResult { path: path.into(), output },
                    by,
                }
            }
            (8, _) => {
                let edit = Edit { id: self.some_step_id(run), value: json!({ "text": "set", "count": 7 }) };
                Action::Intervene { run, intervention: Intervention::SetValue(edit), by }
            }
            (7, _) => {
                let args = json!({ "edited": self.rng.u8(..) });
                Action::Intervene {
                    run,
                    intervention: Intervention::SetArguments { path: path.into(), args },
                    by,
                }
            }
            (_, Phase::Gate { .. }) => {
                if self.rng.u8(0..4) == 0 {
                    return self.decide_on_something_else(run, &path);
                }
                let approved = self.rng.u8(0..4) != 0;
                let answer = self.rng.bool().then(|| json!({ "a": "b" }));
                Action::Decide { run, path, approved, by, reason: None, digest: None, answer }
            }
            (_, Phase::Uncertain) => {
                let resolution = match self.rng.u8(0..4) {
                    0 => Resolution::Happened(Payload::new(json!({ "text": "T", "count": 1 }))),
                    1 => Resolution::Skip,
                    2 => Resolution::Fail,
                    _ => Resolution::Retry,
                };
                Action::Resolve { run, path, resolution, by }
            }
            (_, Phase::Waiting { event, correlate }) => Action::Signal {
                event: event.into(),
                payload: correlate.unwrap_or(json!({ "n": 1 })),
                run: Some(run),
            },
            _ => return,
        };
        self.tell(format_args!("somebody: {action:?}"));
        self.ask(action);
    }

    /// Somebody decides on what they saw, which is not what would run.
    fn decide_on_something_else(&mut self, run: RunId, path: &str) {
        let digest = Some(Hash([7; 32]));
        let by = Principal::user("bob");
        let action = Action::Decide {
            run,
            path: path.to_owned(),
            approved: true,
            by,
            reason: None,
            digest,
            answer: None,
        };
        if let Some(Ok(_)) = self.ask(action) {
            self.broken.push(format!("{path}: approved by somebody who saw something else"));
        }
    }

    fn some_step_id(&mut self, run: RunId) -> Option<Box<str>> {
        let events = self.events(run);
        let Some((_, Event::RunStarted { definition, .. })) = events.first() else { return None };
        let steps = &self.plans[&**definition].steps;
        Some(steps[self.rng.usize(0..steps.len())].id.clone())
    }

    fn some_run(&mut self) -> Option<RunId> {
        (!self.runs.is_empty()).then(|| self.runs[self.rng.usize(0..self.runs.len())])
    }

    fn some_step(&mut self, run: RunId) -> Option<(String, Phase)> {
        let state = self.bench.kernel().inspect(run).ok()??;
        let live: Vec<_> = state.live().values().collect();
        let step = (!live.is_empty()).then(|| live[self.rng.usize(0..live.len())])?;
        Some((step.path.to_string(), step.phase.clone()))
    }

    /// The store will fail, for a while.
    fn plan_fault(&mut self) {
        self.faults += 1;
        let mut faults = self.plan_of_faults.lock().expect("the faults");
        *faults = Faults {
            after: Some(self.rng.u32(0..6)),
            times: self.rng.u32(1..8),
            error: Some(StoreError::Full("simulated".to_owned())),
            ..Faults::default()
        };
    }

    /// The process will die at one of the next writes, or right after a commit whose answer it never gets.
    fn plan_death(&mut self) {
        let mut faults = self.plan_of_faults.lock().expect("the faults");
        *faults = Faults {
            after: Some(self.rng.u32(0..8)),
            times: u32::MAX,
            error: Some(StoreError::Io("the process is dead".to_owned())),
            torn: self.rng.bool(),
            ..Faults::default()
        };
    }

    fn die_now(&mut self) {
        self.crashes += 1;
        *self.plan_of_faults.lock().expect("the faults") = Faults::default();
        self.backlog.clear();
        self.stubborn.clear();
        let store = self.bench.die();
        self.tell(format_args!("dead"));
        self.bench.boot(store);
        if !self.quiet && self.rng.u8(0..4) == 0 {
            self.plan_death();
        }
        for interrupt in [Some(Interrupt::Asked), None] {
            self.ask(Action::Recover { after: steprail_store::RunKey(0), interrupt });
        }
        self.check();
    }

    fn try_backlog(&mut self) {
        let backlog = std::mem::take(&mut self.backlog);
        if !backlog.is_empty() {
            self.tell(format_args!("again: {} requests", backlog.len()));
            self.hand_over(backlog);
        }
    }

    fn ask(&mut self, action: Action) -> Option<Result<Answer, Error>> {
        let (reply, mut answer) = Reply::channel();
        self.hand_over(vec![Request { action, reply: Some(reply) }]);
        answer.try_recv().ok()
    }

    fn request(&mut self, action: Action) {
        let mut batch = std::mem::take(&mut self.backlog);
        batch.push(Request { action, reply: None });
        self.hand_over(batch);
    }

    /// The kernel works; then the process may turn out to be dead, and nothing leaves it.
    fn hand_over(&mut self, requests: Vec<Request>) {
        let now = self.bench.now;
        let handled = self.bench.kernel().handle(requests, now);
        let dead = {
            let faults = self.plan_of_faults.lock().expect("the faults");
            faults.tripped && matches!(faults.error, Some(StoreError::Io(_)))
        };
        if dead {
            self.die_now();
            return;
        }
        let skips_effects = !self.quiet && self.rng.u8(0..40) == 0;
        if skips_effects {
            self.tell(format_args!("dead right after a commit"));
            answer_only(&handled);
            self.die_now();
            return;
        }
        self.carry_out(handled);
    }

    fn carry_out(&mut self, handled: Handled) {
        if let Some(fault) = handled.fault {
            self.tell(format_args!("fault: {fault}"));
            if !matches!(fault, StoreError::Full(_)) {
                self.broken.push(format!("the store refused what was decided: {fault}"));
            }
        }
        for effect in handled.effects {
            match effect {
                Effect::Call(order) => self.call(*order),
                Effect::Cancel(id) => self.bench.stopped.push(id),
                Effect::Answer(reply, answer) => reply.send(answer),
                Effect::Notify(_) | Effect::Forget(_) => {}
            }
        }
        let kept = handled.retry.into_iter().filter(|request| !matches!(request.action, Action::FireAlarms));
        self.backlog.extend(kept);
    }

    /// How often the log lets an attempt begin again: after an answer, a tool that was created, a restart.
    fn begun_again(&self, order: &CallOrder) -> u32 {
        let sql = "SELECT count(*) FROM workflow_events e JOIN workflow_runs r ON r.id = e.run_id
                   WHERE r.run_id = ?1 AND e.body ->> '$.step.path' = ?2 AND e.body ->> '$.step.attempt' = ?3
                   AND e.body ->> '$.type' IN ('approval_granted', 'approval_denied', 'tool_created', 'call_resumed')";
        let store = self.store.lock().expect("the store");
        let params = rusqlite::params![order.run.to_string(), &*order.path, order.attempt];
        store.connection().query_row(sql, params, |row| row.get(0)).expect("a count")
    }

    /// A call leaves the process: its intent must be in the store.
    fn call(&mut self, order: CallOrder) {
        self.tell(format_args!(
            "call {} ({}) {} {}",
            order.path,
            order.attempt,
            order.tool,
            order.args.json()
        ));
        let intent: Option<(String, String)> = self
            .store
            .lock()
            .expect("the store")
            .connection()
            .query_row(
                "SELECT s.status, r.status FROM workflow_step_runs s JOIN workflow_runs r ON r.id = s.run_id
                 WHERE r.run_id = ?1 AND s.path = ?2 AND s.attempt = ?3",
                rusqlite::params![order.run.to_string(), &*order.path, order.attempt],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .ok();
        if !matches!(&intent, Some((step, run)) if step == "running" && (run == "running" || run == "paused"))
        {
            self.broken.push(format!("{}: called while the store says {intent:?}", order.path));
        }
        // A probe that was given up only asked what became of the call; it has another tool.
        let same = |other: &CallOrder| {
            other.run == order.run && other.path == order.path && other.tool == order.tool
        };
        let beside = self.bench.calls.values().any(|other| same(other) && !self.abandoned(other));
        if beside {
            self.broken.push(format!("{}: called beside an attempt that has not ended", order.path));
        }
        let again = self.begun_again(&order);
        let made = (order.run, order.path.to_string(), order.attempt, format!("{}/{again}", order.tool));
        if !self.made.insert(made) {
            self.broken.push(format!("{}: attempt {} was called twice", order.path, order.attempt));
        }
        if self.rng.u8(0..3) == 0 {
            self.stubborn.insert(order.id);
        }
        self.bench.calls.insert(order.id, order);
    }

    /// Whether the log says that a call was given up.
    fn abandoned(&self, order: &CallOrder) -> bool {
        self.events(order.run).iter().any(|(_, event)| match event {
            Event::CallAbandoned { step } => step.path == order.path && step.attempt == order.attempt,
            _ => false,
        })
    }

    fn events(&self, run: RunId) -> Vec<(Millis, Event)> {
        let store = self.store.lock().expect("the store");
        let mut statement = store
            .connection()
            .prepare_cached(
                "SELECT at, body FROM workflow_events WHERE run_id = (SELECT id FROM workflow_runs WHERE run_id = ?1)
                 ORDER BY seq",
            )
            .expect("a statement");
        let rows = statement
            .query_map([run.to_string()], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))
            .expect("rows");
        rows.map(|row| row.expect("a row"))
            .map(|(at, body)| (at, serde_json::from_str(&body).expect("an event")))
            .collect()
    }

    /// Every promise, on everything that is stored.
    fn check(&mut self) {
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

    fn all_runs(&self) -> Vec<RunId> {
        let store = self.store.lock().expect("the store");
        let mut statement =
            store.connection().prepare_cached("SELECT run_id FROM workflow_runs").expect("a statement");
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
        rows.map(|row| row.expect("a row").parse().expect("a run id")).collect()
    }

    /// Nothing fails any more and everybody answers: every run must come to an end.
    fn end_well(&mut self) {
        self.quiet = true;
        *self.plan_of_faults.lock().expect("the faults") = Faults::default();
        for _ in 0..QUIET_TURNS {
            self.try_backlog();
            if !self.broken.is_empty() || self.unfinished().is_empty() {
                break;
            }
            if self.bench.calls.is_empty() {
                self.move_on();
            } else {
                self.end_some_call();
            }
        }
        self.check();
        for run in self.unfinished() {
            let state = self.bench.kernel().inspect(run).ok().flatten();
            self.broken.push(format!("run {run} never ends: {state:?}"));
        }
    }

    fn unfinished(&self) -> Vec<RunId> {
        let store = self.store.lock().expect("the store");
        let sql = "SELECT run_id FROM workflow_runs WHERE completed_at IS NULL ORDER BY id";
        let mut statement = store.connection().prepare_cached(sql).expect("a statement");
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
        rows.map(|row| row.expect("a row").parse().expect("a run id")).collect()
    }

    /// No call is in flight: humans answer, events arrive, time passes.
    fn move_on(&mut self) {
        for run in self.unfinished() {
            let Some(state) = self.bench.kernel().inspect(run).ok().flatten() else { continue };
            let resume = Action::Resume {
                run,
                by: "bob".to_owned(),
                force: Vec::new(),
                expected_hash: None,
                strict: false,
            };
            self.ask(resume);
            for live in state.live().values() {
                let path = live.path.to_string();
                let by = Principal::user("bob");
                let action = match &live.phase {
                    Phase::Gate { .. } => Action::Decide {
                        run,
                        path,
                        approved: true,
                        by,
                        reason: None,
                        digest: None,
                        answer: Some(json!({ "a": "b" })),
                    },
                    Phase::Uncertain => {
                        self.uncertain += 1;
                        Action::Resolve { run, path, resolution: Resolution::Retry, by }
                    }
                    Phase::Waiting { event, correlate } => {
                        let payload = correlate.clone().unwrap_or(json!({ "n": 1 }));
                        Action::Signal { event: event.to_string(), payload, run: Some(run) }
                    }
                    _ => continue,
                };
                self.tell(format_args!("at last: {action:?}"));
                self.ask(action);
            }
        }
        if let Ok(Some(due)) = self.bench.kernel().next_alarm() {
            self.bench.now = self.bench.now.max(due);
            self.request(Action::FireAlarms);
        }
    }
}

/// What a tool gives: something in which every workflow finds what it looks for.
fn answer(order: &CallOrder) -> Value {
    match &*order.tool {
        "demo__check" => json!(if order.path.contains('#') { "ok" } else { "again" }),
        "demo__look" => json!({ "found": order.attempt.is_multiple_of(2) }),
        _ => json!({ "text": "T", "count": 1, "items": [1, 2], "path": &*order.path }),
    }
}

/// An answer may have left before the process died; what it says must hold.
fn answer_only(handled: &Handled) {
    for effect in &handled.effects {
        if let Effect::Answer(reply, answer) = effect {
            reply.send(answer.clone());
        }
    }
}

/// A yes at a gate: the path, what was seen, by whom, and what ran.
type Decision = (String, Option<String>, Option<String>, Option<String>);
