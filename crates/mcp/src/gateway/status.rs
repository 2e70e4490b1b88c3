//! The state of servers, for operators.

use std::sync::Arc;
use std::time::Duration;

use steprail_core::run::Millis;

use super::catalogue::ToolInfo;
use super::era::Era;
use super::link::{Health, Link};

/// The state of a server, with its tools.
#[derive(Debug)]
pub struct ServerStatus {
    /// Name of the server, as in the config.
    pub name: String,
    /// The user of the connection; `None` for a shared one.
    pub user: Option<String>,
    /// The state of the connection.
    pub health: Health,
    /// When `health` last changed, in milliseconds since 1970.
    pub since: Millis,
    /// The protocol era of the server, once known.
    pub era: Option<Era>,
    /// The tools as last listed.
    pub tools: Vec<Arc<ToolInfo>>,
    /// Problems with the descriptions of tools.
    pub warnings: Vec<String>,
    /// Why the last connection attempt failed, in one line.
    pub error: Option<String>,
    /// Time until the next attempt.
    pub retry_in: Option<Duration>,
    /// The last lines of its standard error. For operators only, because they may contain secrets.
    pub stderr: Vec<String>,
}

impl ServerStatus {
    /// A command or hint for the operator; `None` if the server needs no attention.
    pub fn next_action(&self) -> Option<String> {
        let error = self.error.as_deref().unwrap_or_default();
        match self.health {
            Health::Down if error.contains("steprail login") || error.contains("requires a login") => {
                Some(format!("steprail login {}", self.name))
            }
            Health::Down if error.contains("is not set") || error.contains("are not set") => {
                Some("set it in the environment of the daemon, or with `steprail secret set`".to_owned())
            }
            Health::Down => Some(format!("steprail servers restart {}", self.name)),
            Health::Idle | Health::Starting | Health::Up | Health::Busy => None,
        }
    }

    pub(super) fn of(link: &Link) -> Self {
        let (now, catalogue) = (link.snapshot(), link.catalogue());
        let tools = catalogue.as_ref().map(|catalogue| catalogue.tools.values().cloned().collect());
        Self {
            name: link.server.clone(),
            user: link.user.clone(),
            health: now.health,
            since: now.since,
            era: now.era,
            tools: tools.unwrap_or_default(),
            warnings: catalogue.map(|catalogue| catalogue.warnings.clone()).unwrap_or_default(),
            error: now.error,
            retry_in: now.retry_in,
            stderr: link.stderr.last_lines(),
        }
    }
}
