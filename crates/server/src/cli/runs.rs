//! `steprail runs`: lists runs.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use steprail_engine::RunStatus;
use steprail_http::views::{Page, Run};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::text::{format_age, local_sentence, truncate};

/// The maximum number of characters of a reason in the list.
const REASON_CHARS: usize = 120;

/// List runs, newest first
#[derive(Debug, Args)]
pub(super) struct Runs {
    /// Show only runs with this status: pending, running, paused, completed, failed, cancelled, interrupted
    #[arg(long, value_parser = status)]
    status: Option<RunStatus>,
    /// Show only runs of this definition
    #[arg(long)]
    name: Option<String>,
    /// Show only runs of this user
    #[arg(long)]
    user: Option<String>,
    /// Maximum number of runs
    #[arg(long, default_value = "20")]
    limit: u32,
    #[command(flatten)]
    request: RequestArgs,
}

fn status(text: &str) -> Result<RunStatus, String> {
    text.parse().map_err(|_| {
        let names = RunStatus::ALL.map(RunStatus::name).join(", ");
        format!("the statuses are {names}")
    })
}

impl Runs {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect_to_read().await?;
        let filter =
            json!({ "status": self.status, "name": self.name, "user": self.user, "limit": self.limit });
        let page: Page<Run> = client.query("/runs", &filter).await?;
        if page.next.is_some() {
            writeln!(anstream::stderr(), "there are older runs; show more with --limit")?;
        }
        let columns = ["RUN", "NAME", "STATUS", "BY", "STARTED", "STEP OR REASON"];
        self.request.print_table(&page.items, &columns, row, "no matching runs")
    }
}

fn row(run: &Run) -> Vec<String> {
    let reason = run.reason.as_ref().map(|reason| truncate(&local_sentence(&reason.parts), REASON_CHARS));
    vec![
        run.run_id.to_string(),
        run.name.clone(),
        run.status.name().to_owned(),
        run.created_by.clone(),
        format_age(&run.started_at),
        reason.or_else(|| run.current_step.clone()).unwrap_or_else(|| "-".to_owned()),
    ]
}
