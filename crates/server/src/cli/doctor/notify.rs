//! Checks whether the channels of notifications can be opened. Nothing is sent.

use std::sync::Arc;

use super::Finding;
use crate::config::Config;
use crate::notify::ChannelSet;
use crate::secrets::Vault;

const TOPIC: &str = "notify";

/// The findings; none if no channel is configured.
pub(super) fn check(config: &Config, vault: &Vault) -> Vec<Finding> {
    let config = config.notify.config();
    let channels = config.channels.len();
    if channels == 0 {
        return Vec::new();
    }
    let (_, problems) = ChannelSet::open(config, Arc::new(vault.clone()));
    let hint = "its notifications wait until it is corrected";
    let mut findings: Vec<Finding> =
        problems.iter().map(|problem| Finding::problem(TOPIC, problem.to_string(), hint)).collect();
    if findings.is_empty() {
        let text = format!("all channels ({channels}) are valid; `steprail notify test` sends a message");
        findings.push(Finding::ok(TOPIC, text));
    }
    findings
}
