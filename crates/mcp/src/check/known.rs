//! What a definition is compared with: tools, servers, stored workflows, and what the user may call.

use std::collections::BTreeSet;
use std::time::Duration;

use steprail_core::names::alias;
use steprail_core::plan::{Kind, Plan};
use steprail_engine::{Definition, User};

use crate::gateway::{Gateway, Health, ServerStatus};
use crate::limits::{ERROR_BYTES, SERVERS_WAIT_SECS};

/// What a definition is compared with.
pub struct Known<'k> {
    pub(super) gateway: &'k Gateway,
    /// The servers and how they are doing; empty where that was not asked.
    pub(super) servers: Vec<ServerStatus>,
    /// Definitions that `workflow` steps may name; none where they are not known.
    pub(super) workflows: Option<Vec<String>>,
    /// Tools of the definition that the user may not call.
    pub(super) denied: BTreeSet<Box<str>>,
}

impl<'k> Known<'k> {
    /// The tools that are known now. Nothing waits for a server.
    pub fn now(gateway: &'k Gateway) -> Self {
        Self { gateway, servers: Vec::new(), workflows: None, denied: BTreeSet::new() }
    }

    /// The tools that are known now, and how their servers are doing.
    #[must_use]
    pub fn with_servers(self, servers: Vec<ServerStatus>) -> Self {
        Self { servers, ..self }
    }

    /// The tools that servers have when they are asked, within a bounded time.
    pub(super) async fn asked(gateway: &'k Gateway) -> Self {
        let servers = servers(gateway).await;
        let patience = Duration::from_secs(SERVERS_WAIT_SECS);
        // A server that does not answer in time is compared as it was.
        let _ = tokio::time::timeout(patience, gateway.refresh()).await;
        Self::now(gateway).with_servers(servers)
    }

    /// The same for a user: the tools that they may not call, and the workflows that are stored.
    pub(super) async fn of_user(self, user: &User, plan: &Plan) -> Self {
        let mut denied = BTreeSet::new();
        let mut nests = false;
        for step in &plan.steps {
            nests |= matches!(step.kind, Kind::Workflow(_));
            if let Kind::Call(call) = &step.kind
                && !user.may_call(&call.full_name()).await
            {
                denied.insert(call.full_name());
            }
        }
        // Somebody who may not list definitions is told nothing about them.
        let workflows = if nests { user.definitions().await.ok() } else { None };
        let names = |all: Vec<Definition>| all.into_iter().map(|definition| definition.name).collect();
        Self { denied, workflows: workflows.map(names), ..self }
    }

    /// The names that tools begin with.
    pub(super) fn aliases(&self, tools: &[String]) -> Vec<String> {
        let up = tools.iter().filter_map(|tool| tool.split_once("__")).map(|(server, _)| server.to_owned());
        let listed = self.servers.iter().map(|server| alias(&server.name));
        up.chain(listed).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// The state of the servers. Those that are starting are waited for, within a bounded time.
pub(crate) async fn servers(gateway: &Gateway) -> Vec<ServerStatus> {
    let patience = Duration::from_secs(SERVERS_WAIT_SECS);
    let _ = tokio::time::timeout(patience, gateway.connect()).await;
    gateway.status()
}

/// Why a server cannot be reached, if it cannot.
pub(crate) fn reason(server: &ServerStatus) -> Option<String> {
    let error = server.error.as_deref().filter(|_| server.health == Health::Down)?;
    Some(shortened(error.lines().next().unwrap_or_default(), ERROR_BYTES))
}

/// A text of at most so many bytes; an ellipsis stands for what was cut.
pub(crate) fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes)])
}
