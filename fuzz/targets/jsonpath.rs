//! Any text as a JSONPath below a step: no panic, no overflow, no runaway.
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
