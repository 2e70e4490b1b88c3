//! Seeded simulation: random workflows, random outcomes, storage that fails, a process that dies between any
//! two writes. After each step the promises are checked; at the end everything must come to an end.
//!
//! `STEPRAIL_SEED=7 cargo test --test sim` plays one seed and tells what happened.

#[path = "../common/mod.rs"]
mod common;
mod people;
mod process;
mod promises;
mod stored;
mod tools;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use common::shared::{Faults, Shared};
use common::{Bench, NoTools};
use serde_json::{Value, json};
use steprail_core::plan::Plan;
use steprail_engine::kernel::{CallId, Notification, Request, RunSource, StartRun};
use steprail_engine::{Annotations, Limits, Principal, RunId};
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
    /// Answers of attempts that another had taken the place of.
    late: u64,
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
        self.late += sim.late;
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
    /// Calls that outlast their time and do not stop when they are told to.
    stubborn: BTreeSet<CallId>,
    /// Whether the process may die: what takes long is seldom seen where it does.
    mortal: bool,
    crashes: u64,
    faults: u64,
    uncertain: u64,
    late: u64,
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
        let mortal = rng.u8(0..4) != 0;
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
            mortal,
            crashes: 0,
            faults: 0,
            uncertain: 0,
            late: 0,
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
            12..15 => self.change_server(),
            15..55 => self.end_some_call(),
            55..70 => self.let_time_pass(),
            70..84 => self.somebody_acts(),
            84..88 => self.plan_fault(),
            88..94 if self.mortal => self.plan_death(),
            94..97 if self.mortal => self.die_now(),
            97 => self.report_some_call(),
            98.. => self.try_backlog(),
            _ => self.let_time_pass(),
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
        self.tell(format_args!("start {name} as {id}"));
        if let Some(Ok(id)) = self.ask(|reply| Request::Start(Box::new(start), reply)) {
            self.runs.push(id);
        }
    }

    fn let_time_pass(&mut self) {
        let due = self.bench.kernel().next_timer().ok().flatten();
        let until = match due {
            Some(due) if self.rng.u8(0..4) != 0 => due,
            _ => self.bench.now + self.rng.i64(1..5_000),
        };
        self.bench.now = self.bench.now.max(until);
        self.tell(format_args!("time {}", self.bench.now - common::EPOCH));
        if due.is_some_and(|due| due <= self.bench.now) {
            self.notify(Notification::TimersDue);
        }
    }

    /// Nothing fails any more and everybody answers: every run must come to an end.
    fn end_well(&mut self) {
        self.quiet = true;
        *self.plan_of_faults.lock().expect("the faults") = Faults::default();
        self.server_is_up();
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
}
