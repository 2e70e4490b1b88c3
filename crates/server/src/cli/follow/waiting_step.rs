//! Finds the step that a path on the command line names, among the steps that wait for a human.

use steprail_engine::RunId;
use steprail_http::views::{Approval, UnknownCall};

use super::run_tree::RunTree;
use crate::cli::shared::error::CliError;

/// A step that waits for a human.
pub(crate) trait WaitingStep {
    /// The run of the step.
    fn run(&self) -> RunId;
    /// The path of the step in its run.
    fn path(&self) -> &str;
    /// The path of the step from the root.
    fn path_from_root(&self) -> &str;
}

impl WaitingStep for Approval {
    fn run(&self) -> RunId {
        self.run_id
    }

    fn path(&self) -> &str {
        &self.step
    }

    fn path_from_root(&self) -> &str {
        &self.step
    }
}

impl WaitingStep for UnknownCall {
    fn run(&self) -> RunId {
        self.run_id
    }

    fn path(&self) -> &str {
        &self.step
    }

    fn path_from_root(&self) -> &str {
        &self.shown
    }
}

/// Finds a step by its path in the output, by its path from the root, or by its path in its own run.
pub(crate) fn find_step<'a, T: WaitingStep>(
    steps: &[&'a T],
    tree: &RunTree,
    path: &str,
) -> Result<Option<&'a T>, CliError> {
    let live = tree.find(path);
    let is_live = |step: &T| live.iter().any(|(run, path)| *run == step.run() && **path == *step.path());
    let matchers: [&dyn Fn(&T) -> bool; 3] =
        [&is_live, &|step| step.path_from_root() == path, &|step| step.path() == path];
    for is_match in matchers {
        let found: Vec<&T> = steps.iter().copied().filter(|step| is_match(step)).collect();
        match &found[..] {
            [] => {}
            [step] => return Ok(Some(step)),
            several => {
                let describe = |step: &&T| format!("`{}` of run {}", step.path_from_root(), step.run());
                let steps: Vec<String> = several.iter().map(describe).collect();
                return Err(CliError::new(format!("several steps match `{path}`: {}", steps.join(", ")))
                    .hint("name the run, or use the full path of the step"));
            }
        }
    }
    Ok(None)
}
