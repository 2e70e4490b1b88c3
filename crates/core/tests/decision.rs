//! The cost of decisions: a run that exceeds it fails with a message that names the limit.

#[path = "common/world.rs"]
mod world;

use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::limits::{CHAIN_COST, DECISION_COST, EVALUATION_COST};
use steprail_core::load;
use steprail_core::plan::Plan;
use steprail_core::run::{Event, FailureKind, Input, Payload, Record};
use steprail_core::source::Source;
use world::{Memory, end};

fn plan(text: &str) -> Plan {
    let loaded = load(&Source::new("test.yaml", text));
    loaded.plan.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics))
}

/// Asserts that a run failed with a limit, and returns the message.
fn limit_of(records: &[Record]) -> String {
    let failure = end(records).expect("the run ended").expect_err("the run failed");
    assert_eq!(failure.kind, FailureKind::Limit, "{failure}");
    failure.to_string()
}

/// A loop that evaluates a condition for each item.
fn looped(condition: &str, concurrency: u32) -> Plan {
    plan(&format!(
        "name: looped\ninputs: {{ big: {{ type: array }} }}\nsteps:\n  - id: each\n    items: '{{{{inputs.big}}}}'\n    \
         concurrency: {concurrency}\n    steps:\n      - id: check\n        if: \"{condition}\"\n        then: []\n        else: []\n"
    ))
}

fn numbers(count: u32) -> Value {
    json!({ "big": (10..count + 10).map(Value::from).collect::<Value>() })
}

#[test]
fn membership_test_in_a_loop_over_the_same_list_fails_the_run() {
    let records = Memory::new(numbers(20_000)).begin(&looped("7 in inputs.big", 1));
    let message = limit_of(&records);
    let expected =
        format!("the cost of the steps that run without waiting exceeds the limit of {CHAIN_COST} units");
    assert!(message.contains(&expected), "{message}");
    assert!(message.starts_with("each["), "the step is named: {message}");
}

#[test]
fn cheap_conditions_of_a_long_loop_stay_within_the_budget() {
    for concurrency in [1, 256] {
        let records = Memory::new(numbers(50_000)).begin(&looped("item > 5", concurrency));
        assert_eq!(end(&records), Some(Ok(())));
    }
}

#[test]
fn decision_ends_when_its_evaluations_are_expensive() {
    let plan = looped("7 in inputs.big", 1);
    let mut memory = Memory::new(numbers(20_000));
    let mut run = memory.start(&plan);
    let records = memory.decide(&plan, &mut run, Input::Continue);
    // The items cost about 10,000 units, and each condition 20,000.
    let checks = records.iter().filter(|record| matches!(record.event, Event::BranchTaken { .. })).count();
    assert!((45..=50).contains(&checks), "{checks}");
    assert!(run.owes_continuation());
}

#[test]
fn each_input_of_a_run_has_a_budget_of_its_own() {
    let text = "
name: calls
inputs: { big: { type: array } }
steps:
  - id: each
    items: [1, 2, 3]
    steps:
      - { id: call, tool: t }
      - id: inner
        items: '{{inputs.big}}'
        steps:
          - { id: check, if: '7 in inputs.big', then: [], else: [] }
";
    // Each inner loop costs half of what may follow from one input.
    let plan = plan(text);
    let mut memory = Memory::new(numbers(7_000));
    let mut run = memory.start(&plan);
    let mut records = memory.decide(&plan, &mut run, Input::Continue);
    for _ in 0..3 {
        let (n, _) = run.calls().next().expect("a call");
        let ended = Input::CallEnded { n, attempt: 1, outcome: Ok(Payload::default()) };
        records = memory.decide(&plan, &mut run, ended);
        while run.owes_continuation() {
            records.extend(memory.decide(&plan, &mut run, Input::Continue));
        }
    }
    assert_eq!(end(&records), Some(Ok(())));
}

#[test]
fn conditions_of_one_step_share_a_budget() {
    let cases = "      - { if: '7 in inputs.big', then: [] }\n".repeat(10);
    let text = format!(
        "name: cases\ninputs: {{ big: {{ type: array }} }}\nsteps:\n  - id: pick\n    kind: branch\n    cases:\n{cases}    else: []\n"
    );
    let message = limit_of(&Memory::new(numbers(300_000)).begin(&plan(&text)));
    let expected = format!("exceeds the limit of {DECISION_COST} units");
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn one_expensive_evaluation_fails_its_step_and_not_the_others() {
    let text = "
name: one
inputs: { big: { type: array } }
steps:
  - { id: dear, if: '7 in inputs.big', then: [], else: [], on_error: continue }
  - { id: cheap, if: 'size(inputs.big) > 1', then: [], else: [] }
";
    let records = Memory::new(numbers(1_100_000)).begin(&plan(text));
    assert_eq!(end(&records), Some(Ok(())));
    let failed: Vec<String> = records
        .iter()
        .filter_map(|record| match &record.event {
            Event::StepFailed { step, error } => Some(format!("{} {:?} {error}", step.path, error.kind)),
            _ => None,
        })
        .collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    let expected =
        format!("dear Limit the cost of the evaluation exceeds the limit of {EVALUATION_COST} units");
    assert!(failed[0].starts_with(&expected), "{failed:?}");
}

#[test]
fn steps_of_on_failure_have_a_budget_of_their_own() {
    let text = "
name: cleanup
inputs: { big: { type: array } }
steps:
  - id: each
    items: '{{inputs.big}}'
    steps:
      - { id: check, if: '7 in inputs.big', then: [], else: [] }
on_failure:
  - { id: tell, tool: t, args: { why: '{{error.message}}' } }
";
    let records = Memory::new(numbers(20_000)).begin(&plan(text));
    let told = records.iter().find_map(|record| match &record.event {
        Event::StepStarted { step, .. } if &*step.path == "tell" => record.payload.clone(),
        _ => None,
    });
    let told = told.expect("the step starts with its arguments");
    assert!(told.json().contains("exceeds the limit of"), "{told:?}");
}

#[test]
fn size_of_the_values_of_one_evaluation_is_limited() {
    let steps: Vec<String> = (1..=5).map(|n| format!("{{ id: s{n}, tool: t }}")).collect();
    let reads: Vec<String> = (1..=5).map(|n| format!("'{{{{s{n}.id}}}}'")).collect();
    let plan = plan(&format!("name: wide\nsteps: [{}]\noutput: [{}]\n", steps.join(", "), reads.join(", ")));
    let output = Payload::new(json!({ "id": 1, "rest": "x".repeat(15 * 1024 * 1024) }));
    let mut memory = Memory::new(json!({}));
    let mut run = memory.start(&plan);
    let mut records = memory.decide(&plan, &mut run, Input::Continue);
    for n in 1..=5 {
        let ended = Input::CallEnded { n, attempt: 1, outcome: Ok(output.clone()) };
        records = memory.decide(&plan, &mut run, ended);
        while run.owes_continuation() {
            records.extend(memory.decide(&plan, &mut run, Input::Continue));
        }
    }
    let message = limit_of(&records);
    assert_eq!(message, "the values that the evaluation reads exceed the limit of 67108864 bytes");
}

#[test]
fn inputs_of_sub_workflows_are_checked_within_the_budget() {
    let parent = plan("name: p\nsteps:\n  - { id: run, kind: workflow, name: child, inputs: { x: text } }\n");
    let child = plan(&exponential());
    let mut memory = Memory::new(json!({}));
    memory.child = Some(child);
    let message = limit_of(&memory.begin(&parent));
    assert!(message.contains("the cost of the check exceeds the limit of"), "{message}");
}

/// A definition of less than 2 KB whose schema takes 2^26 evaluations.
fn exponential() -> String {
    let mut text = String::from("name: child\ninputs:\n  x:\n    $ref: '#/$defs/a'\n    $defs:\n");
    for (level, next) in ('a'..='y').zip('b'..='z') {
        text.push_str(&format!(
            "      {level}: {{anyOf: [{{$ref: '#/$defs/{next}'}},{{$ref: '#/$defs/{next}'}}]}}\n"
        ));
    }
    text.push_str("      z: {type: boolean}\nsteps: [{id: s, tool: t}]\n");
    text
}

#[test]
fn schema_with_exponential_alternatives_rejects_inputs_with_the_limit() {
    let text = exponential();
    assert!(text.len() < 2_000, "{}", text.len());
    let plan = plan(&text);
    let given = json!({ "x": "text" });
    let mut budget = Budget::check(&given);
    let problem = plan.check_inputs(&given, &mut budget).expect_err("a problem");
    assert!(problem.starts_with("the input `x`: the cost of the check exceeds the limit of"), "{problem}");
    let spent = budget.spent();
    assert!((EVALUATION_COST..EVALUATION_COST + 10_000).contains(&spent), "stopped at once: {spent}");
}

#[test]
fn all_inputs_of_a_run_share_one_budget() {
    let mut text = String::from("name: many\ninputs:\n");
    for n in 0..50 {
        text.push_str(&format!("  x{n}: {{ uniqueItems: true }}\n"));
    }
    text.push_str("steps: [{id: s, tool: t}]\n");
    let items: Vec<u32> = (0..1_000).collect();
    let given: Value = Value::Object((0..50).map(|n| (format!("x{n}"), json!(items))).collect());
    let mut budget = Budget::check(&given);
    let problem = plan(&text).check_inputs(&given, &mut budget).expect_err("a problem");
    assert_eq!(problem.matches("exceeds the limit").count(), 1, "{problem}");
}
