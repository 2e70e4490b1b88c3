//! `steprail tools`: lists the tools that steps can call.

use std::process::ExitCode;

use clap::Args;
use steprail_http::views::{Page, Tool};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::text::truncate;

/// The maximum number of characters of a description in the list.
const DESCRIPTION_CHARS: usize = 60;

/// List the tools that steps can call
#[derive(Debug, Args)]
pub(super) struct Tools {
    /// Show only tools whose name contains this text
    filter: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
}

impl Tools {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let mut page: Page<Tool> = self.request.connect().await?.get("/tools").await?;
        let filter = self.filter.unwrap_or_default();
        page.items.retain(|tool| tool.name.contains(&filter));
        let empty = "no tools; import the servers of your MCP clients with `steprail init`";
        self.request.print_table(&page.items, &["TOOL", "EFFECTS", "DESCRIPTION"], row, empty)
    }
}

fn row(tool: &Tool) -> Vec<String> {
    let effects = match (tool.read_only, tool.destructive, tool.idempotent) {
        (true, ..) => "read-only",
        (_, true, _) => "destructive",
        (_, _, true) => "idempotent",
        _ => "writes",
    };
    let first_line = tool.description.lines().next().unwrap_or_default();
    vec![tool.name.clone(), effects.to_owned(), truncate(first_line, DESCRIPTION_CHARS)]
}
