//! The daemon: one engine on one data directory, for every client of this machine.

mod bridge;
mod home;
mod pipes;

use std::net::SocketAddr;
use std::time::Duration;

use steprail_engine::{Engine, Principal};
use steprail_mcp::{Server, Settings};
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
    /// Whom it serves: the owner of the data directory.
    owner: Principal,
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
    /// A daemon for an engine.
    pub(crate) fn new(engine: Engine, tools: Tools, settings: Settings, owner: Principal) -> Self {
        let server = Server::new(engine.clone(), tools.gateway(), settings);
        Self { engine, tools, server, owner }
    }

    /// The owner as MCP clients act for them.
    pub(crate) fn client(&self) -> Principal {
        self.owner.clone().through_agent()
    }

    /// Serves the sockets, until it is told to stop.
    pub(crate) fn serve_pipes(&self, pipes: Pipes, stop: &CancellationToken) {
        self.serve_pipe(pipes.agents, self.client(), stop);
        self.serve_pipe(pipes.humans, self.owner.clone(), stop);
    }

    fn serve_pipe(&self, listener: UnixListener, user: Principal, stop: &CancellationToken) {
        let (server, stop) = (self.server.clone(), stop.clone());
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
