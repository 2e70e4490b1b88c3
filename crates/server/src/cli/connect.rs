//! `steprail connect`: adds Steprail to the config file of an MCP client.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::client_config::clients::{McpClient, Scope};
use super::client_config::connection::{Connection, config_location, entry};
use super::shared::error::CliError;
use super::shared::help::DATA_HELP;
use super::terminal::output;

/// Print, or write, the config entry that connects an MCP client
///
/// Without `--write`, prints the entry and the file that it belongs to. With `--write`, adds it to that file and keeps the
/// rest. The client then starts `steprail mcp`, which relays to one daemon for all clients.
#[derive(Debug, Args)]
pub(super) struct Connect {
    /// MCP client
    client: McpClient,
    /// Write the entry to the client's config file
    #[arg(long)]
    write: bool,
    /// Config file of the client [default: where the client keeps it]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[arg(long, value_name = "DIR", help = DATA_HELP)]
    data: Option<PathBuf>,
}

impl Connect {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let location = match self.file {
            Some(file) => self.client.in_file(file, Scope::User),
            None => config_location(self.client)?,
        };
        let entry = entry(self.data.as_deref())?;
        if !self.write {
            let nest = |inner, key: &String| json!({ key.as_str(): inner });
            let config = location.keys.iter().rfold(json!({ "steprail": entry }), nest);
            output::line(&format!("{config:#}"))?;
            writeln!(anstream::stderr(), "add this to {}, or pass --write", location.file.display())?;
            return Ok(ExitCode::SUCCESS);
        }
        let connection = Connection::prepare(location, entry)?;
        connection.write()?;
        let change = if connection.before.is_some() { "replaced in" } else { "added to" };
        output::line(&format!("steprail was {change} {}", connection.file.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
