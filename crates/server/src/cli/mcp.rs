//! `steprail mcp`: the MCP server that clients start.

use std::process::ExitCode;

use clap::Args;
use tokio::io::{stdin, stdout};
use tokio_util::sync::CancellationToken;

use super::shared::error::CliError;
use super::shared::serve_args::ServeArgs;
use crate::daemon;

/// Serve one MCP client on standard input and output
///
/// Put this command into the config file of an MCP client. It relays messages to the daemon of the data directory, and
/// starts the daemon if none is running, so runs outlive the client. The other options apply to a daemon that it starts.
#[derive(Debug, Args)]
pub(super) struct Mcp {
    #[command(flatten)]
    args: ServeArgs,
    /// Run the engine in this process; its runs stop when the client exits
    #[arg(long)]
    embedded: bool,
}

impl Mcp {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        if self.embedded { self.embed().await } else { self.bridge().await }
    }

    async fn embed(&self) -> Result<ExitCode, CliError> {
        let home = self.args.home()?;
        let config = self.args.config(&home)?;
        home.create().map_err(CliError::new)?;
        let tools = self.args.tools.read(Some(&home))?;
        let stop = CancellationToken::new();
        let (daemon, ()) = self.args.open(&home, &config, tools, &stop, || Ok(())).await?;
        let served = daemon.server.for_user(daemon.client()).serve(stdin(), stdout()).await;
        daemon.close().await;
        served.map(|()| ExitCode::SUCCESS).map_err(CliError::new)
    }

    async fn bridge(&self) -> Result<ExitCode, CliError> {
        let home = self.args.home()?;
        let bridged = daemon::bridge(&home, &self.args.to_arguments(), stdin(), stdout()).await;
        bridged.map(|()| ExitCode::SUCCESS).map_err(CliError::new)
    }
}
