//! One connection, asked of the kernel (`sock_diag`, see `man 7 sock_diag`).

use std::net::{IpAddr, SocketAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// Messages about sockets of a family.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const TCP: u8 = 6;
/// Any state, any interface, and no cookie: the addresses are enough.
const ANY: [u8; 4] = [0xFF; 4];
const ESTABLISHED: u8 = 1;

const HEADER: usize = 16;
/// Where things stand in an answer: the state, both addresses, the user and the inode.
const STATE: usize = HEADER + 1;
const ENDS: std::ops::Range<usize> = HEADER + 4..HEADER + 4 + 36;
const USER: usize = HEADER + 64;
const INODE: usize = HEADER + 68;

/// The user of the program at the other end. None if the kernel does not know the connection, or does not answer.
pub(super) fn owner(there: SocketAddr, here: SocketAddr) -> Option<u32> {
    let ends = ends(there, here)?;
    let family = if there.ip().to_canonical().is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    );
    let kernel = kernel.ok()?;
    send(&kernel, &question(family, &ends), SendFlags::empty()).ok()?;
    let mut answer = [0; 512];
    let (_, length) = recv(&kernel, &mut answer, RecvFlags::empty()).ok()?;
    owner_in(answer.get(..length)?, &ends)
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
fn ends(there: SocketAddr, here: SocketAddr) -> Option<Vec<u8>> {
    let mut bytes = [there.port().to_be_bytes(), here.port().to_be_bytes()].concat();
    for end in [there, here] {
        let mut address = [0; 16];
        match (end.ip().to_canonical(), there.ip().to_canonical()) {
            (IpAddr::V4(four), IpAddr::V4(_)) => address[..4].copy_from_slice(&four.octets()),
            (IpAddr::V6(six), IpAddr::V6(_)) => address = six.octets(),
            _ => return None,
        }
        bytes.extend(address);
    }
    Some(bytes)
}

/// A connection that its program has closed already belongs to nobody any more. Where there is no connection, the
/// kernel may answer with a listener.
fn owner_in(answer: &[u8], ends: &[u8]) -> Option<u32> {
    let number = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let is_about_sockets = answer.get(4..6)? == BY_FAMILY.to_ne_bytes();
    let is_it = answer.get(ENDS)? == ends && *answer.get(STATE)? == ESTABLISHED && number(INODE)? != 0;
    if is_about_sockets && is_it { number(USER) } else { None }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::owner;

    #[test]
    fn the_kernel_knows_the_user_of_an_open_connection() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                assert_ne!(host, "127.0.0.1:0", "a machine may be without IPv6");
                continue;
            };
            let here = listener.local_addr().expect("an address");
            let stream = TcpStream::connect(here).expect("a connection");
            let there = stream.local_addr().expect("an address");
            let us = rustix::process::geteuid().as_raw();
            assert_eq!(owner(there, here), Some(us), "{host}");
            let mut nobody = there;
            nobody.set_port(1);
            assert_eq!(owner(nobody, here), None, "the listener is no connection");
            drop((stream, listener));
            assert_eq!(owner(there, here), None, "its program is gone");
        }
    }
}
