//! The tools, servers, workflows and permissions that a definition is checked against.

use std::collections::BTreeSet;
use std::time::Duration;

use steprail_core::names::{self, alias};
use steprail_core::plan::{Kind, Plan};
use steprail_engine::{Definition, User};

use crate::gateway::{Gateway, Health, ServerStatus};
use crate::limits::{ERROR_BYTES, SERVERS_WAIT_SECS};

/// The environment that a definition is checked against.
pub struct CheckContext<'k> {
    pub(super) gateway: &'k Gateway,
    /// State of the servers. If empty, servers that are down are not reported.
    pub(super) servers: Vec<ServerStatus>,
    /// Names that `workflow` steps may use; `None` if the definitions are not known.
    pub(super) workflows: Option<Vec<String>>,
    /// Tools of the definition that the user may not call.
    pub(super) denied: BTreeSet<Box<str>>,
}

impl<'k> CheckContext<'k> {
    /// The tools as last listed. Does not wait for servers.
    pub fn cached(gateway: &'k Gateway) -> Self {
        Self { gateway, servers: Vec::new(), workflows: None, denied: BTreeSet::new() }
    }

    /// Adds the state of the servers.
    #[must_use]
    pub fn with_servers(self, servers: Vec<ServerStatus>) -> Self {
        Self { servers, ..self }
    }

    /// Connects to the servers and lists their tools again, within [`SERVERS_WAIT_SECS`].
    pub(super) async fn refreshed(gateway: &'k Gateway) -> Self {
        let servers = servers(gateway).await;
        let timeout = Duration::from_secs(SERVERS_WAIT_SECS);
        // The previous list is used for a server that does not answer in time.
        let _ = tokio::time::timeout(timeout, gateway.refresh()).await;
        Self::cached(gateway).with_servers(servers)
    }

    /// Adds the tools that a user may not call, and the stored workflows if the plan uses any.
    pub(super) async fn for_user(self, user: &User, plan: &Plan) -> Self {
        let mut denied = BTreeSet::new();
        let mut has_workflows = false;
        for step in &plan.steps {
            has_workflows |= matches!(step.kind, Kind::Workflow(_));
            if let Kind::Call(call) = &step.kind
                && !user.may_call(&call.full_name()).await
            {
                denied.insert(call.full_name());
            }
        }
        // A user who may not list definitions gets no diagnostics about them.
        let workflows = if has_workflows { user.definitions().await.ok() } else { None };
        let names = |all: Vec<Definition>| all.into_iter().map(|definition| definition.name).collect();
        Self { denied, workflows: workflows.map(names), ..self }
    }

    /// The aliases of all servers.
    pub(super) fn aliases(&self, tools: &[String]) -> Vec<String> {
        let of_tools =
            tools.iter().filter_map(|tool| names::split(tool)).map(|(server, _)| server.to_owned());
        let of_servers = self.servers.iter().map(|server| alias(&server.name));
        of_tools.chain(of_servers).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// The state of the servers. Waits up to [`SERVERS_WAIT_SECS`] for those that are starting.
pub(crate) async fn servers(gateway: &Gateway) -> Vec<ServerStatus> {
    let timeout = Duration::from_secs(SERVERS_WAIT_SECS);
    let _ = tokio::time::timeout(timeout, gateway.connect()).await;
    gateway.status()
}

/// Why a server is down; `None` if it is not.
pub(crate) fn reason(server: &ServerStatus) -> Option<String> {
    let error = server.error.as_deref().filter(|_| server.health == Health::Down)?;
    Some(shortened(error.lines().next().unwrap_or_default(), ERROR_BYTES))
}

/// Cuts a text to `bytes` bytes and marks the cut with an ellipsis.
pub(crate) fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes)])
}
