//! The daemon: one engine on one data directory, for every client of this machine.

mod bridge;
mod home;
mod pipes;

use std::net::SocketAddr;
use std::path::Path;

use steprail_engine::{Engine, Principal};
use steprail_mcp::{Server, Settings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(crate) use bridge::bridge;
pub(crate) use home::Home;
pub(crate) use pipes::{connect, listen};

use crate::tools::Tools;

/// What a daemon serves.
pub(crate) struct Daemon {
    pub engine: Engine,
    pub tools: Tools,
    pub server: Server,
    /// Whom it serves: the user of this machine.
    pub owner: Principal,
    /// Whether what arrives over MCP may decide at gates.
    pub clients_decide: bool,
}

impl Daemon {
    /// A daemon for an engine.
    pub(crate) fn new(
        engine: Engine,
        tools: Tools,
        settings: Settings,
        owner: Principal,
        clients_decide: bool,
    ) -> Self {
        let server = Server::new(engine.clone(), tools.gateway(), settings);
        Self { engine, tools, server, owner, clients_decide }
    }

    /// The owner as MCP clients act for them.
    pub(crate) fn client(&self) -> Principal {
        if self.clients_decide { self.owner.clone() } else { self.owner.clone().through_agent() }
    }

    /// Serves the two pipes, until it is told to stop.
    pub(crate) fn open_pipes(&self, home: &Home, stop: &CancellationToken) -> std::io::Result<()> {
        self.open_pipe(&home.agents(), self.client(), stop)?;
        self.open_pipe(&home.humans(), self.owner.clone(), stop)
    }

    fn open_pipe(&self, path: &Path, user: Principal, stop: &CancellationToken) -> std::io::Result<()> {
        let listener = listen(path)?;
        let (server, stop) = (self.server.clone(), stop.clone());
        tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stop.run_until_cancelled(listener.accept()).await {
                let (read, write) = stream.into_split();
                let session = server.for_user(user.clone()).serve(read, write);
                tokio::spawn(stop.clone().run_until_cancelled_owned(session));
            }
        });
        Ok(())
    }

    /// Serves HTTP on a port of this machine.
    pub(crate) async fn open_port(
        &self,
        address: SocketAddr,
        stop: &CancellationToken,
    ) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let user = self.client();
        let app = steprail_mcp::router(&self.server, move |_: &_| Some(user.clone()), stop.child_token());
        let stop = stop.clone();
        tokio::spawn(async move {
            let _ = axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await;
        });
        Ok(address)
    }

    /// Ends: what is in flight may end first. Gives the number of calls that were left.
    pub(crate) async fn close(self) -> usize {
        let left = self.engine.shutdown().await.unwrap_or_default();
        self.tools.close().await;
        left
    }
}
