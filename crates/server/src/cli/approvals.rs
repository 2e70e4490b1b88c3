//! `steprail approvals`: lists open approvals.

use std::process::ExitCode;

use clap::Args;
use steprail_http::views::{Approval, Page};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::text::{format_age, sanitize};

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
        let columns = ["RUN", "STEP", "TOOL", "STARTED BY", "PROMPT", "ASKED"];
        self.request.print_table(&page.items, &columns, row, "no open approvals")
    }
}

fn row(open: &Approval) -> Vec<String> {
    let starter =
        if open.by_agent { format!("{} (agent)", open.created_by) } else { open.created_by.clone() };
    vec![
        open.run_id.to_string(),
        sanitize(&open.step),
        sanitize(open.tool.as_deref().unwrap_or("-")),
        sanitize(&starter),
        format!("\"{}\"", sanitize(&open.prompt)),
        format_age(&open.requested_at),
    ]
}
