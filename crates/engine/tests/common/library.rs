//! Workflows for the simulation.

use serde_json::Value;

use super::generate::{Generated, Options, generate};

/// Returns the definitions of each scenario file, with valid inputs.
pub(crate) fn scenarios() -> Vec<(Vec<String>, Vec<Value>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("scenarios").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.iter().map(|path| scenario(&std::fs::read_to_string(path).expect("a file"))).collect()
}

fn scenario(text: &str) -> (Vec<String>, Vec<Value>) {
    let (definitions, plays) = text.split_once("\n==").expect("a scenario");
    let starts = plays.lines().filter_map(|line| line.strip_prefix("> start "));
    let inputs = starts.map(|inputs| serde_json::from_str(inputs).expect("inputs")).collect();
    (definitions.split("\n---\n").map(str::to_owned).collect(), inputs)
}

/// Returns a generated workflow with its sub-workflows.
pub(crate) fn generated(rng: &mut fastrand::Rng) -> (Vec<String>, Vec<Value>) {
    let Generated { main, children, inputs } = generate(rng, &Options::default());
    ([vec![main], children].concat(), vec![inputs])
}
