//! `steprail policy check`: reports every problem of a policy file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use steprail_engine::compile_policy;

use super::super::shared::error::CliError;
use super::super::shared::help::DATA_HELP;
use super::super::shared::{exit, source_file};
use super::super::terminal::output;
use super::super::terminal::text::count;

/// Check a policy file and show every problem
///
/// Exit codes: 0 no errors (there may be warnings), 2 errors, or the file cannot be read.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The policy file [default: policy.yaml of the data directory]
    file: Option<String>,
    #[arg(long, value_name = "DIR", help = DATA_HELP)]
    data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let source = source_file::read(&super::file(self.file, self.data)?)?;
        let (policy, problems) = compile_policy(&source);
        let version = policy.as_ref().map(|policy| policy.version().to_string());
        let rules = policy.as_ref().map_or(0, |policy| policy.rules().count());
        if self.json {
            let findings: Vec<_> = problems.iter().map(|problem| problem.finding(&source)).collect();
            output::json(&json!({ "version": version, "rules": rules, "findings": findings }))?;
        } else {
            source_file::print_diagnostics(&problems, &source)?;
            match version {
                Some(version) => {
                    output::line(&format!("policy {version}: {}, valid", count(rules, "rule", "rules")))?;
                }
                None => output::line(&count(problems.len(), "problem", "problems"))?,
            }
        }
        Ok(if policy.is_some() { ExitCode::SUCCESS } else { ExitCode::from(exit::INVALID) })
    }
}
