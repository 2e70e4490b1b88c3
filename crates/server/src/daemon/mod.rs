//! The daemon: one engine on one data directory, for all clients of the machine and, over HTTP, for remote clients.

mod bridge;
pub(crate) mod checkpoints;
mod data_dir;
mod fd_limit;
mod open;
pub(crate) mod policy_file;
pub(crate) mod private_file;
mod sockets;

use std::net::SocketAddr;
use std::time::Duration;

use steprail_engine::{Engine, Principal};
use steprail_http::App;
use steprail_mcp::Server;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

pub(crate) use bridge::bridge;
pub(crate) use data_dir::DataDir;
pub(crate) use sockets::{Sockets, connect, connect_or_start};

use crate::tools::Tools;

/// Delay after a failed `accept`: file descriptors may be exhausted, or the client may be gone already.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// An engine with its surfaces.
pub(crate) struct Daemon {
    pub engine: Engine,
    pub tools: Tools,
    pub server: Server,
    pub app: App,
}

impl Daemon {
    /// The principal of local MCP clients: the owner, through an agent.
    pub(crate) fn client(&self) -> Principal {
        self.app.owner().clone().through_agent()
    }

    /// Serves the sockets in the background until `stop`.
    pub(crate) fn serve_sockets(&self, sockets: Sockets, stop: &CancellationToken) {
        self.serve_agents(sockets.agents, stop);
        self.app.serve_owner(sockets.human, stop);
    }

    fn serve_agents(&self, listener: UnixListener, stop: &CancellationToken) {
        let (server, user, app, stop) = (self.server.clone(), self.client(), self.app.clone(), stop.clone());
        tokio::spawn(async move {
            while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                };
                let connected = app.connected_agent(stream.peer_cred().ok().and_then(|peer| peer.pid()));
                let (read, write) = stream.into_split();
                let serving = server.for_user(user.clone()).serve(read, write);
                let session = async move {
                    let _connected = connected;
                    serving.await
                };
                tokio::spawn(stop.clone().run_until_cancelled_owned(session));
            }
        });
    }

    /// Serves HTTP in the background until `stop`. Returns the base URL.
    pub(crate) fn serve_http(
        &self,
        listener: std::net::TcpListener,
        stop: &CancellationToken,
    ) -> std::io::Result<String> {
        self.app.serve_port(&self.server, TcpListener::from_std(listener)?, stop)
    }

    /// Binds the HTTP listener. If the port is in use and `any_port` is set, binds a free port instead.
    pub(crate) fn bind_http(address: SocketAddr, any_port: bool) -> std::io::Result<std::net::TcpListener> {
        let listener = match std::net::TcpListener::bind(address) {
            Err(error) if any_port && error.kind() == std::io::ErrorKind::AddrInUse => {
                std::net::TcpListener::bind(SocketAddr::new(address.ip(), 0))?
            }
            bound => bound?,
        };
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Shuts down after the calls in flight, up to the limit. Returns the number of calls that were abandoned.
    pub(crate) async fn close(self) -> usize {
        let abandoned = self.engine.shutdown().await.unwrap_or_default();
        self.tools.close().await;
        abandoned
    }
}
