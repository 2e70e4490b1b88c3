//! `steprail approvals`: lists open approvals.

use std::process::ExitCode;

use clap::Args;
use steprail_http::views::{Approval, Page};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::text::format_age;

/// List open approvals, oldest first
#[derive(Debug, Args)]
pub(super) struct Approvals {
    #[command(flatten)]
    request: RequestArgs,
}

impl Approvals {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect_to_read().await?;
        let page: Page<Approval> = client.get("/approvals").await?;
        let columns = ["RUN", "STEP", "QUESTION", "ASKED"];
        self.request.print_table(&page.items, &columns, row, "no open approvals")
    }
}

fn row(open: &Approval) -> Vec<String> {
    vec![open.run_id.to_string(), open.step.clone(), open.prompt.clone(), format_age(&open.requested_at)]
}
