//! The channels, one file each.

pub mod command;
pub mod desktop;
#[cfg(feature = "smtp")]
pub mod email;
pub mod ntfy;
pub mod pushover;
pub mod slack;
pub mod teams;
pub mod webhook;

use url::Url;

use crate::config::ConfigError;
use crate::message::Message;
use crate::outbound::Outbound;

/// Parses the base URL of a service and checks it. The error does not contain the URL, which may be a secret.
pub(crate) fn service_url(text: &str, outbound: &Outbound) -> Result<Url, ConfigError> {
    let url = Url::parse(text).map_err(|error| ConfigError::new(format!("`url` is not a URL: {error}")))?;
    outbound.check_url(&url).map_err(|refused| ConfigError::new(format!("`url`: {refused}")))?;
    Ok(url)
}

/// The URL of a path below a base URL. Each segment is percent-encoded.
fn below(base: &Url, segments: &[&str]) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// The key by which a receiver recognises a repeated delivery: the same for each attempt, and different for each recipient.
/// It has letters and digits that every service accepts.
pub(crate) fn delivery_key(message: &Message, address: &str) -> String {
    let text = format!("{}\0{address}", message.id);
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
