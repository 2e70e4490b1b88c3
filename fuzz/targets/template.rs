//! Parses and evaluates any text as a template: no panic, no hang.
#![no_main]

use libfuzzer_sys::fuzz_target;
use steprail_core::budget::Budget;
use steprail_core::expr::Template;
mod run;

fuzz_target!(|text: &str| {
    let mut run = run::Run::new();
    let mut problems = Vec::new();
    let template = Template::parse(text, &mut run, &mut problems);
    problems.iter().for_each(|problem| run::check(problem, text));
    if problems.is_empty() {
        let _ = template.eval(&run, &mut Budget::evaluation());
    }
});
