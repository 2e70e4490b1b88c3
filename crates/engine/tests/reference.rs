//! Differential test: random definitions are run by the engine and by a reference interpreter, with equal results.
//!
//! `STEPRAIL_CASES` sets the number of cases, `STEPRAIL_SEED` reproduces one.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use common::EPOCH;
use common::generate::{Generated, MAIN, Options, generate};
use common::oracle::{Called, Oracle, Outcome, RunTrace, TOOL_PREFIX};
use common::player::Player;
use common::reference::{Ties, interpret};
use serde_json::Value;
use steprail_core::load;
use steprail_core::plan::Plan;
use steprail_core::run::FailureKind;
use steprail_core::source::Source;
use steprail_engine::Limits;

/// Number of orders of simultaneous events that are tried if the outcome depends on the order.
const ORDERS: u64 = 40;

/// The verdict on one case.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Agreed,
    /// The outcome depends on the order of simultaneous events, and the engine's is one of the possible ones.
    AgreedOnOne,
    /// The outcome depends on the order, and the engine's was not among those that were tried.
    Undecided,
}

#[test]
fn engine_agrees_with_the_reference_interpreter() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("STEPRAIL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STEPRAIL_CASES").unwrap_or(300),
    };
    let total = seeds.end - seeds.start;
    let mut counts = BTreeMap::<String, u64>::new();
    let mut problems = Vec::new();
    for seed in seeds {
        match check(seed) {
            Ok(verdict) => *counts.entry(format!("{verdict:?}")).or_default() += 1,
            Err(problem) => problems.push((seed, problem)),
        }
    }
    let differ: Vec<u64> = problems.iter().map(|(seed, _)| *seed).collect();
    println!("{total} cases: {counts:?}, {} differ: {differ:?}", problems.len());
    let undecided = counts.get("Undecided").copied().unwrap_or_default();
    assert!(problems.is_empty(), "{differ:?} differ; the first:\n{}", problems[0].1);
    assert!(undecided * 200 <= total.max(200), "{undecided} of {total} cases are undecided");
}

/// Runs one case with the engine and with the interpreter.
fn check(seed: u64) -> Result<Verdict, String> {
    let case = generate(&mut fastrand::Rng::with_seed(seed), &Options::default());
    let oracle = Oracle::new(seed);
    let definitions: Vec<&str> = case.children.iter().chain([&case.main]).map(String::as_str).collect();
    let plans: BTreeMap<String, Plan> = definitions.iter().map(|text| plan(text)).collect();
    let interpret_with =
        |ties| without_engine_messages(interpret(&plans, MAIN, &case.inputs, (&oracle, EPOCH), ties));
    let expected = interpret_with(Ties::InOrder);
    let run = |limits| {
        play(&case, oracle, &definitions, limits).map_err(|problem| report(seed, &case, &expected, &problem))
    };
    // The limit of a decision changes at most the order of simultaneous events.
    let slice_events = usize::try_from(seed % 4).unwrap_or_default() + 1;
    let sliced = run(Limits { slice_events, slices_per_commit: 1, ..Limits::default() })?;
    let actual = run(Limits::default())?;
    let orders = if actual == expected && sliced == expected { 4 } else { ORDERS };
    let others: Vec<RunTrace> = (0..orders).map(|order| interpret_with(ties(order))).collect();
    let settled = others.iter().all(|other| *other == expected);
    let unknown = [actual, sliced].into_iter().find(|actual| *actual != expected && !others.contains(actual));
    match (settled, unknown) {
        (true, None) => Ok(Verdict::Agreed),
        (false, None) => Ok(Verdict::AgreedOnOne),
        (false, Some(_)) if !is_verbose() => Ok(Verdict::Undecided),
        (_, Some(actual)) => Err(report(seed, &case, &expected, &show(&actual))),
    }
}

/// Whether a single case is reproduced. Then the engine's log is printed, and an undecided case is a failure.
fn is_verbose() -> bool {
    std::env::var("STEPRAIL_SEED").is_ok()
}

/// Runs a case with the engine.
fn play(case: &Generated, oracle: Oracle, definitions: &[&str], limits: Limits) -> Result<RunTrace, String> {
    let mut player = Player::new(oracle, definitions, limits);
    let outcome = player.play(MAIN, case.inputs.clone());
    if is_verbose() {
        println!("{}", player.log());
    }
    outcome.map(without_engine_messages)
}

fn ties(order: u64) -> Ties {
    match order {
        0 => Ties::InTurns(1),
        1 => Ties::InTurns(2),
        seed => Ties::Shuffled(seed),
    }
}

fn plan(text: &str) -> (String, Plan) {
    let loaded = load(&Source::new("definition", text));
    let plan = loaded.plan.expect("a plan");
    (plan.name.to_string(), plan)
}

/// Removes the texts of the engine's messages and UUIDs, which the interpreter does not reproduce.
fn without_engine_messages(mut trace: RunTrace) -> RunTrace {
    match &mut trace.outcome {
        Outcome::Completed(output) => remove_engine_messages(output),
        Outcome::Failed(failure) if !failure.message.starts_with(TOOL_PREFIX) => failure.message = "…".into(),
        _ => {}
    }
    for called in &mut trace.calls {
        let mut args: Value = serde_json::from_str(&called.args).expect("JSON");
        remove_engine_messages(&mut args);
        called.args = args.to_string();
    }
    trace
}

fn remove_engine_messages(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let kind = map.get("kind").and_then(Value::as_str).and_then(FailureKind::from_name);
            if let (Some(_), Some(Value::String(message))) = (kind, map.get_mut("message"))
                && !message.starts_with(TOOL_PREFIX)
            {
                "…".clone_into(message);
            }
            map.values_mut().for_each(remove_engine_messages);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_engine_messages),
        // UUIDs depend on the id of the run. Text in which one is embedded is replaced too.
        Value::String(text) if text.contains("-8000-8000-") || text.split(['"', '<', '>']).any(is_uuid) => {
            "uuid".clone_into(text);
        }
        _ => {}
    }
}

/// Whether a text is a UUID of version 8.
fn is_uuid(text: &str) -> bool {
    let digits = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        14 => byte == b'8',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(digits)
}

fn report(seed: u64, case: &Generated, expected: &RunTrace, actual: &str) -> String {
    let mut out = format!("STEPRAIL_SEED={seed}\n");
    for definition in case.children.iter().chain([&case.main]) {
        let text = match serde_json::from_str::<Value>(definition) {
            Ok(json) => serde_json::to_string_pretty(&json).expect("JSON"),
            Err(_) => definition.clone(),
        };
        writeln!(out, "--- definition\n{text}").expect("text");
    }
    writeln!(out, "--- inputs\n{}", case.inputs).expect("text");
    writeln!(out, "--- expected\n{}", show(expected)).expect("text");
    writeln!(out, "--- the engine\n{actual}").expect("text");
    out
}

fn show(trace: &RunTrace) -> String {
    let mut out = String::new();
    for Called { at, path, attempt, tool, args } in &trace.calls {
        writeln!(out, "+{:>7} {path} ({attempt}) {tool} {args}", at - EPOCH).expect("text");
    }
    let steps = trace.steps.iter().map(|(path, status)| format!("{path} {status}"));
    writeln!(out, "{}", steps.collect::<Vec<_>>().join(", ")).expect("text");
    writeln!(out, "{:?}", trace.outcome).expect("text");
    out
}
