//! `steprail unfreeze`: lets calls start again.

use std::process::ExitCode;

use clap::Args;

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;

/// Let calls start again after `steprail freeze`
#[derive(Debug, Args)]
pub(super) struct Unfreeze {
    #[command(flatten)]
    request: RequestArgs,
}

impl Unfreeze {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        self.request.connect().await?.delete("/policy/freeze").await?;
        self.request.confirm("calls start again")
    }
}
