//! Limits on connections, in total and per address, with a reserve for health checks and the owner.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// The maximum number of connections, whatever the limit on file descriptors is.
const MAX_CONNECTIONS: usize = 16_384;
/// The minimum number of connections.
const MIN_CONNECTIONS: usize = 64;
/// Reserved connections beyond the limits: for health checks and for local programs of the owner.
const RESERVED: usize = 64;
/// The reserved connections that one address can have.
const RESERVED_PER_ADDRESS: usize = 16;
/// Seconds until a rejected client should try again.
const RETRY_AFTER_S: u32 = 5;

/// Limits on the connections of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections in total, without the reserve.
    pub total: usize,
    /// Connections per address; `None` means no limit. Loopback addresses are exempt, because a reverse proxy or a local
    /// program connects from them. An IPv6 network of 64 bits counts as one address.
    pub per_address: Option<u32>,
}

impl Default for ConnectionLimits {
    /// Limits for 1,024 file descriptors, the usual soft limit.
    fn default() -> Self {
        Self::for_descriptors(1_024)
    }
}

impl ConnectionLimits {
    /// Limits for a process that can open this many file descriptors. A quarter of them is left for the database, the
    /// sockets of the data directory and the connections to servers.
    pub fn for_descriptors(descriptors: u64) -> Self {
        let most = usize::try_from(descriptors / 4 * 3).unwrap_or(usize::MAX).saturating_sub(RESERVED);
        Self { total: most.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS), per_address: None }
    }
}

/// The open connections of a port.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: ConnectionLimits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Connections within the limits, and connections of the reserve.
    total: Counts,
    by_address: HashMap<IpAddr, Counts>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    regular: usize,
    reserved: usize,
}

impl Counts {
    fn of(&mut self, is_reserved: bool) -> &mut usize {
        if is_reserved { &mut self.reserved } else { &mut self.regular }
    }
}

/// One open connection. Dropping it frees its place.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    address: IpAddr,
    /// Whether it exceeds a limit and belongs to the reserve.
    pub is_reserved: bool,
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default() })
    }

    /// Admits a connection, within the limits or to the reserve. `None` if the reserve is exhausted, too.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionSlot> {
        let address = network(address);
        let mut open = self.lock();
        let of_address = open.by_address.get(&address).copied().unwrap_or_default();
        let limit = self.limits.per_address.filter(|_| !address.is_loopback());
        let is_reserved = open.total.regular >= self.limits.total
            || limit.is_some_and(|limit| of_address.regular >= limit as usize);
        if is_reserved && (open.total.reserved >= RESERVED || of_address.reserved >= RESERVED_PER_ADDRESS) {
            return None;
        }
        *open.total.of(is_reserved) += 1;
        *open.by_address.entry(address).or_default().of(is_reserved) += 1;
        Some(ConnectionSlot { connections: self.clone(), address, is_reserved })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        let total = open.total.of(self.is_reserved);
        *total = total.saturating_sub(1);
        let Some(counts) = open.by_address.get_mut(&self.address) else { return };
        let count = counts.of(self.is_reserved);
        *count = count.saturating_sub(1);
        if counts.regular + counts.reserved == 0 {
            open.by_address.remove(&self.address);
        }
    }
}

/// The address that connections are counted by: IPv6 clients usually have a network of 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

/// Serves only health checks, on connections of the reserve.
pub(crate) async fn health_checks_only(request: Request, next: Next) -> Response {
    if matches!(request.uri().path(), "/healthz" | "/readyz") {
        return next.run(request).await;
    }
    let detail = "the server has no free connection for this address";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", detail)
        .hint("close idle connections; the operator can raise `quota.connections` and the limit on file descriptors");
    let mut response = Problem { retry_after: Some(RETRY_AFTER_S), ..problem }.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(connections: &Arc<Connections>, address: &str, count: usize) -> Vec<ConnectionSlot> {
        let address: IpAddr = address.parse().expect("an address");
        (0..count).filter_map(|_| connections.admit(address)).collect()
    }

    fn regular(slots: &[ConnectionSlot]) -> usize {
        slots.iter().filter(|slot| !slot.is_reserved).count()
    }

    #[test]
    fn one_address_cannot_take_all_connections() {
        let connections = Connections::new(ConnectionLimits { total: 100, per_address: Some(10) });
        let greedy = admitted(&connections, "192.0.2.1", 1_000);
        assert_eq!((regular(&greedy), greedy.len()), (10, 10 + RESERVED_PER_ADDRESS));
        assert_eq!(regular(&admitted(&connections, "192.0.2.2", 5)), 5, "others are not affected");
        drop(greedy);
        assert_eq!(regular(&admitted(&connections, "192.0.2.1", 5)), 5, "closed connections do not count");
        assert!(connections.lock().by_address.is_empty(), "and need no memory");
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let connections = Connections::new(ConnectionLimits { total: 100, per_address: Some(10) });
        let _first = admitted(&connections, "2001:db8::1", 6);
        let second = admitted(&connections, "2001:db8::2", 6);
        assert_eq!(regular(&second), 4);
        assert_eq!(regular(&admitted(&connections, "2001:db8:0:1::1", 6)), 6, "another network");
        assert_eq!(regular(&admitted(&connections, "::1", 20)), 20, "loopback is exempt");
    }

    #[test]
    fn reserve_is_left_when_all_connections_are_taken() {
        let connections = Connections::new(ConnectionLimits { total: 10, per_address: None });
        let flood = admitted(&connections, "192.0.2.1", 1_000);
        assert_eq!(regular(&flood), 10);
        let health_check = connections.admit([192, 0, 2, 9].into()).expect("a reserved connection");
        assert!(health_check.is_reserved);
    }

    #[test]
    fn limit_leaves_file_descriptors() {
        let limit = |descriptors| ConnectionLimits::for_descriptors(descriptors).total;
        assert_eq!(limit(1_024), 704);
        assert_eq!(limit(u64::MAX), MAX_CONNECTIONS);
        assert_eq!(limit(10), MIN_CONNECTIONS);
    }
}
