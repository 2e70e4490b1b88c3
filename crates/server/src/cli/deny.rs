//! `steprail deny`: denies at a gate.

use std::process::ExitCode;

use clap::Args;

use super::shared::decision::Decision;
use super::shared::error::CliError;

/// Deny at a gate
///
/// Shows the approval and prompts for confirmation. The decision applies only to what was shown. Without a terminal, pass
/// `--yes`.
#[derive(Debug, Args)]
pub(super) struct Deny {
    #[command(flatten)]
    decision: Decision,
}

impl Deny {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        self.decision.send(false, None).await
    }
}
