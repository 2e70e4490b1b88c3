//! Commands that change one run and print its new status.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use steprail_http::views::Run;

use super::error::CliError;
use super::server_args::{RequestArgs, find_run};

/// Selects the run.
#[derive(Debug, Args)]
pub(crate) struct RunAction {
    /// Id of the run, or its last characters
    run: String,
    #[command(flatten)]
    request: RequestArgs,
}

impl RunAction {
    /// Posts an action to the run.
    pub(crate) async fn post(&self, action: &str, body: &Value) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let id = find_run(&client, &self.run).await?;
        let run: Run = client.post(&format!("/runs/{id}/{action}"), body).await?;
        self.request.print(&run, |run| format!("{} {} is {}", run.name, run.run_id, run.status.name()))
    }
}
