//! The cost budget: which work is charged, and that an evaluation stops when it is exhausted.

mod common;
#[path = "common/expensive.rs"]
mod expensive;

use common::Names;
use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::expr::{EvalErrorKind, Template, parse};
use steprail_core::limits::EVALUATION_COST;

/// Evaluates an expression. Returns the kind of its error, and the units that were charged.
fn cost(text: &str, values: &Value) -> (Option<EvalErrorKind>, u64) {
    let mut names = Names::new(values);
    let expr = parse(text, &mut names).expect("an expression");
    let mut budget = Budget::evaluation();
    let error = expr.eval(&names, &mut budget).err().map(|error| error.kind);
    (error, budget.spent())
}

#[test]
fn every_kind_of_work_is_charged() {
    for case in expensive::cases() {
        let (within, above) = case.sizes;
        let (error, spent) = cost(case.text, &(case.values)(within));
        assert_eq!(error, None, "{}: {spent} units", case.name);
        assert!((EVALUATION_COST / 10..=EVALUATION_COST).contains(&spent), "{}: {spent} units", case.name);
        if above > 0 {
            let (error, spent) = cost(case.text, &(case.values)(above));
            assert_eq!(error, Some(EvalErrorKind::Limit), "{}: {spent} units", case.name);
        }
    }
}

#[test]
fn cost_of_a_reference_is_independent_of_the_value() {
    let values = |rows: usize| json!({ "x": { "rows": vec![json!({ "a": 1 }); rows], "last": { "b": 2 } } });
    let (_, small) = cost("x.last.b == 2", &values(1));
    let (_, large) = cost("x.last.b == 2", &values(100_000));
    assert_eq!(small, large);
    assert!(small < 30, "{small}");
}

#[test]
fn same_evaluation_always_costs_the_same() {
    let values = json!({ "x": "abc-123", "y": [1, 2, { "z": "text" }] });
    for text in ["matches(x, '[a-z]+-[0-9]+')", "$.y[?@.z == 'text'].z"] {
        assert_eq!(cost(text, &values), cost(text, &values), "{text}");
    }
}

#[test]
fn message_about_a_missing_value_is_short() {
    let long = "k".repeat(1_000_000);
    let values = json!({ "m": { "a": 1 }, "long": long });
    let mut names = Names::new(&values);
    let expr = parse("m[long]", &mut names).expect("an expression");
    let error = expr.eval(&names, &mut Budget::evaluation()).expect_err("an error");
    assert!(error.message.len() < 200, "{}", error.message.len());
}

#[test]
fn parts_of_a_template_share_a_budget() {
    let values = json!({ "x": (0..200_000).collect::<Vec<u32>>() });
    let mut names = Names::new(&values);
    let one = Template::parse("{{-1 in x}}", &mut names, &mut Vec::new());
    assert!(one.eval(&names, &mut Budget::evaluation()).is_ok());
    let six = Template::parse(&"{{-1 in x}} ".repeat(6), &mut names, &mut Vec::new());
    let error = six.eval(&names, &mut Budget::evaluation()).expect_err("an error");
    assert_eq!(error.kind, EvalErrorKind::Limit);
    assert!(error.message.contains("exceeds the limit of 1000000 units"), "{error}");
}
