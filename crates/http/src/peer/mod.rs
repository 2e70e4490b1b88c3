//! Peer identity: which user of the operating system a local connection belongs to.

#[cfg(target_os = "linux")]
mod diag;
pub(crate) mod process;
#[cfg(target_os = "linux")]
mod table;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::{TcpStream, UnixListener};

/// The peer of a request.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub ip: IpAddr,
    /// The user of the operating system, if the connection is local and the system reports it.
    pub os_user: Option<u32>,
    /// Whether it is a local program of the user who runs the server.
    pub is_owner: bool,
    /// The process of a peer of a socket, if the system reports it.
    pub pid: Option<i32>,
}

impl Peer {
    /// The peer of a connection to a port.
    pub(super) async fn of(stream: &TcpStream, ip: IpAddr) -> Self {
        match os_user(stream).await {
            LocalUser::Known(user) => Self { ip, os_user: Some(user), is_owner: is_own(user), pid: None },
            // Only Linux reports the user; elsewhere every loopback connection counts as the owner's.
            LocalUser::Unreported => Self { ip, os_user: None, is_owner: true, pid: None },
            LocalUser::None => Self { ip, os_user: None, is_owner: false, pid: None },
        }
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    /// The peer of the owner's socket. Only the owner and the administrator of the machine can open it.
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let credentials = stream.io().peer_cred().ok();
        let user = credentials.map(|credentials| credentials.uid());
        // A process of another namespace has the id 0.
        let pid = credentials.and_then(|credentials| credentials.pid()).filter(|pid| *pid > 0);
        // What the administrator creates is for others to use.
        let os_user = user.filter(|user| *user != 0 || is_own(0));
        Self { ip: Ipv4Addr::LOCALHOST.into(), os_user, is_owner: true, pid }
    }
}

fn is_own(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw()
}

/// The user at the other end of a connection.
#[cfg_attr(target_os = "linux", expect(dead_code, reason = "other systems do not report users"))]
enum LocalUser {
    Known(u32),
    /// The connection is local, and the system does not report its user.
    Unreported,
    /// The connection is not local, or it is closed.
    None,
}

async fn os_user(stream: &TcpStream) -> LocalUser {
    let (Ok(there), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else { return LocalUser::None };
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let (there, here) = (plain(there), plain(here));
    if !there.ip().is_loopback() {
        return LocalUser::None;
    }
    let user = look_up(there, here).await;
    // A reset connection frees its port for other programs, so the lookup counts only if ours is still open.
    if stream.peer_addr().is_ok() { user } else { LocalUser::None }
}

#[cfg(target_os = "linux")]
async fn look_up(there: SocketAddr, here: SocketAddr) -> LocalUser {
    let owner = match diag::owner(there, here) {
        Ok(owner) => owner,
        // Some sandboxes forbid netlink sockets.
        Err(diag::Unavailable) => {
            tokio::task::spawn_blocking(move || table::owner(there, here)).await.ok().flatten()
        }
    };
    owner.map_or(LocalUser::None, LocalUser::Known)
}

#[cfg(not(target_os = "linux"))]
async fn look_up(_: SocketAddr, _: SocketAddr) -> LocalUser {
    LocalUser::Unreported
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::Peer;

    async fn is_owner(stream: &TcpStream) -> bool {
        Peer::of(stream, [127, 0, 0, 1].into()).await.is_owner
    }

    #[tokio::test]
    async fn open_connection_of_own_process_is_the_owners() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let here = listener.local_addr().expect("an address");
        let client = TcpStream::connect(here).await.expect("a connection");
        let (stream, _) = listener.accept().await.expect("a connection");
        assert!(is_owner(&stream).await);
        drop(client);
        assert!(!is_owner(&stream).await, "the client closed the connection");
    }

    #[tokio::test]
    async fn reused_port_does_not_identify_a_reset_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let here = listener.local_addr().expect("an address");
        let first_client = TcpStream::connect(here).await.expect("a connection");
        let port = first_client.local_addr().expect("an address");
        let (first, _) = listener.accept().await.expect("a connection");
        first_client.set_zero_linger().expect("a reset");
        drop(first_client);
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(port).expect("the same port");
        let _owner = socket.connect(here).await.expect("a connection");
        let (second, _) = listener.accept().await.expect("a connection");
        assert!(is_owner(&second).await);
        assert!(!is_owner(&first).await);
    }
}
