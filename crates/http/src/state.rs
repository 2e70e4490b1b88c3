//! The state that handlers share, and the options it is built from.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use steprail_engine::Engine;
use steprail_mcp::{Gateway, Logins, SecretStore};
use tokio_util::sync::CancellationToken;

use crate::access_policy::AccessPolicy;
use crate::accounts::oidc::Oidc;
use crate::accounts::{Accounts, FailureLimiter, LoadedAccounts, SessionLifetime};
use crate::approval_links::{LinkAttempts, LinkSigner};
use crate::connections::ConnectionLimits;
use crate::peer::process::AgentProcesses;
use crate::stream::Hub;
use crate::views::Tool;

/// What an [`App`] serves.
pub struct Options {
    /// The engine.
    pub engine: Engine,
    /// Accounts of the engine's store, loaded before the engine started.
    pub accounts: LoadedAccounts,
    /// How long browser sessions last.
    pub session_lifetime: SessionLifetime,
    /// Connections to MCP servers, if tools come from those.
    pub gateway: Option<Gateway>,
    /// Lists the tools that steps can call.
    pub tools: Arc<dyn Fn() -> Vec<Tool> + Send + Sync>,
    /// OAuth logins at MCP servers.
    pub logins: Option<Logins>,
    /// Secrets for the config entries of MCP servers.
    pub secrets: Arc<dyn SecretStore>,
    /// Accepted hosts and origins, and whether requests must authenticate.
    pub access_policy: AccessPolicy,
    /// The identity provider whose tokens are accepted.
    pub oidc: Option<Oidc>,
    /// Renders the metrics in the text format of Prometheus.
    pub metrics: Option<Arc<dyn Fn() -> String + Send + Sync>>,
    /// Public base URL. Without it, the address of the first port that is served.
    pub url: Option<String>,
    /// Signs approval links. Without it, no link is valid.
    pub links: Option<LinkSigner>,
    /// The maximum size of a request body, in bytes.
    pub max_body_bytes: usize,
    /// Limits on the connections of a port.
    pub connections: ConnectionLimits,
}

/// The HTTP surface of one engine. A clone is another handle to it.
#[derive(Clone)]
pub struct App(Arc<State>);

/// The state that handlers share.
pub struct State {
    pub(crate) engine: Engine,
    pub(crate) accounts: Accounts,
    pub(crate) gateway: Option<Gateway>,
    pub(crate) tools: Arc<dyn Fn() -> Vec<Tool> + Send + Sync>,
    pub(crate) logins: Option<Logins>,
    pub(crate) secrets: Arc<dyn SecretStore>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) access_policy: AccessPolicy,
    pub(crate) oidc: Option<Oidc>,
    pub(crate) metrics: Option<Arc<dyn Fn() -> String + Send + Sync>>,
    pub(crate) url: OnceLock<String>,
    pub(crate) links: Option<LinkSigner>,
    pub(crate) link_attempts: LinkAttempts,
    pub(crate) max_body_bytes: usize,
    pub(crate) connections: ConnectionLimits,
    /// Processes of MCP clients. They and their descendants cannot act as people.
    pub(crate) agent_processes: Arc<AgentProcesses>,
    /// Limits how often their rejection is recorded.
    pub(crate) peer_rejections: FailureLimiter,
}

impl Deref for App {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl App {
    /// Creates the surface. Streams end when `stop` is cancelled.
    pub fn new(options: Options, stop: CancellationToken) -> Self {
        let engine = options.engine;
        Self(Arc::new(State {
            accounts: options.accounts.attach(
                engine.clone(),
                options.session_lifetime,
                options.secrets.clone(),
            ),
            gateway: options.gateway,
            tools: options.tools,
            logins: options.logins,
            secrets: options.secrets,
            hub: Hub::spawn(engine.clone(), stop),
            access_policy: options.access_policy,
            oidc: options.oidc,
            metrics: options.metrics,
            url: options.url.map_or_else(OnceLock::new, OnceLock::from),
            links: options.links,
            link_attempts: LinkAttempts::default(),
            max_body_bytes: options.max_body_bytes,
            connections: options.connections,
            agent_processes: Arc::default(),
            peer_rejections: FailureLimiter::default(),
            engine,
        }))
    }
}
