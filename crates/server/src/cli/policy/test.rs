//! `steprail policy test`: compares the verdicts of a policy with test cases.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use steprail_core::policy::cases::{CaseOutcome, run_cases};
use steprail_engine::compile_policy;

use super::super::shared::error::CliError;
use super::super::shared::help::DATA_HELP;
use super::super::shared::{exit, source_file};
use super::super::terminal::output;
use super::super::terminal::text::count;

/// Compare the verdicts of a policy with test cases
///
/// Exit codes: 0 all cases pass, 1 a case fails, 2 a file has errors or cannot be read.
#[derive(Debug, Args)]
pub(super) struct Test {
    /// The test cases, in YAML: `cases: [{tool: mail__send, by: agent, expect: deny}]`
    cases: String,
    /// The policy file [default: policy.yaml of the data directory]
    #[arg(long, value_name = "FILE")]
    policy: Option<String>,
    #[arg(long, value_name = "DIR", help = DATA_HELP)]
    data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Test {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let source = source_file::read(&super::file(self.policy, self.data)?)?;
        let (policy, problems) = compile_policy(&source);
        let Some(policy) = policy else {
            source_file::print_diagnostics(&problems, &source)?;
            return Ok(ExitCode::from(exit::INVALID));
        };
        let cases = source_file::read(&self.cases)?;
        let (outcomes, problems) = run_cases(&cases, &policy);
        if source_file::print_diagnostics(&problems, &cases)? {
            return Ok(ExitCode::from(exit::INVALID));
        }
        let failed = outcomes.iter().filter(|outcome| !outcome.passed()).count();
        if self.json {
            let cases: Vec<_> = outcomes.iter().map(record).collect();
            output::json(&json!({ "policy": &**policy.version(), "failed": failed, "cases": cases }))?;
        } else {
            outcomes
                .iter()
                .filter(|outcome| !outcome.passed())
                .try_for_each(|outcome| output::line(&failure(outcome)))?;
            let passed = count(outcomes.len() - failed, "case passes", "cases pass");
            output::line(&format!("{passed}, {}", count(failed, "case fails", "cases fail")))?;
        }
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
    }
}

fn record(outcome: &CaseOutcome<'_>) -> serde_json::Value {
    json!({
        "name": outcome.name,
        "passed": outcome.passed(),
        "verdict": outcome.verdict.action.name(),
        "rule": &*outcome.verdict.rule,
    })
}

fn failure(outcome: &CaseOutcome<'_>) -> String {
    let (expected, rule) = &outcome.expected;
    let by = rule.as_ref().map(|rule| format!(" by `{rule}`")).unwrap_or_default();
    let mut text = format!(
        "FAIL  {}: expected {}{by}, got {} by `{}`",
        outcome.name,
        expected.name(),
        outcome.verdict.action.name(),
        outcome.verdict.rule
    );
    for checked in &outcome.checked {
        if let Some(mismatch) = &checked.mismatch {
            text.push_str(&format!("\n      {}: {mismatch}", checked.rule));
        }
    }
    text
}
