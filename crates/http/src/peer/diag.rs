//! Peer lookup with `sock_diag` (see `man 7 sock_diag`).

use std::net::{IpAddr, SocketAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// Any state, and any cookie.
const ANY: [u8; 4] = [0xFF; 4];
/// `AF_INET6`.
const IPV6: u8 = 10;
/// `TCP_ESTABLISHED`.
const ESTABLISHED: u8 = 1;

/// The size of a netlink header.
const HEADER: usize = 16;
// Offsets in a response (`inet_diag_msg`).
const STATE: usize = HEADER + 1;
const ADDRESSES: std::ops::Range<usize> = HEADER + 4..HEADER + 4 + 36;
const USER: usize = HEADER + 64;
const INODE: usize = HEADER + 68;

/// The kernel does not support `sock_diag`, or a sandbox forbids it.
pub(super) struct Unavailable;

/// The user id of the program at the remote end; `None` if the connection is not open.
pub(super) fn owner(there: SocketAddr, here: SocketAddr) -> Result<Option<u32>, Unavailable> {
    match lookup(there, here) {
        Some(owner) => Ok(Some(owner)),
        // The error is the same for an unknown connection and an unsupported request. Our own end is always known.
        None => lookup(here, there).map(|_| None).ok_or(Unavailable),
    }
}

/// The user id of the program at the local end of a connection.
fn lookup(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    );
    let kernel = kernel.ok()?;
    let request = request(family, &addresses(local, remote, local.is_ipv6()));
    send(&kernel, &request, SendFlags::empty()).ok()?;
    let mut response = [0; 512];
    let (_, length) = recv(&kernel, &mut response, RecvFlags::empty()).ok()?;
    owner_in(response.get(..length)?, local, remote)
}

/// A netlink header and `inet_diag_req_v2`.
fn request(family: AddressFamily, addresses: &[u8]) -> Vec<u8> {
    let mut body = vec![u8::try_from(family.as_raw()).unwrap_or_default(), TCP, 0, 0];
    body.extend(ANY);
    body.extend(addresses);
    body.extend([0; 4]);
    body.extend([ANY, ANY].concat());
    let length = u32::try_from(HEADER + body.len()).unwrap_or_default();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Both ports and both addresses in network byte order, as in `inet_diag_sockid`.
fn addresses(local: SocketAddr, remote: SocketAddr, as_v6: bool) -> Vec<u8> {
    let mut bytes = [local.port().to_be_bytes(), remote.port().to_be_bytes()].concat();
    for end in [local, remote] {
        let mut address = [0; 16];
        match end.ip() {
            IpAddr::V4(four) if as_v6 => address = four.to_ipv6_mapped().octets(),
            IpAddr::V4(four) => address[..4].copy_from_slice(&four.octets()),
            IpAddr::V6(six) => address = six.octets(),
        }
        bytes.extend(address);
    }
    bytes
}

/// The user id in a response. A socket that its program has closed has inode 0 and no owner. For an unknown connection
/// the kernel may return a listener, so the addresses are compared.
fn owner_in(response: &[u8], local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let number = |at: usize| response.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let is_by_family = response.get(4..6)? == BY_FAMILY.to_ne_bytes();
    // A dual-stack socket has IPv4-mapped IPv6 addresses.
    let addresses = addresses(local, remote, *response.get(HEADER)? == IPV6);
    let is_open = *response.get(STATE)? == ESTABLISHED && number(INODE)? != 0;
    if is_by_family && is_open && response.get(ADDRESSES)? == addresses { number(USER) } else { None }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::lookup;

    /// A listener and a connection to it; `None` if the address is not available.
    fn connected(listen: &str, connect: &str) -> Option<(TcpListener, TcpStream)> {
        let listener = TcpListener::bind(listen).ok()?;
        let port = listener.local_addr().expect("an address").port();
        let stream = TcpStream::connect(format!("{connect}:{port}")).expect("a connection");
        Some((listener, stream))
    }

    fn addresses(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        (plain(stream.local_addr().expect("one end")), plain(stream.peer_addr().expect("the other")))
    }

    #[test]
    fn owner_is_found_for_open_connections_only() {
        let user = rustix::process::geteuid().as_raw();
        let cases = [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]"), ("[::]:0", "[::ffff:127.0.0.1]")];
        for (listen, connect) in cases {
            let Some((listener, stream)) = connected(listen, connect) else {
                assert_ne!(connect, "127.0.0.1", "only IPv6 may be unavailable");
                continue;
            };
            let (local, remote) = addresses(&stream);
            assert_eq!(lookup(local, remote), Some(user), "{connect}");
            let unused = SocketAddr::new(local.ip(), 1);
            assert_eq!(lookup(unused, remote), None, "a listener is not a connection");
            drop((stream, listener));
            assert_eq!(lookup(local, remote), None, "the program closed it");
        }
    }
}
