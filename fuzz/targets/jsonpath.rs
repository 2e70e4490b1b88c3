//! Parses and evaluates any text as a JSONPath query below a step: no panic, no stack overflow, no hang.
#![no_main]

use libfuzzer_sys::fuzz_target;
use steprail_core::budget::Budget;
use steprail_core::expr::Condition;
mod run;

fuzz_target!(|rest: &str| {
    let mut run = run::Run::new();
    let text = format!("$.a{rest}");
    match Condition::parse_jsonpath(&text, &mut run) {
        Ok(condition) => drop(condition.holds(&run, &mut Budget::evaluation())),
        Err(problem) => run::check(&problem, &text),
    }
});
