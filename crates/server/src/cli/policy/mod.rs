//! `steprail policy`: checks, tests and explains the operator's policy.

mod check;
mod explain;
mod remembered;
mod test;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::shared::error::CliError;

/// Check, test and explain the policy for tool calls
#[derive(Debug, Args)]
pub(super) struct Policy {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Check(check::Check),
    Test(test::Test),
    Explain(explain::Explain),
    Remembered(remembered::Remembered),
}

impl Policy {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        match self.action {
            Action::Check(action) => action.run(),
            Action::Test(action) => action.run(),
            Action::Explain(action) => action.run().await,
            Action::Remembered(action) => action.run().await,
        }
    }
}

/// The policy file: the given one, or the one of the data directory.
fn file(given: Option<String>, data: Option<std::path::PathBuf>) -> Result<String, CliError> {
    if let Some(file) = given {
        return Ok(file);
    }
    let home = crate::daemon::DataDir::find(data).map_err(CliError::new)?;
    Ok(home.policy().display().to_string())
}
