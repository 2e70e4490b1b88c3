//! `steprail tools` and `steprail servers`: what steps can call, and where it is.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::stop::Stop;
use super::target::Target;
use super::{session, show_as};
use crate::client::escaped;
use steprail_http::views::{Page, Server, Tool};

/// Characters of a description that a list shows.
const SHOWN: usize = 60;

/// List the tools that steps can call
#[derive(Debug, Args)]
pub(super) struct Tools {
    /// Only those whose name has this in it
    filter: Option<String>,
    /// Print JSON, with what each takes
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Tools {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let mut page: Page<Tool> = self.target.reach().await?.get("/tools").await?;
            let filter = self.filter.unwrap_or_default();
            page.items.retain(|tool| tool.name.contains(&filter));
            if self.json {
                show_as::json(&page.items)?;
                return Ok(ExitCode::SUCCESS);
            }
            let rows: Vec<Vec<String>> = page.items.iter().map(row).collect();
            let nothing = "there are no tools; `steprail init` finds the servers of your MCP clients";
            show_as::table(&["TOOL", "EFFECTS", "DOES"], &rows, nothing)?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn row(tool: &Tool) -> Vec<String> {
    let effects = match (tool.read_only, tool.destructive, tool.idempotent) {
        (true, ..) => "reads",
        (_, true, _) => "destroys",
        (_, _, true) => "idempotent",
        _ => "writes",
    };
    let first = tool.description.lines().next().unwrap_or_default();
    let does = match first.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{}…", &first[..cut]),
        None => first.to_owned(),
    };
    vec![tool.name.clone(), effects.to_owned(), does]
}

/// List the servers whose tools are called
#[derive(Debug, Args)]
pub(super) struct Servers {
    #[command(subcommand)]
    action: Option<ServerAction>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum ServerAction {
    /// Begin anew with a server; calls in flight to it are lost
    Restart {
        /// The server
        name: String,
    },
}

impl Servers {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.reach().await?;
            if let Some(ServerAction::Restart { name }) = &self.action {
                let _: Option<()> =
                    client.post(&format!("/servers/{}/restart", escaped(name)), &json!({})).await?;
            }
            let page: Page<Server> = client.get("/servers").await?;
            if self.json {
                show_as::json(&page.items)?;
                return Ok(ExitCode::SUCCESS);
            }
            let rows: Vec<Vec<String>> = page.items.iter().map(server_row).collect();
            let nothing = "no servers are configured; `steprail init` finds those of your MCP clients";
            show_as::table(
                &["SERVER", "STATE", "SINCE", "ERA", "TOOLS", "LAST ERROR", "NEXT"],
                &rows,
                nothing,
            )?;
            for server in &page.items {
                for warning in &server.warnings {
                    writeln!(anstream::stderr(), "warning: {}: {warning}", server.name)?;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn server_row(server: &Server) -> Vec<String> {
    let name = match &server.user {
        None => server.name.clone(),
        Some(user) => format!("{} ({user})", server.name),
    };
    let next = match (server.retry_in_secs, &server.next) {
        (Some(secs), Some(next)) => format!("tries again in {secs} s; {next}"),
        (Some(secs), None) => format!("takes calls again in {secs} s"),
        (None, next) => next.clone().unwrap_or_default(),
    };
    let tools = server.tools.len().to_string();
    let era = server.era.clone().unwrap_or_default();
    let reason = server.login.clone().or_else(|| server.reason.clone()).unwrap_or_default();
    vec![name, server.health.clone(), server.since.clone(), era, tools, reason, next]
}
