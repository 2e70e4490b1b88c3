//! One connection, asked of the kernel (`sock_diag`, see `man 7 sock_diag`).

use std::net::{IpAddr, SocketAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// Messages about sockets of a family.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const TCP: u8 = 6;
/// Any state, and no cookie: the addresses are enough.
const ANY: [u8; 4] = [0xFF; 4];
const IPV6: u8 = 10;
const ESTABLISHED: u8 = 1;

const HEADER: usize = 16;
/// Where things stand in an answer: the state, both addresses, the user and the inode.
const STATE: usize = HEADER + 1;
const ENDS: std::ops::Range<usize> = HEADER + 4..HEADER + 4 + 36;
const USER: usize = HEADER + 64;
const INODE: usize = HEADER + 68;

/// The kernel does not answer such questions here.
pub(super) struct Unavailable;

/// The user of the program at the other end, if the kernel knows the connection and it is open.
pub(super) fn owner(there: SocketAddr, here: SocketAddr) -> Result<Option<u32>, Unavailable> {
    match ask(there, here) {
        Some(owner) => Ok(Some(owner)),
        // It says the same of a connection that it does not know and of questions that it does not know: our own end tells.
        None => ask(here, there).map(|_| None).ok_or(Unavailable),
    }
}

/// The user of a program at one end.
fn ask(one: SocketAddr, other: SocketAddr) -> Option<u32> {
    let family = if one.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    );
    let kernel = kernel.ok()?;
    send(&kernel, &question(family, &ends(one, other, one.is_ipv6())), SendFlags::empty()).ok()?;
    let mut answer = [0; 512];
    let (_, length) = recv(&kernel, &mut answer, RecvFlags::empty()).ok()?;
    owner_in(answer.get(..length)?, one, other)
}

/// A header, and `inet_diag_req_v2`.
fn question(family: AddressFamily, ends: &[u8]) -> Vec<u8> {
    let mut body = vec![u8::try_from(family.as_raw()).unwrap_or_default(), TCP, 0, 0];
    body.extend(ANY);
    body.extend(ends);
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

/// Both ports and both addresses, as the kernel has them: the end that is sought first.
fn ends(one: SocketAddr, other: SocketAddr, as_v6: bool) -> Vec<u8> {
    let mut bytes = [one.port().to_be_bytes(), other.port().to_be_bytes()].concat();
    for end in [one, other] {
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

/// A connection that its program has closed already belongs to nobody any more. Where there is no connection, the
/// kernel may answer with a listener.
fn owner_in(answer: &[u8], one: SocketAddr, other: SocketAddr) -> Option<u32> {
    let number = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let is_about_sockets = answer.get(4..6)? == BY_FAMILY.to_ne_bytes();
    // A socket for both families has IPv4 addresses in the clothes of IPv6.
    let ends = ends(one, other, *answer.get(HEADER)? == IPV6);
    let is_it = answer.get(ENDS)? == ends && *answer.get(STATE)? == ESTABLISHED && number(INODE)? != 0;
    if is_about_sockets && is_it { number(USER) } else { None }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::ask;

    /// A port, and a connection to it.
    fn connected(listen: &str, connect: &str) -> Option<(TcpListener, TcpStream)> {
        let listener = TcpListener::bind(listen).ok()?;
        let port = listener.local_addr().expect("an address").port();
        let stream = TcpStream::connect(format!("{connect}:{port}")).expect("a connection");
        Some((listener, stream))
    }

    fn ends(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        (plain(stream.local_addr().expect("one end")), plain(stream.peer_addr().expect("the other")))
    }

    #[test]
    fn the_kernel_knows_the_user_of_an_open_connection() {
        let us = rustix::process::geteuid().as_raw();
        let all = [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]"), ("[::]:0", "[::ffff:127.0.0.1]")];
        for (listen, connect) in all {
            let Some((listener, stream)) = connected(listen, connect) else {
                assert_ne!(connect, "127.0.0.1", "a machine may be without IPv6");
                continue;
            };
            let (there, here) = ends(&stream);
            assert_eq!(ask(there, here), Some(us), "{connect}");
            let nobody = SocketAddr::new(there.ip(), 1);
            assert_eq!(ask(nobody, here), None, "the listener is no connection");
            drop((stream, listener));
            assert_eq!(ask(there, here), None, "its program is gone");
        }
    }
}
