//! Property tests of definitions, templates and expressions.

mod common;

use common::Names;
use proptest::prelude::*;
use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::expr::{Template, parse};
use steprail_core::load;
use steprail_core::source::Source;

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        "[a-zA-Z0-9 äß日_:#,\\[\\]{}'\"\\\\-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z<~ ]{1,6}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

/// Replaces the characters that start references.
fn without_references(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace(['{', '$'], "_")),
        Value::Array(items) => items.into_iter().map(without_references).collect(),
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, without_references(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other,
    }
}

/// A list of steps with ids `s0`, `s1`, …, each a random kind.
fn steps(depth: u32) -> BoxedStrategy<Vec<Value>> {
    let policy = prop_oneof![
        Just(json!({})),
        (1..100u64).prop_map(|secs| json!({ "timeout_secs": secs })),
        Just(json!({ "timeout": "1h 30m", "on_error": "continue", "description": "a step" })),
        (0..5u32).prop_map(|retries| json!({ "retry": retries })),
        (1..9u32, 0..1000u64).prop_map(|(attempts, delay)| json!({
            "retry": { "max_attempts": attempts, "initial_delay_ms": delay, "backoff": "linear", "jitter": 0.5 }
        })),
        Just(json!({ "retry": { "max_attempts": 3, "backoff": ["30s", 120, 0.25] }, "needs_human": true })),
    ];
    let tool = (policy, json_value()).prop_map(|(policy, args)| {
        let mut step = json!({ "tool": "demo__echo", "args": { "value": without_references(args), "from": "{{inputs.x}}" } });
        step.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        step
    });
    let plain = prop_oneof![
        4 => tool,
        1 => Just(json!({ "kind": "approve", "prompt": "go on with {{inputs.x}}?", "timeout_secs": 5 })),
        1 => Just(json!({ "kind": "sleep", "for": "5m" })),
        1 => Just(json!({ "kind": "wait", "event": "done", "timeout": 60 })),
        1 => Just(json!({ "kind": "workflow", "name": "other", "inputs": { "x": 1 } })),
        1 => Just(json!({ "dcc": "maya", "tool": "export" })),
    ];
    if depth == 0 {
        return prop::collection::vec(plain, 1..4).boxed();
    }
    let inner = steps(depth - 1);
    let step = prop_oneof![
        4 => plain,
        1 => inner.clone().prop_map(|steps| json!({ "items": [1, 2], "as": "thing", "steps": steps, "concurrency": 2 })),
        1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({ "kind": "parallel", "branches": { "left": a, "right": b } })),
        1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({ "kind": "parallel", "branches": [a, b], "on_any_fail": "continue" })),
        1 => inner.clone().prop_map(|steps| json!({ "kind": "parallel", "steps": steps })),
        1 => (inner.clone(), inner).prop_map(|(a, b)| json!({ "if": "inputs.x == 1", "then": a, "else": b })),
    ];
    prop::collection::vec(step, 1..4).boxed()
}

/// Gives each step a unique id.
fn number(steps: &mut Value, next: &mut usize) {
    match steps {
        Value::Array(items) => items.iter_mut().for_each(|item| number(item, next)),
        Value::Object(step) => {
            if ["tool", "kind", "items", "if"].iter().any(|key| step.contains_key(*key)) {
                step.insert("id".into(), format!("s{next}").into());
                *next += 1;
            }
            for key in ["steps", "branches", "then", "else"] {
                if let Some(inner) = step.get_mut(key) {
                    match inner {
                        Value::Object(branches) => {
                            branches.values_mut().for_each(|branch| number(branch, next));
                        }
                        _ => number(inner, next),
                    }
                }
            }
        }
        _ => {}
    }
}

fn tree() -> impl Strategy<Value = Value> {
    steps(2).prop_map(|steps| {
        let mut steps = Value::from(steps);
        number(&mut steps, &mut 0);
        json!({ "name": "random", "inputs": { "x": { "type": "integer", "default": 1 } }, "steps": steps })
    })
}

/// Steps that depend on some of the preceding steps and read their outputs.
fn dag() -> impl Strategy<Value = Value> {
    prop::collection::vec(prop::collection::btree_set(0..12usize, 0..4), 2..12).prop_map(|picks| {
        let steps = picks.iter().enumerate().map(|(at, picked)| {
            let before: Vec<String> =
                picked.iter().filter(|other| **other < at).map(|other| format!("s{other}")).collect();
            let args: serde_json::Map<_, _> =
                before.iter().map(|id| (id.clone(), json!(format!("${}_out {{{{{id}.x}}}}", id)))).collect();
            json!({
                "id": format!("s{at}"), "agent": "demo", "action": "echo", "args": args, "depends_on": before,
                "outputs": [format!("s{at}_out")], "retry": at, "timeout": 5,
            })
        });
        json!({ "name": "random", "steps": steps.collect::<Vec<_>>() })
    })
}

/// A chain with jumps, gates and forks.
fn graph() -> impl Strategy<Value = Value> {
    prop::collection::vec((0..4u8, 0..12usize), 2..12).prop_map(|picks| {
        let last = picks.len();
        let mut steps = serde_json::Map::new();
        for (at, (pick, other)) in picks.iter().enumerate() {
            let (id, next) = (format!("s{at}"), format!("s{}", at + 1));
            let step = match pick {
                0 => json!({ "tool": "demo__echo", "args": { "x": "{{input.x}}" }, "next": next }),
                1 => json!({ "tool": null, "notify_user": "ann", "timeout_s": 60, "next": next }),
                2 => json!({
                    "tool": "demo__echo",
                    "branch": [{ "if": "result == again", "then": format!("s{}", other % (at + 1)) }, { "else": next }],
                }),
                _ => {
                    for branch in ["left", "right"] {
                        steps.insert(format!("{id}_{branch}"), json!({ "tool": "demo__echo", "join": next }));
                    }
                    json!({ "tool": "demo__echo", "parallel": [format!("{id}_left"), format!("{id}_right")] })
                }
            };
            steps.insert(id, step);
        }
        steps.insert(format!("s{last}"), json!({ "tool": "demo__echo", "done": true }));
        json!({ "name": "random", "start": "s0", "steps": steps })
    })
}

fn definition() -> impl Strategy<Value = Value> {
    prop_oneof![3 => tree().boxed(), 1 => dag().boxed(), 1 => graph().boxed()]
}

/// Writes block-style YAML, independent of any library.
fn yaml(value: &Value, indent: usize, out: &mut String) {
    let pad = "  ".repeat(indent);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                out.push_str(&format!("\n{pad}{}:", Value::from(key.as_str())));
                yaml(value, indent + 1, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&format!("\n{pad}-"));
                yaml(item, indent + 1, out);
            }
        }
        Value::String(text) => out.push_str(&format!(" '{}'", text.replace('\'', "''"))),
        scalar => out.push_str(&format!(" {scalar}")),
    }
}

fn loaded(source: &Source) -> (String, String, String) {
    let loaded = load(source);
    let errors: Vec<String> = loaded.diagnostics.iter().map(|d| d.message.clone()).collect();
    let plan = loaded.plan.unwrap_or_else(|| panic!("{errors:?}\n{}", source.text()));
    (loaded.spec.unwrap().to_canonical_json(), plan.hash.to_string(), format!("{plan:?}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn yaml_and_json_compile_to_the_same_plan(definition in definition()) {
        let mut text = String::new();
        yaml(&definition, 0, &mut text);
        let from_value = loaded(&Source::from_value("d", &definition));
        prop_assert_eq!(&from_value, &loaded(&Source::new("d.json", definition.to_string())));
        prop_assert_eq!(&from_value, &loaded(&Source::new("d.yaml", text)));
        prop_assert_eq!(&from_value, &loaded(&Source::new("d", definition.to_string())));
    }

    #[test]
    fn canonical_json_round_trips(definition in definition()) {
        let (printed, hash, plan) = loaded(&Source::from_value("d", &definition));
        let reloaded = loaded(&Source::new("d.json", printed.clone()));
        prop_assert_eq!(reloaded, (printed.clone(), hash.clone(), plan.clone()));
        prop_assert_eq!(loaded(&Source::new("d.yaml", printed.clone())), (printed, hash, plan));
    }

    #[test]
    fn compiling_is_deterministic(definition in definition()) {
        let source = Source::from_value("d", &definition);
        prop_assert_eq!(loaded(&source), loaded(&source));
    }

    #[test]
    fn whole_reference_keeps_its_value(value in json_value()) {
        let mut names = Names::new(&json!({ "it": value }));
        for text in ["{{it}}", "{{ it }}", "$it", "{{ (it) }}"] {
            let template = Template::parse(text, &mut names, &mut Vec::new());
            prop_assert_eq!(&*template.eval(&names, &mut Budget::evaluation()).unwrap(), &value);
        }
    }

    #[test]
    fn values_are_never_parsed_as_templates(text in "[{}$.a-z \\[\\]]{0,30}") {
        let mut names = Names::new(&json!({ "it": text }));
        let template = Template::parse("<{{it}}>", &mut names, &mut Vec::new());
        let expected = Value::from(format!("<{text}>"));
        prop_assert_eq!(&*template.eval(&names, &mut Budget::evaluation()).unwrap(), &expected);
    }

    #[test]
    fn parsers_do_not_panic(text in any::<String>()) {
        let mut names = Names::new(&json!({ "a": [1] }));
        let _ = parse(&text, &mut names);
        let _ = Template::parse(&text, &mut names, &mut Vec::new());
        let _ = load(&Source::new("x", text));
    }
}

/// Texts of the tokens of the language, most of them invalid.
fn tokens() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "x", "a", "1", "-1", "\"t\"", "'", "(", ")", "[", "]", "{", "}", "}}", ":", ",", ".", "|", "?", "+",
        "/", "in", "not", "map", "filter", "sortBy", "size", "first", " ", "$.a", "[*]", "null", "%",
    ]);
    prop::collection::vec(token, 0..24).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn expressions_of_any_tokens_do_not_panic(text in tokens()) {
        let mut names = Names::new(&json!({ "a": [1, { "b": "t" }] }));
        if let Ok(expr) = parse(&text, &mut names) {
            let _ = expr.eval(&names, &mut Budget::evaluation());
        }
        let _ = Template::parse(&format!("{{{{{text}}}}}"), &mut names, &mut Vec::new());
    }
}

/// Expressions that are valid in CEL too. Division is left out: it is real division here.
fn common_expression() -> impl Strategy<Value = String> {
    let number = (-50..50i64).prop_map(|n| if n < 0 { format!("({n})") } else { n.to_string() });
    let text = "[a-c]{0,3}".prop_map(|text| format!("\"{text}\""));
    let numeric = number.prop_recursive(3, 12, 2, |inner| {
        (inner.clone(), prop::sample::select(vec!["+", "-", "*", "%"]), inner)
            .prop_map(|(a, operator, b)| format!("({a} {operator} {b})"))
    });
    let compare = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
    let atom = prop_oneof![
        (numeric.clone(), compare.clone(), numeric.clone())
            .prop_map(|(a, operator, b)| format!("{a} {operator} {b}")),
        (text.clone(), compare, text.clone()).prop_map(|(a, operator, b)| format!("{a} {operator} {b}")),
        (text.clone(), text.clone()).prop_map(|(a, b)| format!("{a}.contains({b})")),
        (text.clone(), text.clone()).prop_map(|(a, b)| format!("{a}.startsWith({b})")),
        (numeric.clone(), numeric.clone(), numeric.clone())
            .prop_map(|(a, b, c)| format!("[{a}, {b}].exists(x, x > {c})")),
        (numeric.clone(), numeric.clone(), numeric.clone())
            .prop_map(|(a, b, c)| format!("[{a}, {b}].all(x, x != {c} && [x].exists(y, y < {c}))")),
        (numeric.clone(), numeric.clone(), numeric.clone())
            .prop_map(|(a, b, c)| format!("size([{a}, {b}].filter(x, x < {c}).map(x, x + 1)) == 1")),
        (numeric.clone(), numeric.clone(), numeric).prop_map(|(a, b, c)| format!("{a} in [{b}, {c}]")),
        text.prop_map(|a| format!("size({a}) > 1")),
        any::<bool>().prop_map(|value| value.to_string()),
    ];
    atom.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) && ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) || ({b})")),
            inner.clone().prop_map(|a| format!("!({a})")),
            (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| format!("({a}) ? ({b}) : ({c})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// If CEL returns a value, the result is the same. Errors can differ: `&&` and `||` of CEL absorb them.
    #[test]
    fn expressions_agree_with_cel(text in common_expression()) {
        let Ok(program) = cel::Program::compile(&text) else { return Ok(()) };
        let theirs = program.execute(&cel::Context::default());
        let mut names = Names::default();
        let expr = parse(&text, &mut names).unwrap();
        if let (Ok(cel::Value::Bool(theirs)), Ok(ours)) = (theirs, expr.eval(&names, &mut Budget::evaluation())) {
            prop_assert_eq!(&*ours, &Value::Bool(theirs), "{}", text);
        }
    }
}
