//! `steprail mcp`: what an MCP client starts.

use std::process::ExitCode;

use clap::Args;
use tokio::io::{stdin, stdout};
use tokio_util::sync::CancellationToken;

use super::serve::ServeSettings;
use super::session;
use super::stop::Stop;
use crate::daemon;

/// Serve one MCP client on standard input and output
///
/// This is what you write into the configuration of an MCP client. It passes everything on to the daemon of the data
/// directory, and starts one if there is none: runs outlive the client. The other options are for a daemon that is
/// started.
#[derive(Debug, Args)]
pub(super) struct Mcp {
    #[command(flatten)]
    settings: ServeSettings,
    /// Run the engine in this process instead; its runs wait when the client ends
    #[arg(long)]
    embedded: bool,
}

impl Mcp {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async { if self.embedded { self.embed().await } else { self.bridge().await } })
    }

    async fn embed(&self) -> Result<ExitCode, Stop> {
        let home = self.settings.home()?;
        let config = self.settings.config(&home)?;
        home.create().map_err(Stop::usage)?;
        let tools = self.settings.tools.read(Some(&home))?;
        let stop = CancellationToken::new();
        let (daemon, ()) = self.settings.open(&home, &config, tools, &stop, || Ok(())).await?;
        let served = daemon.server.for_user(daemon.client()).serve(stdin(), stdout()).await;
        daemon.close().await;
        served.map(|()| ExitCode::SUCCESS).map_err(Stop::usage)
    }

    async fn bridge(&self) -> Result<ExitCode, Stop> {
        let home = self.settings.home()?;
        let arguments = self.settings.arguments();
        let bridged = daemon::bridge(&home, &arguments, stdin(), stdout()).await;
        bridged.map(|()| ExitCode::SUCCESS).map_err(Stop::usage)
    }
}
