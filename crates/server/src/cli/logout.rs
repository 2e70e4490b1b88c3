//! `steprail logout`: deletes an OAuth login at a remote MCP server.

use std::process::ExitCode;

use clap::Args;

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use crate::client::percent_encode;

/// Log out at a remote MCP server
#[derive(Debug, Args)]
pub(super) struct Logout {
    /// Name of the server in servers.json
    name: String,
    #[command(flatten)]
    request: RequestArgs,
}

impl Logout {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        client.delete(&format!("/servers/{}/login", percent_encode(&self.name))).await?;
        self.request.confirm(&format!("logged out at {}", self.name))
    }
}
