//! Workflows for the simulation.

use std::sync::LazyLock;

use serde_json::Value;

use super::generate::{Generated, Options, generate};

/// Definitions, the first of which is started, and valid inputs.
type Workflow = (Vec<String>, Vec<Value>);

/// A workflow whose calls may be repeated and have short timeouts. A call that ignores its cancellation is soon superseded
/// by the next attempt.
const IMPATIENT: &str = "
name: impatient
steps:
  - id: both
    branches:
      a: [{ id: one, tool: demo__read, timeout: 2s, retry: { max_attempts: 4, initial_delay_ms: 0 } }]
      b: [{ id: two, tool: demo__read, timeout: 3s, retry: { max_attempts: 3, initial_delay_ms: 500 } }]
";

/// Returns a workflow whose calls are often superseded.
pub(crate) fn impatient() -> Workflow {
    (vec![IMPATIENT.to_owned()], Vec::new())
}

/// Returns the definitions of each scenario file, with valid inputs.
pub(crate) fn scenarios() -> &'static [Workflow] {
    static SCENARIOS: LazyLock<Vec<Workflow>> = LazyLock::new(read_scenarios);
    &SCENARIOS
}

fn read_scenarios() -> Vec<Workflow> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("scenarios").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.iter().map(|path| scenario(&std::fs::read_to_string(path).expect("a file"))).collect()
}

fn scenario(text: &str) -> Workflow {
    let (definitions, plays) = text.split_once("\n==").expect("a scenario");
    let starts = plays.lines().filter_map(|line| line.strip_prefix("> start "));
    let inputs = starts.map(|inputs| serde_json::from_str(inputs).expect("inputs")).collect();
    (definitions.split("\n---\n").map(str::to_owned).collect(), inputs)
}

/// Returns a generated workflow with its sub-workflows.
pub(crate) fn generated(rng: &mut fastrand::Rng) -> Workflow {
    let Generated { main, children, inputs } = generate(rng, &Options::default());
    ([vec![main], children].concat(), vec![inputs])
}
