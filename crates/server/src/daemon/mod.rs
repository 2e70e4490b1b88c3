//! The daemon: one engine on one data directory, for every client of this machine and, over HTTP, of others.

mod bridge;
mod home;
mod open;
mod pipes;

use std::net::SocketAddr;
use std::time::Duration;

use steprail_engine::{Engine, Principal};
use steprail_http::App;
use steprail_mcp::Server;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

pub(crate) use bridge::bridge;
pub(crate) use home::Home;
pub(crate) use pipes::{connect, reach};

use crate::tools::Tools;

/// What a daemon serves.
pub(crate) struct Daemon {
    pub engine: Engine,
    pub tools: Tools,
    pub server: Server,
    pub app: App,
}

/// The sockets of a data directory, before anybody is served: who connects waits.
pub(crate) struct Pipes {
    agents: UnixListener,
    humans: UnixListener,
}

impl Pipes {
    /// Opens them. Whoever calls this holds the database.
    pub(crate) fn open(home: &Home) -> std::io::Result<Self> {
        Ok(Self { agents: pipes::listen(&home.agents())?, humans: pipes::listen(&home.humans())? })
    }
}

impl Daemon {
    /// The owner as MCP clients act for them.
    pub(crate) fn client(&self) -> Principal {
        self.app.owner().clone().through_agent()
    }

    /// Serves the sockets, until it is told to stop.
    pub(crate) fn serve_pipes(&self, pipes: Pipes, stop: &CancellationToken) {
        self.serve_agents(pipes.agents, stop);
        self.app.serve_owner(pipes.humans, stop);
    }

    fn serve_agents(&self, listener: UnixListener, stop: &CancellationToken) {
        let (server, user, stop) = (self.server.clone(), self.client(), stop.clone());
        tokio::spawn(async move {
            while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
                let Ok((stream, _)) = accepted else {
                    // Too many files are open, or the client is gone already; neither is the end.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (read, write) = stream.into_split();
                let session = server.for_user(user.clone()).serve(read, write);
                tokio::spawn(stop.clone().run_until_cancelled_owned(session));
            }
        });
    }

    /// Serves HTTP at an address.
    pub(crate) fn serve_port(
        &self,
        listener: std::net::TcpListener,
        stop: &CancellationToken,
    ) -> std::io::Result<String> {
        self.app.serve_port(&self.server, TcpListener::from_std(listener)?, stop)
    }

    /// Takes an address. Where the port is only a wish, another one is taken if it is in use.
    pub(crate) fn take_port(address: SocketAddr, is_wish: bool) -> std::io::Result<std::net::TcpListener> {
        let listener = match std::net::TcpListener::bind(address) {
            Err(error) if is_wish && error.kind() == std::io::ErrorKind::AddrInUse => {
                std::net::TcpListener::bind(SocketAddr::new(address.ip(), 0))?
            }
            bound => bound?,
        };
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Ends: what is in flight may end first. Gives the number of calls that were left.
    pub(crate) async fn close(self) -> usize {
        let left = self.engine.shutdown().await.unwrap_or_default();
        self.tools.close().await;
        left
    }
}
