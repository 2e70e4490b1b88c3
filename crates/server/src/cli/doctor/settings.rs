//! The settings: whether a daemon can be started with them.

use super::Finding;
use crate::config::types::Listen;
use crate::config::{Config, Place, environment};
use crate::daemon::Home;

pub(super) fn look(home: &Home, is_running: bool) -> Vec<Finding> {
    let config = match Config::load(home, None, environment(), &[]) {
        Ok(config) => config,
        Err(problems) => {
            let told = problems.iter().map(|problem| {
                Finding::problem("settings", problem.in_short(), "`steprail config` shows where it is")
            });
            return told.collect();
        }
    };
    match config.http.listen {
        // Another port is taken where nobody asked for this one.
        Listen::At(address) if !is_running && !matches!(config.place("http.listen"), Place::Default) => {
            match std::net::TcpListener::bind(address) {
                Ok(_) => vec![Finding::ok("settings", format!("they are sound, and {address} is free"))],
                Err(error) => {
                    let hint = "end what has it, or name another address as `http.listen`";
                    vec![Finding::problem("settings", format!("{address} cannot be taken: {error}"), hint)]
                }
            }
        }
        _ => vec![Finding::ok("settings", "they are sound")],
    }
}
