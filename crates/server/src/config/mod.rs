//! Settings of a daemon: defaults, `steprail.toml`, environment variables and flags, in ascending precedence.
//!
//! `keys.rs` declares every setting once. Parsing, defaults and the reference page are generated from it.

mod declare;
mod explain;
mod file;
mod keys;
mod load;
mod notify;
mod problem;
mod rules;
mod secret;
pub(crate) mod secret_source;
mod setting;
mod show;
mod structured;
#[cfg(test)]
mod tests;
pub(crate) mod types;

pub(crate) use explain::markdown;
pub(crate) use keys::{Config, Notify, Telemetry};
pub(crate) use problem::{Problem, SettingSource};
pub(crate) use secret::Secret;

/// Prefix of environment variables.
const PREFIX: &str = "STEPRAIL_";
/// Variables with the prefix that are not settings.
const OTHER_VARIABLES: &[&str] = &["STEPRAIL_DATA", "STEPRAIL_CONFIG", "STEPRAIL_SERVER", "STEPRAIL_TOKEN"];
/// Name of the file in the data directory.
const FILE: &str = "steprail.toml";

/// The environment of the process. Variables whose names are not UTF-8 are omitted.
pub(crate) fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        name.into_string().ok().map(|name| (name, value.to_string_lossy().into_owned()))
    })
}
