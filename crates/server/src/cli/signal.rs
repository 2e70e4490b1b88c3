//! `steprail signal`: sends a signal to runs.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::follow::rest::RestRuns;
use super::follow::run_client::RunClient;
use super::shared::error::CliError;
use super::shared::server_args::{RequestArgs, find_optional_run};
use super::shared::values;
use super::terminal::text::count;

/// Send a signal to a run, or to every run that waits for it
#[derive(Debug, Args)]
pub(super) struct Signal {
    /// Name of the signal
    event: String,
    /// Payload of the signal, as JSON
    #[arg(value_parser = values::json)]
    payload: Option<Value>,
    /// Send it to this run, which stores it until a step waits for it [default: all runs that wait for it now]
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
}

impl Signal {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let run = find_optional_run(&client, self.run.as_deref()).await?;
        let payload = self.payload.unwrap_or_default();
        let runs = RestRuns::new(client).signal(&self.event, &payload, run).await?;
        self.request.print(&json!({ "runs": runs }), |_| {
            format!("`{}` was received by {}", self.event, count(runs, "run", "runs"))
        })
    }
}
