//! Parses and evaluates any text as a condition: no panic, no hang.
#![no_main]

use libfuzzer_sys::fuzz_target;
use steprail_core::budget::Budget;
use steprail_core::expr::Condition;
mod run;

fuzz_target!(|text: &str| {
    let mut run = run::Run::new();
    for condition in [Condition::parse(text, &mut run), Condition::parse_result(text, &mut run)] {
        match condition {
            Ok(condition) => drop(condition.holds(&run, &mut Budget::evaluation())),
            Err(problem) => run::check(&problem, text),
        }
    }
});
