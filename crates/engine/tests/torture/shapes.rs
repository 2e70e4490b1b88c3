//! The workflows of the harnesses: every kind of step, and what each run of them will do.

use serde_json::{Value, json};

use super::story::Story;

/// A workflow that is started.
pub(crate) struct Shape {
    pub name: &'static str,
    /// Tells what a run with a seed calls and gives.
    pub tell: fn(&mut Story, u64) -> Value,
}

/// Run number `n` has the shape `n % SHAPES.len()`.
pub(crate) const SHAPES: &[Shape] = &[
    Shape { name: "consent", tell: |story, seed| sequence(story, seed, &[ONCE; 5]) },
    Shape { name: "strict", tell: |story, seed| sequence(story, seed, &[STRICT; 5]) },
    Shape { name: "spelled", tell: |story, seed| sequence(story, seed, &SPELLED) },
    Shape { name: "graphed", tell: graphed },
    Shape { name: "mixed", tell: |story, seed| sequence(story, seed, &MIX.repeat(4)) },
    Shape { name: "route", tell: route },
    Shape { name: "each", tell: each },
    Shape { name: "fork", tell: fork },
    Shape { name: "nested", tell: nested },
    Shape { name: "timers", tell: timers },
    Shape { name: "outer", tell: outer },
    Shape { name: "event", tell: event },
    Shape { name: "circle", tell: circle },
    Shape { name: "gate", tell: gate },
];

/// The event that runs of the shape `event` wait for.
pub(crate) const EVENT: &str = "go";

/// The tool that may act once only, and whose steps do not consent to a repetition.
pub(crate) const STRICT: &str = "lab__strict";
/// The same tool in other words: policies that say how often to try, or which key to send, and do not consent.
const STRICT_RETRY: &str = "lab__strict_retry";
const STRICT_KEY: &str = "lab__strict_key";
const STRICT_ONCE: &str = "lab__strict_once";
const STRICT_GLOBAL: &str = "lab__strict_global";
pub(crate) const READ: &str = "lab__read";
pub(crate) const IDEMPOTENT: &str = "lab__idempotent";
/// It fails at the first attempt.
pub(crate) const FLAKY: &str = "lab__flaky";
/// It always fails.
pub(crate) const BROKEN: &str = "lab__broken";
/// It takes its time.
pub(crate) const SLOW: &str = "lab__slow";
const ONCE: &str = "lab__once";
const KEYED: &str = "lab__keyed";

const SPELLED: [&str; 5] = [STRICT_RETRY, STRICT_KEY, STRICT_ONCE, STRICT_GLOBAL, STRICT];
const MIX: [&str; 5] = [READ, IDEMPOTENT, KEYED, ONCE, FLAKY];

/// Every definition.
pub(crate) fn definitions() -> Vec<String> {
    let (_, texts) = include_str!("definitions.txt").split_once("\n\n").expect("a head");
    texts.split("---\n").map(spell_out).collect()
}

/// Writes out what `call(…)` and `fields(…)` stand for.
fn spell_out(short: &str) -> String {
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

/// The fields of a call. Its policy goes with the tool.
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

fn sequence(story: &mut Story, seed: u64, tools: &[&'static str]) -> Value {
    let mut from = json!(seed);
    let mut before: Option<String> = None;
    let mut output = Value::Null;
    for (n, tool) in tools.iter().enumerate() {
        let after: Vec<&str> = before.as_deref().into_iter().collect();
        output = story.call(&format!("s{n}"), tool, seed, &from, &after);
        from = output["v"].clone();
        before = Some(format!("s{n}"));
    }
    output
}

fn route(story: &mut Story, seed: u64) -> Value {
    let look = story.call("look", READ, seed, &json!(seed), &[]);
    let name = ["a", "b", "c"][usize::try_from(seed % 3).expect("a small number")];
    let [p0, p1, p2] = [0, 1, 2].map(|n| format!("{name}{n}"));
    let first = story.call(&p0, ONCE, seed, &look["v"], &["look"]);
    let second = story.call(&p1, READ, seed, &first["v"], &[&p0]);
    let third = story.call(&p2, STRICT, seed, &second["v"], &[&p1]);
    story.call("end", ONCE, seed, &third["v"], &[&p2])
}

/// The graph form retries by default, which is no consent either.
fn graphed(story: &mut Story, seed: u64) -> Value {
    let first = story.call("first", STRICT, seed, &json!(seed), &[]);
    story.call("second", STRICT, seed, &first["v"], &["first"])
}

fn each(story: &mut Story, seed: u64) -> Value {
    (0..50).map(|item| story.call(&format!("all[{item}].one"), ONCE, seed, &json!(item), &[])).collect()
}

fn fork(story: &mut Story, seed: u64) -> Value {
    let from = json!(seed);
    let alone = [("flaky", FLAKY), ("slow", SLOW), ("bad", BROKEN), ("strict", STRICT), ("keyed", KEYED)];
    for (path, tool) in alone {
        story.call(path, tool, seed, &from, &[]);
    }
    let two = story.call("two0", IDEMPOTENT, seed, &from, &[]);
    let two = story.call("two1", ONCE, seed, &two["v"], &["two0"]);
    let all = ["flaky", "slow", "bad", "strict", "keyed", "two1"];
    let end = story.call("end", STRICT, seed, &two["v"], &all);
    json!({ "end": end, "bad": "failed" })
}

fn nested(story: &mut Story, seed: u64) -> Value {
    let item = |item: u64| {
        let [l, r0, r1, end] = ["l", "r0", "r1", "end"].map(|id| format!("all[{item}].{id}"));
        story.call(&l, ONCE, seed, &json!(item), &[]);
        let right = story.call(&r0, READ, seed, &json!(item), &[]);
        let right = story.call(&r1, STRICT, seed, &right["v"], &[&r0]);
        story.call(&end, ONCE, seed, &right["v"], &[&l, &r1])
    };
    (0..4).map(item).collect()
}

fn timers(story: &mut Story, seed: u64) -> Value {
    let first = story.call("first", ONCE, seed, &json!(seed), &[]);
    story.call("last", ONCE, seed, &first["v"], &["first"])
}

fn inner(story: &mut Story, seed: u64) -> Value {
    let deep = story.call("deep", ONCE, seed, &json!(seed), &[]);
    story.call("deeper", IDEMPOTENT, seed, &deep["v"], &["deep"])
}

fn middle(story: &mut Story, seed: u64) -> Value {
    story.call("before", READ, seed, &json!(seed), &[]);
    let sub = story.child("sub", "inner", |story| inner(story, seed));
    story.call("after", ONCE, seed, &sub["v"], &["before", "sub/deeper"])
}

fn outer(story: &mut Story, seed: u64) -> Value {
    story.call("before", STRICT, seed, &json!(seed), &[]);
    let sub = story.child("sub", "middle", |story| middle(story, seed));
    story.call("after", ONCE, seed, &sub["v"], &["before", "sub/after"])
}

fn event(story: &mut Story, seed: u64) -> Value {
    story.call("first", ONCE, seed, &json!(seed), &[]);
    story.call("last", IDEMPOTENT, seed, &json!(seed), &["first"])
}

fn circle(story: &mut Story, seed: u64) -> Value {
    let visited = |id: &str, visit: u32| match visit {
        1 => id.to_owned(),
        _ => format!("{id}#{visit}"),
    };
    let mut check = story.call("check", ONCE, seed, &json!(seed), &[]);
    for visit in 1..4 {
        let work = visited("work", visit);
        story.call(&work, IDEMPOTENT, seed, &check["v"], &[&visited("check", visit)]);
        check = story.call(&visited("check", visit + 1), ONCE, seed, &json!(seed), &[&work]);
    }
    story.call("last", ONCE, seed, &check["v"], &["check#4"])
}

fn gate(story: &mut Story, seed: u64) -> Value {
    let first = story.call("first", STRICT, seed, &json!(seed), &[]);
    story.call("last", ONCE, seed, &first["v"], &["first"])
}
