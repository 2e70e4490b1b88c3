//! Whose program is at the other end of a connection on this machine.

#[cfg(target_os = "linux")]
mod diag;
mod table;

use std::net::SocketAddr;

/// Whether a connection from this machine is one of a program of our own user. From elsewhere it never is. Where the system
/// does not tell (only Linux does), whoever reaches a port of this machine is believed.
pub(super) fn is_own(there: SocketAddr, here: SocketAddr) -> bool {
    there.ip().is_loopback() && owner_is_us(there, here)
}

#[cfg(target_os = "linux")]
fn owner_is_us(there: SocketAddr, here: SocketAddr) -> bool {
    // Not every sandbox has the first.
    let owner = diag::owner(there, here).or_else(|| table::owner(there, here));
    owner == Some(rustix::process::geteuid().as_raw())
}

#[cfg(not(target_os = "linux"))]
fn owner_is_us(_: SocketAddr, _: SocketAddr) -> bool {
    true
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_test_is_its_own_user() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream =
            std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (there, here) = (stream.local_addr().expect("one end"), stream.peer_addr().expect("the other"));
        assert!(super::is_own(there, here));
        assert!(!super::is_own(([192, 0, 2, 1], 1).into(), here), "from elsewhere");
    }
}
