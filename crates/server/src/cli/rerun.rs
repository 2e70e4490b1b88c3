//! `steprail rerun`: runs an ended run again.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::shared::error::CliError;
use super::shared::run_action::RunAction;

/// Run an ended run again, with the same definition and inputs
#[derive(Debug, Args)]
pub(super) struct Rerun {
    #[command(flatten)]
    action: RunAction,
    /// Reuse the results of calls with the same path and arguments
    #[arg(long)]
    reuse: bool,
    /// Execute this step again despite `--reuse`
    #[arg(long, value_name = "PATH", requires = "reuse")]
    anew: Vec<String>,
}

impl Rerun {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        self.action.post("rerun", &json!({ "reuse": self.reuse, "run_anew": self.anew })).await
    }
}
