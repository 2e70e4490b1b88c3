//! The guard of outbound requests: which URLs may be requested, and to which addresses a host name may resolve.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use super::address::{embedded, not_public};
use crate::channel::BoxFuture;
use crate::config::ConfigError;
use crate::limits;

/// Resolves host names. The default asks the operating system.
pub trait Lookup: Send + Sync {
    /// The addresses of a host.
    fn lookup<'f>(&'f self, host: &'f str) -> BoxFuture<'f, std::io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup<'f>(&'f self, host: &'f str) -> BoxFuture<'f, std::io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.take(limits::ADDRESSES).map(|address| address.ip()).collect())
        })
    }
}

/// The hosts and networks that the operator allows in addition to public addresses.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    networks: Vec<IpNet>,
    hosts: Vec<String>,
}

impl Allowed {
    /// Parses networks (`10.0.0.0/8`), addresses (`127.0.0.1`) and host names (`ntfy.internal`).
    pub fn parse(entries: &[String]) -> Result<Self, ConfigError> {
        if entries.len() > limits::ALLOWED {
            return Err(ConfigError::new(format!("`allow` has at most {} entries", limits::ALLOWED)));
        }
        let mut allowed = Self::default();
        for entry in entries {
            let network = entry.parse::<IpNet>().or_else(|_| entry.parse::<IpAddr>().map(IpNet::from));
            match (network, Host::parse(entry)) {
                (Ok(network), _) => allowed.networks.push(network),
                (Err(_), Ok(Host::Domain(host))) if !entry.contains('*') => allowed.hosts.push(host),
                _ => {
                    let message = format!("`{entry}` is not a network, an address or a host name");
                    return Err(ConfigError::new(message).hint("write `10.0.0.0/8` or `ntfy.internal`"));
                }
            }
        }
        Ok(allowed)
    }

    /// Also allows a host.
    pub(super) fn and_host(mut self, host: &str) -> Self {
        self.hosts.push(host.to_owned());
        self
    }

    fn has_host(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.');
        self.hosts.iter().any(|allowed| allowed.trim_end_matches('.').eq_ignore_ascii_case(host))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let inner = match address {
            IpAddr::V6(address) => embedded(address).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        let contains = |address: IpAddr| self.networks.iter().any(|network| network.contains(&address));
        contains(address) || inner.is_some_and(contains)
    }
}

/// A request that the guard does not permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reason and what to do.
    pub reason: String,
    /// Whether the addresses of the host are the reason. They can change.
    pub by_lookup: bool,
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.reason)
    }
}

impl std::error::Error for Refused {}

/// Checks URLs, and resolves host names for the HTTP client. The client connects only to addresses that `resolve` returned,
/// so a host cannot have one address for the check and another for the connection.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) allowed: Arc<Allowed>,
    pub(super) lookup: Arc<dyn Lookup>,
}

impl Guard {
    /// Checks everything about a URL except the addresses of a host name, which `resolve` checks.
    pub(super) fn check_url(&self, url: &Url) -> Result<(), Refused> {
        let refuse = |reason: String| Err(Refused { reason, by_lookup: false });
        let is_allowed = match url.host() {
            Some(Host::Domain(host)) => self.allowed.has_host(host),
            Some(Host::Ipv4(address)) => self.check_literal(address.into())?,
            Some(Host::Ipv6(address)) => self.check_literal(address.into())?,
            None => return refuse("the URL has no host".to_owned()),
        };
        match url.scheme() {
            "https" => Ok(()),
            "http" if is_allowed => Ok(()),
            "http" => refuse("http is refused: use https, or add the host to `notify.allow`".to_owned()),
            scheme => refuse(format!("scheme `{scheme}` is refused: use https")),
        }
    }

    /// Whether the operator allows an address, which is an error if it is not public and not allowed.
    fn check_literal(&self, address: IpAddr) -> Result<bool, Refused> {
        let is_allowed = self.allowed.has_address(address);
        match not_public(address).filter(|_| !is_allowed) {
            None => Ok(is_allowed),
            Some(kind) => Err(Refused { reason: refusal(&address.to_string(), kind), by_lookup: false }),
        }
    }

    /// Refuses a host if any of its addresses is not permitted: an honest host does not mix them.
    fn check_addresses(&self, host: &str, found: &[IpAddr]) -> Result<(), Refused> {
        if self.allowed.has_host(host) {
            return Ok(());
        }
        let refused = |address: &IpAddr| not_public(*address).filter(|_| !self.allowed.has_address(*address));
        match found.iter().find_map(|address| refused(address).map(|kind| (address, kind))) {
            None => Ok(()),
            Some((address, kind)) => {
                let reason = refusal(&format!("{address} (an address of {host})"), kind);
                Err(Refused { reason, by_lookup: true })
            }
        }
    }
}

fn refusal(address: &str, kind: &str) -> String {
    format!("{address} is {kind}; if the request is intended, add the network or host to `notify.allow`")
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let mut found = guard.lookup.lookup(name.as_str()).await?;
            found.truncate(limits::ADDRESSES);
            guard.check_addresses(name.as_str(), &found)?;
            let found: Addrs = Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(found)
        })
    }
}
