//! `steprail pause`: pauses a run.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::shared::error::CliError;
use super::shared::run_action::RunAction;

/// Pause a run; continue it with `steprail resume`
///
/// No further step starts. Calls in flight finish.
#[derive(Debug, Args)]
pub(super) struct Pause {
    #[command(flatten)]
    action: RunAction,
}

impl Pause {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        self.action.post("pause", &json!({})).await
    }
}
