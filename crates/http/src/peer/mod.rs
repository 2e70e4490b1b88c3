//! Peer identity: whether a local connection belongs to a program of the server's own user.

#[cfg(target_os = "linux")]
mod diag;
#[cfg(target_os = "linux")]
mod table;

use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpStream;

/// The peer of a request.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub ip: IpAddr,
    /// Whether it is a local program of the user who runs the server.
    pub is_owner: bool,
}

/// Whether a connection comes from a local program of our own user. Only Linux reports that; elsewhere every loopback
/// connection counts as the owner's.
pub(super) async fn is_owner(stream: &TcpStream) -> bool {
    let (Ok(there), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else { return false };
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let (there, here) = (plain(there), plain(here));
    there.ip().is_loopback()
        && owner_is_us(there, here).await
        // A reset connection frees its port for other programs, so the lookup counts only if ours is still open.
        && stream.peer_addr().is_ok()
}

#[cfg(target_os = "linux")]
async fn owner_is_us(there: SocketAddr, here: SocketAddr) -> bool {
    let owner = match diag::owner(there, here) {
        Ok(owner) => owner,
        // Some sandboxes forbid netlink sockets.
        Err(diag::Unavailable) => {
            tokio::task::spawn_blocking(move || table::owner(there, here)).await.ok().flatten()
        }
    };
    owner == Some(rustix::process::geteuid().as_raw())
}

#[cfg(not(target_os = "linux"))]
async fn owner_is_us(_: SocketAddr, _: SocketAddr) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::is_owner;

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
