//! Races between deciders, timeouts, edits, cancels and restarts: one outcome and one execution.
//!
//! `STEPRAIL_RACES=100000 cargo test --release --test approvals races` runs many.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use steprail_core::plan::Hash;
use steprail_core::run::{
    Event, Failure, FailureKind, InputRequest, Intervention, Payload, Phase, Resolution, Started,
};
use steprail_core::source::Source;
use steprail_engine::kernel::{Command, Interrupt};
use steprail_engine::{DecisionRequest, Limits, Principal, RunId, compile_policy};
use steprail_store::memory::MemoryStore;
use steprail_store::{Store as _, StoredEvent};

use super::common::shared::Shared;
use super::common::{Bench, NoTools};
use super::kinds::{Kind, Nesting, definition};

/// Number of races: few in every test run, many with `STEPRAIL_RACES`.
const RACES: u64 = 2_000;
/// Number of actions in one race.
const TURNS: u32 = 24;

struct Race {
    rng: fastrand::Rng,
    bench: Bench,
    store: Arc<Mutex<MemoryStore>>,
    run: RunId,
    kind: Kind,
    /// Digests that were open at some time, by path.
    seen: BTreeMap<String, Vec<Hash>>,
    trace: Vec<String>,
}

#[test]
fn every_race_has_one_outcome_and_one_execution() {
    let races = std::env::var("STEPRAIL_RACES").ok().and_then(|text| text.parse().ok()).unwrap_or(RACES);
    let (mut granted, mut denied) = (0, 0);
    for seed in 0..races {
        let mut race = Race::new(seed);
        for _ in 0..TURNS {
            race.turn();
        }
        race.settle();
        let log = race.log();
        let outcome = check(race.kind, &log).unwrap_or_else(|problem| {
            panic!("seed {seed}, {:?}: {problem}\n{}\n{log:#?}", race.kind, race.trace.join("\n"))
        });
        granted += outcome.0;
        denied += outcome.1;
    }
    println!("{races} races: {granted} approvals granted, {denied} denied");
    assert!(granted > 0 && denied > 0, "both outcomes occur");
}

impl Race {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (kind, nesting) = (Kind::ALL[rng.usize(0..7)], Nesting::ALL[rng.usize(0..3)]);
        let (yaml, json) = [
            ("allow_self: false", r#""allow_self": false"#),
            ("timeout: 1h", r#""timeout": "1h""#),
            ("quorum: 2, timeout: 1h", r#""quorum": 2, "timeout": "1h""#),
        ][rng.usize(0..3)];
        let store = Arc::new(Mutex::new(MemoryStore::new()));
        let mut bench =
            Bench::new(Box::new(Shared::new(store.clone())), NoTools::default(), Limits::default(), seed);
        if let Some(policy) = kind.policy(json) {
            let (policy, problems) = compile_policy(&Source::new("policy.yaml", &policy));
            assert!(problems.is_empty(), "{problems:?}");
            bench.policy.replace(policy);
        }
        bench.define(&definition(kind, nesting, yaml));
        let (run, started, _) = bench.start("one", json!({}));
        assert!(matches!(started, Some(Ok(_))), "{started:?}");
        Self { rng, bench, store, run, kind, seen: BTreeMap::new(), trace: Vec::new() }
    }

    fn log(&self) -> Vec<StoredEvent> {
        self.store.lock().expect("the store").log(self.run).expect("a log")
    }

    /// The steps that have not ended.
    fn steps(&mut self) -> Vec<(String, Phase)> {
        let run = self.run;
        let state = self.bench.kernel().inspect(run).expect("the store").expect("the run");
        let steps: Vec<_> =
            state.live().values().map(|live| (live.path.to_string(), live.phase.clone())).collect();
        for (path, phase) in &steps {
            if let Phase::Gate { digest, .. } = phase {
                let seen = self.seen.entry(path.clone()).or_default();
                if !seen.contains(digest) {
                    seen.push(*digest);
                }
            }
        }
        steps
    }

    fn turn(&mut self) {
        let steps = self.steps();
        match self.rng.u8(0..40) {
            0 => {
                let store = self.bench.die();
                self.bench.boot(store);
                self.bench.recover(Interrupt::Declared);
                self.trace.push("restart".to_owned());
            }
            1 => self.command(Command::Cancel { run: self.run, by: "bob".to_owned(), reason: String::new() }),
            2 => self.command(Command::Pause { run: self.run, by: Principal::user("bob") }),
            3..6 => self.resume(),
            6..8 => {
                self.trace.push("advance".to_owned());
                let millis = self.rng.i64(1..3_600_000);
                self.bench.advance(millis);
            }
            8..20 => self.end_some_call(),
            _ if steps.is_empty() => {}
            _ => {
                let (path, phase) = steps[self.rng.usize(0..steps.len())].clone();
                self.act_on(path, phase);
            }
        }
    }

    fn command(&mut self, command: Command) {
        let text = format!("{command:?}");
        let (answer, handled) = self.bench.command(command);
        assert!(handled.fault.is_none(), "{:?}", handled.fault);
        self.trace.push(format!("{text} -> {answer:?}"));
    }

    fn resume(&mut self) {
        let (force, expected_hash) = (Vec::new(), None);
        self.command(Command::Resume {
            run: self.run,
            by: Principal::user("bob"),
            force,
            expected_hash,
            strict: false,
        });
    }

    /// Ends a call: the first call of a kind that asks requests input or is lost.
    fn end_some_call(&mut self) {
        let calls: Vec<_> = self.bench.calls.values().cloned().collect();
        if calls.is_empty() {
            return;
        }
        let call = calls[self.rng.usize(0..calls.len())].clone();
        let outcome = match self.kind {
            Kind::Input if call.continues.is_none() => {
                let form = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
                Err(Failure::input_required(InputRequest { message: "a?".into(), form, state: "s".into() }))
            }
            Kind::Drift if call.continues.is_none() => {
                Err(Failure::input_required(InputRequest::confirm_call("Call it?", Some(Hash([9; 32])))))
            }
            Kind::Uncertain => Err(Failure::new(FailureKind::Lost, "gone")),
            _ => Ok(json!(1)),
        };
        self.trace.push(format!("end {} {outcome:?}", call.path));
        self.bench.end_call(call.id, outcome);
    }

    fn act_on(&mut self, path: String, phase: Phase) {
        let run = self.run;
        let by = Principal::user(["bob", "eve", "kim"][self.rng.usize(0..3)]);
        match (phase, self.rng.u8(0..8)) {
            (_, 0) => {
                let intervention =
                    Intervention::SetArguments { path: path.into(), args: json!({ "x": self.rng.u8(..) }) };
                self.command(Command::Intervene { run, intervention, by });
            }
            (_, 1) => {
                let intervention = Intervention::Skip { path: path.into() };
                self.command(Command::Intervene { run, intervention, by });
            }
            (Phase::Uncertain, way) => {
                let resolution = match way {
                    2 => Resolution::Fail,
                    3 => Resolution::Skip,
                    _ => Resolution::Happened(Payload::new(json!(1))),
                };
                self.command(Command::Resolve { run, path, resolution, digest: None, by });
            }
            (Phase::Gate { .. }, way) => {
                // Any request that was ever shown, so that late and repeated decisions occur.
                let seen = &self.seen[&path];
                let digest = Some(seen[self.rng.usize(0..seen.len())]);
                let edited = (way == 2).then(|| json!({ "x": self.rng.u8(..) }));
                let answer = (self.kind == Kind::Input).then(|| json!({ "a": "b" }));
                let decision = Box::new(DecisionRequest {
                    approved: edited.is_some() || way != 3,
                    digest,
                    edited,
                    answer,
                    ..DecisionRequest::default()
                });
                self.command(Command::Decide { run, path, by, decision });
            }
            _ => {}
        }
    }

    /// Approves everything that is still open and ends all calls.
    fn settle(&mut self) {
        for _ in 0..60 {
            let steps = self.steps();
            if steps.is_empty() {
                return;
            }
            self.resume();
            for (path, phase) in steps {
                let run = self.run;
                match phase {
                    Phase::Gate { digest, .. } => {
                        for user in ["bob", "eve"] {
                            let answer = (self.kind == Kind::Input).then(|| json!({ "a": "b" }));
                            let (approved, digest) = (true, Some(digest));
                            let decision =
                                DecisionRequest { approved, digest, answer, ..DecisionRequest::default() };
                            let (path, by, decision) =
                                (path.clone(), Principal::user(user), Box::new(decision));
                            self.command(Command::Decide { run, path, by, decision });
                        }
                    }
                    Phase::Uncertain => {
                        let resolution = Resolution::Happened(Payload::new(json!(1)));
                        let (digest, by) = (None, Principal::user("bob"));
                        self.command(Command::Resolve { run, path, resolution, digest, by });
                    }
                    _ => {}
                }
            }
            while !self.bench.calls.is_empty() {
                self.end_some_call();
            }
            self.bench.advance(60_000);
        }
    }
}

/// The history of one step execution.
#[derive(Default)]
struct StepHistory {
    /// The request that is open.
    open: Option<Hash>,
    /// Whether the last request was approved, for the next call.
    approved: bool,
    /// The calls that started.
    calls: u32,
    /// Calls that were made again with the answer of a human.
    answered: u32,
    ended: bool,
}

/// Checks the log of a run. Returns the numbers of granted and denied approvals.
fn check(kind: Kind, log: &[StoredEvent]) -> Result<(u32, u32), String> {
    let mut steps: BTreeMap<String, StepHistory> = BTreeMap::new();
    let (mut granted, mut denied, mut ended) = (0, 0, 0);
    // The result of a call that was cancelled is recorded when it arrives.
    let is_late = |event: &&StoredEvent| matches!(event.event, Event::LateResult { .. });
    for StoredEvent { event, .. } in log.iter().filter(|event| !is_late(event)) {
        if ended > 0 {
            return Err(format!("an event after the end of the run: {event:?}"));
        }
        ended += u32::from(matches!(
            event,
            Event::RunCompleted { .. } | Event::RunFailed { .. } | Event::RunCancelled { .. }
        ));
        let Some(step) = event.step() else { continue };
        let at = steps.entry(step.path.to_string()).or_default();
        if at.ended {
            return Err(format!("an event after the end of `{}`: {event:?}", step.path));
        }
        match event {
            Event::ApprovalRequested { digest, .. } => (at.open, at.approved) = (Some(*digest), false),
            Event::ApprovalGranted { .. } | Event::ApprovalDenied { .. } if at.open.take().is_none() => {
                return Err(format!("a decision without an open request: {event:?}"));
            }
            Event::ApprovalGranted { .. } => {
                granted += 1;
                at.approved = true;
                at.answered += 1;
            }
            Event::ApprovalDenied { .. } => {
                denied += 1;
                at.answered += u32::from(kind == Kind::Input);
            }
            Event::StepStarted { what: Started::Call { .. }, .. } => {
                at.calls += 1;
                let is_guarded = matches!(kind, Kind::NeedsHuman | Kind::Policy);
                if is_guarded && !at.approved {
                    return Err(format!("`{}` called without an approval", step.path));
                }
            }
            _ => at.ended |= event.ends_step(),
        }
        if at.calls > 1 + at.answered {
            return Err(format!("`{}` called {} times", step.path, at.calls));
        }
    }
    for (path, history) in &steps {
        let Some(place) = path.strip_suffix("act").filter(|_| matches!(kind, Kind::Approve | Kind::Graph))
        else {
            continue;
        };
        if history.calls > 0 && !steps.get(&format!("{place}ask")).is_some_and(|gate| gate.ended) {
            return Err(format!("`{path}` called before its gate ended"));
        }
    }
    if ended == 0 { Err("the run did not end".to_owned()) } else { Ok((granted, denied)) }
}
