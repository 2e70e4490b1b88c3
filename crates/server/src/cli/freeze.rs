//! `steprail freeze`: stops all calls from starting.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use steprail_http::views::PolicyStatus;

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;

/// Stop all calls from starting, also after a restart
///
/// Steps stay ready, and calls in flight end normally. `steprail unfreeze` lets calls start again. Needs the right
/// `administer`.
#[derive(Debug, Args)]
pub(super) struct Freeze {
    /// The reason, which is shown to users
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
}

impl Freeze {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let _: PolicyStatus = client.put("/policy/freeze", &json!({ "reason": self.reason })).await?;
        self.request.confirm("all calls are frozen; `steprail unfreeze` lets them start again")
    }
}
