//! Whose program is at the other end of a connection on this machine.

#[cfg(target_os = "linux")]
mod diag;
#[cfg(target_os = "linux")]
mod table;

use std::net::SocketAddr;

use tokio::net::TcpStream;

/// Whether a connection from this machine is one of a program of our own user. From elsewhere it never is. Where the system
/// does not tell (only Linux does), whoever reaches a port of this machine is believed.
pub(super) async fn is_own(stream: &TcpStream) -> bool {
    let (Ok(there), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else { return false };
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let (there, here) = (plain(there), plain(here));
    there.ip().is_loopback()
        && owner_is_us(there, here).await
        // One that was reset leaves its port to others: only while our end is connected was that about this one.
        && stream.peer_addr().is_ok()
}

#[cfg(target_os = "linux")]
async fn owner_is_us(there: SocketAddr, here: SocketAddr) -> bool {
    let owner = match diag::owner(there, here) {
        Ok(owner) => owner,
        // Not every sandbox lets the kernel be asked.
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

    use super::is_own;

    #[tokio::test]
    async fn this_test_is_its_own_user_until_it_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let here = listener.local_addr().expect("an address");
        let client = TcpStream::connect(here).await.expect("a connection");
        let (stream, _) = listener.accept().await.expect("a connection");
        assert!(is_own(&stream).await);
        drop(client);
        assert!(!is_own(&stream).await, "it has closed its end");
    }

    #[tokio::test]
    async fn whoever_takes_over_the_port_of_another_vouches_for_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let here = listener.local_addr().expect("an address");
        let stranger = TcpStream::connect(here).await.expect("a connection");
        let port = stranger.local_addr().expect("an address");
        let (first, _) = listener.accept().await.expect("a connection");
        stranger.set_zero_linger().expect("a reset");
        drop(stranger);
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(port).expect("the same port");
        let _owner = socket.connect(here).await.expect("a connection");
        let (second, _) = listener.accept().await.expect("a connection");
        assert!(is_own(&second).await);
        assert!(!is_own(&first).await);
    }
}
