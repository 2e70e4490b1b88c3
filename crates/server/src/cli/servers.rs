//! `steprail servers`: lists and restarts MCP servers.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use steprail_http::views::{Page, Server};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::output;
use crate::client::percent_encode;

/// List MCP servers and their state
#[derive(Debug, Args)]
pub(super) struct Servers {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Restart a server; its calls in flight are lost
    Restart {
        /// Name of the server
        name: String,
    },
}

impl Servers {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        if let Some(Action::Restart { name }) = &self.action {
            let path = format!("/servers/{}/restart", percent_encode(name));
            let _: Option<()> = client.post(&path, &json!({})).await?;
        }
        let page: Page<Server> = client.get("/servers").await?;
        let columns = ["SERVER", "STATE", "SINCE", "ERA", "TOOLS", "LAST ERROR", "NEXT"];
        let empty = "no servers are configured; import those of your MCP clients with `steprail init`";
        let code = self.request.print_table(&page.items, &columns, row, empty)?;
        if !self.request.json {
            for server in &page.items {
                let warnings = server.warnings.iter();
                warnings
                    .map(|warning| format!("{}: {warning}", server.name))
                    .try_for_each(|warning| output::warning(&warning))?;
            }
        }
        Ok(code)
    }
}

fn row(server: &Server) -> Vec<String> {
    let name = match &server.user {
        None => server.name.clone(),
        Some(user) => format!("{} ({user})", server.name),
    };
    let next = match (server.retry_in_secs, &server.next) {
        (Some(secs), Some(next)) => format!("reconnects in {secs} s; {next}"),
        (Some(secs), None) => format!("accepts calls in {secs} s"),
        (None, next) => next.clone().unwrap_or_default(),
    };
    let tools = server.tools.len().to_string();
    let era = server.era.clone().unwrap_or_default();
    let reason = server.login.clone().or_else(|| server.reason.clone()).unwrap_or_default();
    vec![name, server.health.clone(), server.since.clone(), era, tools, reason, next]
}
