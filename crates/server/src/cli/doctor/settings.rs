//! Checks whether a daemon can start with the settings.

use super::{Finding, notify};
use crate::config::types::Listen;
use crate::config::{Config, SettingSource, environment};
use crate::daemon::DataDir;
use crate::secrets::Vault;

const TOPIC: &str = "settings";

/// Returns the findings, and the secrets that the settings select.
pub(super) fn check(home: &DataDir, is_running: bool) -> (Vec<Finding>, Vault) {
    match Config::load(home, None, environment(), &[]) {
        Ok(config) => {
            let vault = Vault::of(home, &config);
            let mut findings = vec![check_address(&config, is_running)];
            findings.extend(notify::check(home, &config, &vault));
            (findings, vault)
        }
        Err(problems) => {
            let hint = "see its position with `steprail config`";
            let findings = problems.iter().map(|problem| Finding::problem(TOPIC, problem.in_short(), hint));
            (findings.collect(), Vault::new(home.secrets(), home.secrets_key()))
        }
    }
}

fn check_address(config: &Config, is_running: bool) -> Finding {
    match config.http.listen {
        // If the default port is in use, the daemon binds another one.
        Listen::At(address)
            if !is_running && !matches!(config.source("http.listen"), SettingSource::Default) =>
        {
            match std::net::TcpListener::bind(address) {
                Ok(_) => Finding::ok(TOPIC, format!("valid, and {address} is free")),
                Err(error) => {
                    let hint = "stop the program that uses it, or set another address as `http.listen`";
                    Finding::problem(TOPIC, format!("cannot listen on {address}: {error}"), hint)
                }
            }
        }
        _ => Finding::ok(TOPIC, "valid"),
    }
}
