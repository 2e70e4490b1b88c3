//! A URL that gets JSON without the format of a channel.

use serde_json::Value;
use steprail_core::run::Millis;
use url::Url;

use super::{Outbound, OutboundOptions, Request};
use crate::channel::SendError;
use crate::config::ConfigError;

/// A checked URL and the client that posts to it.
pub struct Endpoint {
    outbound: Outbound,
    url: Url,
}

impl Endpoint {
    /// Checks the URL. The addresses of a host name are checked with each request.
    pub fn new(url: &str, options: OutboundOptions) -> Result<Self, ConfigError> {
        let outbound = Outbound::new(options)?;
        let url = crate::channels::service_url(url, &outbound)?;
        Ok(Self { outbound, url })
    }

    /// Posts a value.
    pub async fn post(&self, body: &Value, now: Millis) -> Result<(), SendError> {
        self.outbound.send(Request::json(self.url.clone(), body, now)).await.map(drop)
    }
}
