//! `steprail cancel`: cancels a run.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::shared::error::CliError;
use super::shared::run_action::RunAction;

/// Cancel a run and its sub-workflows; this is final
#[derive(Debug, Args)]
pub(super) struct Cancel {
    #[command(flatten)]
    action: RunAction,
    /// Reason, for the log
    #[arg(long)]
    reason: Option<String>,
}

impl Cancel {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        self.action.post("cancel", &json!({ "reason": self.reason })).await
    }
}
