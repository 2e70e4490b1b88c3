//! The settings: whether a daemon can be started with them.

use super::Finding;
use crate::config::types::Listen;
use crate::config::{Config, SettingSource, environment};
use crate::daemon::DataDir;
use crate::secrets::Vault;

/// What was found, and the secrets that the settings lead to.
pub(super) fn look(home: &DataDir, is_running: bool) -> (Vec<Finding>, Vault) {
    match Config::load(home, None, environment(), &[]) {
        Ok(config) => (vec![listens(&config, is_running)], Vault::of(home, &config)),
        Err(problems) => {
            let told = problems.iter().map(|problem| {
                Finding::problem("settings", problem.in_short(), "`steprail config` shows where it is")
            });
            (told.collect(), Vault::new(home.secrets(), home.secrets_key()))
        }
    }
}

fn listens(config: &Config, is_running: bool) -> Finding {
    match config.http.listen {
        // Another port is taken where nobody asked for this one.
        Listen::At(address)
            if !is_running && !matches!(config.source("http.listen"), SettingSource::Default) =>
        {
            match std::net::TcpListener::bind(address) {
                Ok(_) => Finding::ok("settings", format!("they are sound, and {address} is free")),
                Err(error) => {
                    let hint = "end what has it, or name another address as `http.listen`";
                    Finding::problem("settings", format!("{address} cannot be taken: {error}"), hint)
                }
            }
        }
        _ => Finding::ok("settings", "they are sound"),
    }
}
