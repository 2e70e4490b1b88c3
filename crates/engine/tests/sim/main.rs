//! Deterministic simulation: random workflows and outcomes, storage faults, and crashes between any two writes.
//! The invariants are checked after each event, and at the end every run must end.
//!
//! `STEPRAIL_SEED=7 cargo test --test sim` runs one seed and prints its trace. Most seeds use the in-memory store and one
//! in eight uses SQLite; `STEPRAIL_STORE=memory` or `STEPRAIL_STORE=sqlite` selects a store for all.

#[path = "../common/mod.rs"]
mod common;
mod humans;
mod invariants;
mod process;
mod stored;
mod tools;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use common::shared::{Faults, ReadableStore, Shared};
use common::{Bench, NoTools};
use serde_json::{Value, json};
use steprail_core::plan::Plan;
use steprail_engine::kernel::{CallId, Notification, Request, RunSource, StartRun};
use steprail_engine::{Annotations, Limits, Principal, RunId};
use stored::StoreKind;

/// Number of seeds: few in every test run, many in `just sim`.
const SEEDS: u64 = 400;
/// Number of plans with computed values: few in every test run, many with `STEPRAIL_PLANS`.
const PLANS: u64 = 100;
/// Number of seeds between progress messages of a long run.
const PROGRESS_INTERVAL: u64 = 2_000;
/// Number of events in one simulation before faults stop.
const TURNS: u32 = 60;
/// Number of turns in which all runs must end after faults have stopped.
const QUIET_TURNS: u32 = 3_000;

#[test]
fn no_seed_violates_an_invariant() {
    if let Some(seed) = variable("STEPRAIL_SEED") {
        let sim = Sim::play(seed, true);
        println!("{}", sim.trace_log);
        assert!(sim.violations.is_empty(), "{:#?}", sim.violations);
        return;
    }
    let seeds = variable("STEPRAIL_SEEDS").unwrap_or(SEEDS);
    let first = variable("STEPRAIL_FIRST").unwrap_or(1);
    let mut tally = Tally::default();
    for seed in first..first + seeds {
        if seeds > PROGRESS_INTERVAL && seed > first && (seed - first).is_multiple_of(PROGRESS_INTERVAL) {
            println!("{} of {seeds} seeds", seed - first);
        }
        let sim = Sim::play(seed, false);
        tally.add(&sim);
        assert!(
            sim.violations.is_empty(),
            "seed {seed}: {:#?}\nreplay with: just sim {seed}",
            sim.violations
        );
    }
    println!("{tally:?}");
}

/// Random plans with `let` steps, killed again and again: the values follow from the log and never change.
#[test]
fn computed_values_are_the_same_after_a_crash() {
    let plans = variable("STEPRAIL_PLANS").unwrap_or(PLANS);
    let (mut tally, mut with_values, mut killed) = (Tally::default(), 0, 0);
    for seed in 1..=plans {
        let mut sim = Sim::create(StoreKind::of(seed), seed, false);
        sim.can_crash = true;
        sim.define_with_values();
        sim.start_run();
        sim.play_turns();
        assert!(sim.violations.is_empty(), "plan {seed}: {:#?}", sim.violations);
        with_values += u64::from(!sim.values.is_empty());
        killed += u64::from(!sim.values.is_empty() && sim.crashes > 0);
        tally.add(&sim);
    }
    println!("{plans} plans, {with_values} computed values, {killed} of them were killed: {tally:?}");
    assert!(killed > plans / 4, "{killed} of {plans} plans");
}

#[test]
fn simulation_is_deterministic_and_the_same_on_every_store() {
    for seed in 1..20 {
        let on = |kind| Sim::play_on(kind, seed, true).trace_log;
        assert_eq!(on(StoreKind::Memory), on(StoreKind::Memory));
        assert_eq!(on(StoreKind::Memory), on(StoreKind::Sqlite));
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Counts over several simulations.
#[derive(Debug, Default)]
struct Tally {
    seeds: u64,
    runs: usize,
    calls: usize,
    crashes: u64,
    faults: u64,
    uncertain: u64,
    /// Results of superseded attempts.
    late: u64,
    /// Commits that continued runs.
    slices: u64,
    /// Runs with computed values, and `let` steps that completed.
    runs_with_values: usize,
    values: usize,
    simulated_days: i64,
}

impl Tally {
    fn add(&mut self, sim: &Sim) {
        self.seeds += 1;
        self.runs += sim.runs.len();
        self.calls += sim.calls_made.len();
        self.crashes += sim.crashes;
        self.faults += sim.fault_count;
        self.uncertain += sim.uncertain;
        self.late += sim.late;
        self.slices += sim.slices;
        let runs: BTreeSet<RunId> = sim.values.keys().map(|(run, _)| *run).collect();
        self.runs_with_values += runs.len();
        self.values += sim.values.len();
        self.simulated_days += (sim.bench.now - common::EPOCH) / 86_400_000;
    }
}

struct Sim {
    rng: fastrand::Rng,
    bench: Bench,
    store: Arc<Mutex<dyn ReadableStore>>,
    faults: Arc<Mutex<Faults>>,
    names: Vec<(String, Vec<Value>)>,
    plans: HashMap<String, Plan>,
    runs: Vec<RunId>,
    /// Requests that failed because of a storage fault and are repeated.
    backlog: Vec<Request>,
    /// Calls that were made: run, path, attempt and tool.
    calls_made: BTreeSet<(RunId, String, u32, String)>,
    /// Calls that returned a result.
    answered: BTreeSet<(RunId, String, u32)>,
    /// Calls that exceed their timeout and ignore the cancellation.
    stubborn: BTreeSet<CallId>,
    /// Whether the process can be killed. If it can, long scenarios rarely complete.
    can_crash: bool,
    crashes: u64,
    fault_count: u64,
    uncertain: u64,
    late: u64,
    /// Commits that continued runs.
    slices: u64,
    /// The outputs of `let` steps when they were first seen.
    values: BTreeMap<(RunId, u32), String>,
    violations: Vec<String>,
    trace_log: String,
    verbose: bool,
    quiet: bool,
}

impl Sim {
    fn play(seed: u64, verbose: bool) -> Self {
        Self::play_on(StoreKind::of(seed), seed, verbose)
    }

    fn play_on(kind: StoreKind, seed: u64, verbose: bool) -> Self {
        let mut sim = Self::create(kind, seed, verbose);
        sim.define_some();
        sim.play_turns();
        sim
    }

    fn play_turns(&mut self) {
        for _ in 0..TURNS {
            self.turn();
            if !self.violations.is_empty() {
                return;
            }
        }
        self.run_to_completion();
    }

    /// Creates a simulation without workflows.
    fn create(kind: StoreKind, seed: u64, verbose: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let store = kind.create();
        let faults = Arc::new(Mutex::new(Faults::default()));
        let tools = NoTools::new([
            ("demo__read".to_owned(), Annotations::READ_ONLY),
            ("demo__destroy".to_owned(), Annotations { destructive: Some(true), ..Annotations::UNANNOTATED }),
        ]);
        let narrow = Limits {
            calls: rng.u32(1..4),
            calls_per_definition: rng.u32(1..4),
            calls_per_server: 3,
            ..Limits::default()
        };
        let limits = if rng.u8(0..4) == 0 { narrow } else { Limits::default() };
        // With small slices, most decisions take several commits, and faults and kills happen between them.
        let (slice_events, slices_per_commit) = (rng.usize(1..4), rng.usize(1..3));
        let sliced = Limits { slice_events, slices_per_commit, ..limits.clone() };
        let limits = if rng.bool() { sliced } else { limits };
        let can_crash = rng.u8(0..4) != 0;
        let shared = Shared::with_faults(store.clone(), faults.clone());
        let bench = Bench::new(Box::new(shared), tools, limits, seed);
        Self {
            rng,
            bench,
            store,
            faults,
            names: Vec::new(),
            plans: HashMap::new(),
            runs: Vec::new(),
            backlog: Vec::new(),
            calls_made: BTreeSet::new(),
            answered: BTreeSet::new(),
            stubborn: BTreeSet::new(),
            can_crash,
            crashes: 0,
            fault_count: 0,
            uncertain: 0,
            late: 0,
            slices: 0,
            values: BTreeMap::new(),
            violations: Vec::new(),
            trace_log: String::new(),
            verbose,
            quiet: false,
        }
    }

    /// Defines workflows to run: those of the scenarios, and generated ones.
    fn define_some(&mut self) {
        let scenarios = common::library::scenarios();
        let mut chosen = Vec::new();
        if self.rng.bool() {
            chosen.push(common::library::generated(&mut self.rng));
        }
        if self.rng.u8(0..8) == 0 {
            chosen.push(common::library::impatient());
        }
        if chosen.is_empty() || self.rng.bool() {
            chosen.push(scenarios[self.rng.usize(0..scenarios.len())].clone());
        }
        self.define(chosen);
    }

    /// Defines a generated workflow with a `let` step.
    fn define_with_values(&mut self) {
        let chosen = std::iter::repeat_with(|| common::library::generated(&mut self.rng))
            .find(|(definitions, _)| definitions[0].contains("now()"));
        self.define(chosen.into_iter().collect());
    }

    fn define(&mut self, chosen: Vec<(Vec<String>, Vec<Value>)>) {
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

    fn trace(&mut self, text: std::fmt::Arguments<'_>) {
        if self.verbose {
            writeln!(self.trace_log, "{text}").expect("text");
        }
    }

    /// Makes one random event happen.
    fn turn(&mut self) {
        if self.rng.u8(0..4) != 0 {
            self.continue_runs();
        }
        match self.rng.u32(0..100) {
            0..12 => self.start_run(),
            12..15 => self.change_server(),
            15..55 => self.end_some_call(),
            55..70 => self.advance_time(),
            70..84 => self.act_as_human(),
            84..88 => self.plan_fault(),
            88..94 if self.can_crash => self.plan_kill(),
            94..97 if self.can_crash => self.kill(),
            97 => self.report_some_call(),
            98.. => self.try_backlog(),
            _ => self.advance_time(),
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
            workflow: RunSource::Named { name: name.clone(), version: None },
            inputs,
            principal: Principal::user(if self.rng.bool() { "ann" } else { "tom" }),
            request_key: None,
            id,
        };
        self.trace(format_args!("start {name} as {id}"));
        if let Some(Ok(id)) = self.ask(|reply| Request::Start(Box::new(start), reply)) {
            self.runs.push(id);
        }
    }

    fn advance_time(&mut self) {
        let due = self.bench.kernel().next_timer().ok().flatten();
        let until = match due {
            Some(due) if self.rng.u8(0..4) != 0 => due,
            _ => self.bench.now + self.rng.i64(1..5_000),
        };
        self.bench.now = self.bench.now.max(until);
        self.trace(format_args!("time {}", self.bench.now - common::EPOCH));
        if due.is_some_and(|due| due <= self.bench.now) {
            self.notify(Notification::TimersDue);
        }
    }

    /// Stops all faults and answers all requests: every run must end.
    fn run_to_completion(&mut self) {
        self.quiet = true;
        *self.faults.lock().expect("the faults") = Faults::default();
        self.server_is_up();
        for _ in 0..QUIET_TURNS {
            self.try_backlog();
            self.continue_runs();
            if !self.violations.is_empty() || self.unfinished().is_empty() {
                break;
            }
            if self.bench.calls.is_empty() {
                self.answer_everything();
            } else {
                self.end_some_call();
            }
        }
        self.check();
        for run in self.unfinished() {
            let state = self.bench.kernel().inspect(run).ok().flatten();
            self.violations.push(format!("run {run} never ends: {state:?}"));
        }
    }
}
