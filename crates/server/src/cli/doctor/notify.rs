//! Checks whether the channels of notifications can be opened. Nothing is sent.

use std::sync::Arc;

use tokio::sync::watch;

use super::Finding;
use crate::config::Config;
use crate::daemon::{DataDir, policy_file};
use crate::notify::{self, ChannelSet};
use crate::secrets::Vault;
use crate::tools::Tools;

const TOPIC: &str = "notify";

/// The findings; none if no channel is configured.
pub(super) fn check(home: &DataDir, config: &Config, vault: &Vault) -> Vec<Finding> {
    let config = config.notify.config();
    let channels = config.channels.len();
    if channels == 0 {
        return Vec::new();
    }
    // Problems of the policy are reported with it.
    let policy = policy_file::load(&home.policy()).ok().flatten();
    let refused = notify::refusals(&config, policy.as_ref(), &Tools::None);
    let (_, problems) = ChannelSet::open(config, Arc::new(vault.clone()), watch::channel(None).1);
    let hint = "its notifications wait until it is corrected";
    let problems = problems.iter().map(|problem| Finding::problem(TOPIC, problem.to_string(), hint));
    let mut findings: Vec<Finding> = problems.collect();
    let hint = "a daemon does not start with it";
    findings.extend(refused.iter().map(|problem| Finding::problem(TOPIC, problem.to_string(), hint)));
    if findings.is_empty() {
        let text = format!("all channels ({channels}) are valid; `steprail notify test` sends a message");
        findings.push(Finding::ok(TOPIC, text));
    }
    findings
}
