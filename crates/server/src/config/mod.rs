//! How a daemon is configured: defaults, `steprail.toml`, the environment and flags, of which later ones win.
//!
//! `keys.rs` declares every setting once; reading, defaults and the reference page follow from it.

mod declare;
mod explain;
mod file;
mod keys;
mod load;
mod problem;
mod rules;
mod secret;
mod setting;
mod show;
#[cfg(test)]
mod tests;
pub(crate) mod types;

pub(crate) use explain::markdown;
pub(crate) use keys::{Config, Telemetry};
pub(crate) use problem::{Place, Problem};
pub(crate) use secret::Secret;

/// What names of environment variables begin with.
const PREFIX: &str = "STEPRAIL_";
/// Variables that are no settings: they say where the settings are.
const OTHER_VARIABLES: &[&str] = &["STEPRAIL_DATA", "STEPRAIL_CONFIG", "STEPRAIL_SERVER", "STEPRAIL_TOKEN"];
/// The file in the data directory.
const FILE: &str = "steprail.toml";

/// The environment of the process, as far as the names are text.
pub(crate) fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        name.into_string().ok().map(|name| (name, value.to_string_lossy().into_owned()))
    })
}
