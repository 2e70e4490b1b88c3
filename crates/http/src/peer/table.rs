//! Peer lookup in `/proc/net/tcp`, for systems without `sock_diag`. Each lookup reads the whole table.

use std::net::{IpAddr, SocketAddr};

/// `TCP_ESTABLISHED`.
const ESTABLISHED: &str = "01";

/// The user id of the program at the remote end.
pub(super) fn owner(there: SocketAddr, here: SocketAddr) -> Option<u32> {
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().find_map(|table| {
        let table = std::fs::read_to_string(table).ok()?;
        table.lines().find_map(|line| owner_in(line, there, here))
    })
}

/// Parses `number: local remote state queues timer retransmits user timeout inode …`, with addresses in hexadecimal.
/// A socket that its program has closed has inode 0 and user 0, which is not its owner.
fn owner_in(line: &str, there: SocketAddr, here: SocketAddr) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace();
    let (local, remote, state) = (fields.nth(1)?, fields.next()?, fields.next()?);
    let (user, inode) = (fields.nth(3)?, fields.nth(1)?);
    let is_match = is_address(local, there) && is_address(remote, here);
    let is_open = state == ESTABLISHED && inode != "0";
    if is_match && is_open { user.parse().ok() } else { None }
}

fn is_address(field: &str, address: SocketAddr) -> bool {
    let Some((ip, port)) = field.split_once(':') else { return false };
    let v4 = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
    let is_ip = match address.ip() {
        IpAddr::V4(four) => {
            let plain = v4(four.octets());
            ip == plain || ip.strip_prefix("0000000000000000FFFF0000") == Some(&plain)
        }
        IpAddr::V6(six) => {
            let words = six.octets();
            let words = words.chunks(4).map(|word| v4([word[0], word[1], word[2], word[3]]));
            ip == words.collect::<String>()
        }
    };
    is_ip && u16::from_str_radix(port, 16) == Ok(address.port())
}

#[cfg(test)]
mod tests {
    use super::owner_in;

    #[test]
    fn owner_is_found_for_open_connections_only() {
        let line =
            "  12: 0100007F:D2F0 0100007F:210E 01 00000000:00000000 00:00000000 00000000  1000        0 81 1";
        let address = |port: u16| ([127, 0, 0, 1], port).into();
        assert_eq!(owner_in(line, address(0xD2F0), address(0x210E)), Some(1000));
        assert_eq!(owner_in(line, address(0x210E), address(0xD2F0)), None, "the other end");
        let closed =
            "  12: 0100007F:D2F0 0100007F:210E 05 00000000:00000000 00:00000000 00000000     0        0 0 1";
        assert_eq!(owner_in(closed, address(0xD2F0), address(0x210E)), None, "the program closed it");
        assert_eq!(owner_in("sl local_address rem_address", address(1), address(2)), None);
    }
}
