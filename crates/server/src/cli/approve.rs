//! `steprail approve`: approves at a gate.

use std::process::ExitCode;

use clap::Args;

use super::shared::decision::Decision;
use super::shared::error::CliError;

/// Approve at a gate
///
/// Shows the approval and prompts for confirmation. The decision applies only to what was shown. Without a terminal, pass
/// `--yes`.
#[derive(Debug, Args)]
pub(super) struct Approve {
    #[command(flatten)]
    decision: Decision,
}

impl Approve {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        self.decision.send(true).await
    }
}
