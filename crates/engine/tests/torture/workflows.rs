//! The workflows of the crash tests, and the calls and output that are expected of each run.

use serde_json::{Value, json};

use super::expected::ExpectedRun;

/// A workflow and its expected behaviour.
pub(crate) struct TestWorkflow {
    pub name: &'static str,
    /// Adds the expected calls of a run with this seed, and returns its output.
    pub expect: fn(&mut ExpectedRun, u64) -> Value,
}

/// Run number `n` executes the workflow `n % WORKFLOWS.len()`.
pub(crate) const WORKFLOWS: &[TestWorkflow] = &[
    TestWorkflow { name: "consent", expect: |expected, seed| sequence(expected, seed, &[ONCE; 5]) },
    TestWorkflow { name: "strict", expect: |expected, seed| sequence(expected, seed, &[STRICT; 5]) },
    TestWorkflow { name: "policies", expect: |expected, seed| sequence(expected, seed, &POLICIES) },
    TestWorkflow { name: "graph_form", expect: graph_form },
    TestWorkflow { name: "mixed", expect: |expected, seed| sequence(expected, seed, &MIX.repeat(4)) },
    TestWorkflow { name: "route", expect: route },
    TestWorkflow { name: "each", expect: each },
    TestWorkflow { name: "fork", expect: fork },
    TestWorkflow { name: "nested", expect: nested },
    TestWorkflow { name: "timers", expect: timers },
    TestWorkflow { name: "outer", expect: outer },
    TestWorkflow { name: "signal", expect: signal },
    TestWorkflow { name: "loop_back", expect: loop_back },
    TestWorkflow { name: "gate", expect: gate },
];

/// The signal that runs of the workflow `signal` wait for.
pub(crate) const SIGNAL: &str = "go";

/// The tool whose calls must not be repeated without a decision of a human.
pub(crate) const STRICT: &str = "lab__strict";
/// Variants of [`STRICT`] with a retry policy or an idempotency key, which are no consent to a repetition.
const STRICT_RETRY: &str = "lab__strict_retry";
const STRICT_KEY: &str = "lab__strict_key";
const STRICT_ONCE: &str = "lab__strict_once";
const STRICT_GLOBAL: &str = "lab__strict_global";
pub(crate) const READ: &str = "lab__read";
pub(crate) const IDEMPOTENT: &str = "lab__idempotent";
/// A tool that fails at the first attempt.
pub(crate) const FLAKY: &str = "lab__flaky";
/// A tool that always fails.
pub(crate) const BROKEN: &str = "lab__broken";
/// A slow tool.
pub(crate) const SLOW: &str = "lab__slow";
const ONCE: &str = "lab__once";
const KEYED: &str = "lab__keyed";

const POLICIES: [&str; 5] = [STRICT_RETRY, STRICT_KEY, STRICT_ONCE, STRICT_GLOBAL, STRICT];
const MIX: [&str; 5] = [READ, IDEMPOTENT, KEYED, ONCE, FLAKY];

/// Returns all definitions.
pub(crate) fn definitions() -> Vec<String> {
    let (_, texts) = include_str!("definitions.txt").split_once("\n\n").expect("a head");
    texts.split("---\n").map(expand).collect()
}

/// Expands the abbreviations `call(…)` and `fields(…)`.
fn expand(short: &str) -> String {
    let mut text = String::new();
    let mut rest = short;
    while let Some(at) = rest.find("call(").into_iter().chain(rest.find("fields(")).min() {
        let end = at + rest[at..].find(')').expect("a closing bracket");
        let (word, inside) = rest[at..end].split_once('(').expect("an opening bracket");
        let parts: Vec<&str> = inside.split(", ").collect();
        text += &rest[..at];
        text += &match (word, parts.as_slice()) {
            ("call", [id, tool, from]) => format!("{{ id: {id}, {} }}", fields(tool, from).join(", ")),
            (_, [tool, from]) => fields(tool, from).join("\n    "),
            _ => panic!("{inside}"),
        };
        rest = &rest[end + 1..];
    }
    text + rest
}

/// Returns the fields of a call. Its policies depend on the tool.
fn fields(tool: &str, from: &str) -> Vec<String> {
    let often = "max_attempts: 100000, backoff: fixed, initial_delay_ms: 1";
    let mut fields = vec![
        format!("tool: {tool}"),
        format!(r#"args: {{ seed: "{{{{inputs.seed}}}}", from: "{{{{{from}}}}}" }}"#),
    ];
    if [KEYED, STRICT_KEY, STRICT_ONCE, STRICT_GLOBAL].contains(&tool) {
        fields.push(format!(r#"idempotency_key: "{{{{{from}}}}}""#));
    }
    match tool {
        STRICT_ONCE => fields.push("effects: once".to_owned()),
        STRICT_GLOBAL => fields.push("idempotency_scope: global".to_owned()),
        _ => {}
    }
    match tool {
        STRICT => {}
        _ if tool.starts_with(STRICT) => fields.push(format!("retry: {{ {often} }}")),
        BROKEN => fields.push(format!("retry: {{ {often}, retry_on: [lost] }}")),
        READ | IDEMPOTENT => fields.push(format!("retry: {{ {often} }}")),
        _ => fields.push(format!("retry: {{ {often}, retry_on: [lost, tool_error] }}")),
    }
    fields
}

fn sequence(expected: &mut ExpectedRun, seed: u64, tools: &[&'static str]) -> Value {
    let mut from = json!(seed);
    let mut before: Option<String> = None;
    let mut output = Value::Null;
    for (n, tool) in tools.iter().enumerate() {
        let after: Vec<&str> = before.as_deref().into_iter().collect();
        output = expected.call(&format!("s{n}"), tool, seed, &from, &after);
        from = output["v"].clone();
        before = Some(format!("s{n}"));
    }
    output
}

fn route(expected: &mut ExpectedRun, seed: u64) -> Value {
    let look = expected.call("look", READ, seed, &json!(seed), &[]);
    let name = ["a", "b", "c"][usize::try_from(seed % 3).expect("a small number")];
    let [p0, p1, p2] = [0, 1, 2].map(|n| format!("{name}{n}"));
    let first = expected.call(&p0, ONCE, seed, &look["v"], &["look"]);
    let second = expected.call(&p1, READ, seed, &first["v"], &[&p0]);
    let third = expected.call(&p2, STRICT, seed, &second["v"], &[&p1]);
    expected.call("end", ONCE, seed, &third["v"], &[&p2])
}

/// The graph form retries by default, which is not consent.
fn graph_form(expected: &mut ExpectedRun, seed: u64) -> Value {
    let first = expected.call("first", STRICT, seed, &json!(seed), &[]);
    expected.call("second", STRICT, seed, &first["v"], &["first"])
}

fn each(expected: &mut ExpectedRun, seed: u64) -> Value {
    (0..50).map(|item| expected.call(&format!("all[{item}].one"), ONCE, seed, &json!(item), &[])).collect()
}

fn fork(expected: &mut ExpectedRun, seed: u64) -> Value {
    let from = json!(seed);
    let alone = [("flaky", FLAKY), ("slow", SLOW), ("bad", BROKEN), ("strict", STRICT), ("keyed", KEYED)];
    for (path, tool) in alone {
        expected.call(path, tool, seed, &from, &[]);
    }
    let two = expected.call("two0", IDEMPOTENT, seed, &from, &[]);
    let two = expected.call("two1", ONCE, seed, &two["v"], &["two0"]);
    let all = ["flaky", "slow", "bad", "strict", "keyed", "two1"];
    let end = expected.call("end", STRICT, seed, &two["v"], &all);
    json!({ "end": end, "bad": "failed" })
}

fn nested(expected: &mut ExpectedRun, seed: u64) -> Value {
    let item = |item: u64| {
        let [l, r0, r1, end] = ["l", "r0", "r1", "end"].map(|id| format!("all[{item}].{id}"));
        expected.call(&l, ONCE, seed, &json!(item), &[]);
        let right = expected.call(&r0, READ, seed, &json!(item), &[]);
        let right = expected.call(&r1, STRICT, seed, &right["v"], &[&r0]);
        expected.call(&end, ONCE, seed, &right["v"], &[&l, &r1])
    };
    (0..4).map(item).collect()
}

fn timers(expected: &mut ExpectedRun, seed: u64) -> Value {
    let first = expected.call("first", ONCE, seed, &json!(seed), &[]);
    expected.call("last", ONCE, seed, &first["v"], &["first"])
}

fn inner(expected: &mut ExpectedRun, seed: u64) -> Value {
    let deep = expected.call("deep", ONCE, seed, &json!(seed), &[]);
    expected.call("deeper", IDEMPOTENT, seed, &deep["v"], &["deep"])
}

fn middle(expected: &mut ExpectedRun, seed: u64) -> Value {
    expected.call("before", READ, seed, &json!(seed), &[]);
    let sub = expected.child("sub", "inner", |expected| inner(expected, seed));
    expected.call("after", ONCE, seed, &sub["v"], &["before", "sub/deeper"])
}

fn outer(expected: &mut ExpectedRun, seed: u64) -> Value {
    expected.call("before", STRICT, seed, &json!(seed), &[]);
    let sub = expected.child("sub", "middle", |expected| middle(expected, seed));
    expected.call("after", ONCE, seed, &sub["v"], &["before", "sub/after"])
}

fn signal(expected: &mut ExpectedRun, seed: u64) -> Value {
    expected.call("first", ONCE, seed, &json!(seed), &[]);
    expected.call("last", IDEMPOTENT, seed, &json!(seed), &["first"])
}

fn loop_back(expected: &mut ExpectedRun, seed: u64) -> Value {
    let visited = |id: &str, visit: u32| match visit {
        1 => id.to_owned(),
        _ => format!("{id}#{visit}"),
    };
    let mut check = expected.call("check", ONCE, seed, &json!(seed), &[]);
    for visit in 1..4 {
        let work = visited("work", visit);
        expected.call(&work, IDEMPOTENT, seed, &check["v"], &[&visited("check", visit)]);
        check = expected.call(&visited("check", visit + 1), ONCE, seed, &json!(seed), &[&work]);
    }
    expected.call("last", ONCE, seed, &check["v"], &["check#4"])
}

fn gate(expected: &mut ExpectedRun, seed: u64) -> Value {
    let first = expected.call("first", STRICT, seed, &json!(seed), &[]);
    expected.call("last", ONCE, seed, &first["v"], &["first"])
}
