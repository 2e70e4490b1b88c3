//! MCP client: connects to the configured servers and calls their tools for users.

mod arguments;
mod cache;
mod call;
mod caller;
mod catalogue;
mod changes;
mod child;
mod connection;
mod credentials;
mod era;
mod failure;
mod federation;
mod input_requests;
mod link;
mod listener;
mod login;
mod meters;
mod open;
mod reconnect;
mod status;
mod subscriptions;
mod supervisor;
mod task;
mod tool_result;
mod transport;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use steprail_engine::Principal;

pub(crate) use arguments::{binding_problem, unknown as unknown_secret};
pub use catalogue::ToolInfo;
pub(crate) use changes::Change;
pub use era::Era;
pub(crate) use federation::Offer;
pub(crate) use input_requests::{KEY, REQUEST, RESPONSE, URL};
pub use link::Health;
pub use login::{LoggedIn, LoginError, LoginNeeded, Logins};
pub use status::ServerStatus;
pub(crate) use subscriptions::ResourceSubscription;
pub use supervisor::supervise;

use crate::config::{ProcessEnv, Servers, Variables};
use crate::limits::CONNECTIONS;
use crate::names::Aliases;
use crate::relay::{RelayChannel, Relays};
use crate::secrets::SecretStore;
use cache::{Cache, CachedServer};
use catalogue::Catalogue;
use changes::Changes;
use input_requests::HeldCalls;
use link::{Link, Shared};

/// Returns the variables of a user, for their own connections.
pub type UserVariables = dyn Fn(&Principal) -> Arc<dyn Variables + Send + Sync> + Send + Sync;

/// Options of a gateway.
#[derive(Default)]
pub struct Options {
    /// Directory that caches the era and the tools of servers. `None` disables the cache.
    pub cache: Option<PathBuf>,
    /// The command that runs [`supervise`] with the arguments after `--`. Without it, the descendants of a server may
    /// outlive a gateway that is killed.
    pub supervisor: Vec<OsString>,
    /// Values of `${user:NAME}`.
    pub users: Option<Box<UserVariables>>,
    /// OAuth logins at remote servers, and secrets for config texts and arguments.
    pub logins: Option<Logins>,
    /// The environment variables that definitions can read, for checks; `None` if they are not known.
    pub env: Option<BTreeSet<String>>,
}

/// Calls tools of MCP servers. Clones are handles to the same gateway.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    aliases: Aliases,
    servers: Servers,
    users: Option<Box<UserVariables>>,
    shared: Arc<Shared>,
    /// Servers as the previous process cached them: recovery needs their tools before they are up.
    cached: BTreeMap<String, CachedServer>,
    links: Mutex<Links>,
    /// Set at shutdown; no connections are opened after that.
    closed: AtomicBool,
    held: HeldCalls,
    relays: Relays,
    changes: Changes,
    offers: federation::Offers,
    subscriptions: subscriptions::Subscriptions,
    /// The environment variables that definitions can read.
    env: Option<BTreeSet<String>>,
}

/// Links by server and, for a per-user server, user id.
type Links = BTreeMap<(String, Option<String>), Arc<Link>>;

impl Gateway {
    /// Creates a gateway. Servers are started or connected to when they are first needed.
    pub fn new(servers: Servers, options: Options) -> Result<Self, String> {
        let aliases = Aliases::new(servers.servers.keys())?;
        meters::describe();
        let cache = options.cache.map(Cache::new);
        let load = |(alias, name): (&str, &str)| {
            let cached = cache.as_ref()?.load(alias, servers.servers.get(name)?)?;
            Some((name.to_owned(), cached))
        };
        let cached = aliases.iter().filter_map(load).collect();
        Ok(Self(Arc::new(Inner {
            aliases,
            servers,
            users: options.users,
            shared: Arc::new(Shared::new(options.supervisor, cache, options.logins)),
            cached,
            links: Mutex::default(),
            closed: AtomicBool::new(false),
            held: HeldCalls::default(),
            relays: Relays::default(),
            changes: Changes::default(),
            offers: federation::Offers::default(),
            subscriptions: subscriptions::Subscriptions::default(),
            env: options.env,
        })))
    }

    /// Starts to connect to every shared server in the background. Per-user connections open on first use.
    pub fn start(&self) {
        self.0.shared.capture_runtime();
        self.shared_links().iter().for_each(Link::wake);
    }

    /// Connects to every shared server. Waits until each is up or its first attempt has failed.
    pub async fn connect(&self) -> Vec<ServerStatus> {
        self.start();
        let links = self.shared_links();
        futures::future::join_all(links.iter().map(Link::settled)).await;
        self.status()
    }

    /// Waits until the servers of these tools are up or their first attempts have failed.
    pub async fn settle(&self, tools: impl IntoIterator<Item = &str>) {
        self.0.shared.capture_runtime();
        let servers: BTreeSet<&str> =
            tools.into_iter().filter_map(|tool| self.0.aliases.server_of(tool)).collect();
        let links: Vec<Arc<Link>> =
            servers.into_iter().filter_map(|server| self.link(server, None).ok()).collect();
        futures::future::join_all(links.iter().map(Link::settled)).await;
    }

    /// The state of all shared servers and of the open per-user connections.
    pub fn status(&self) -> Vec<ServerStatus> {
        let mut links = self.shared_links();
        links.extend(self.all_links().into_iter().filter(|link| link.user.is_some()));
        links.iter().map(|link| ServerStatus::of(link)).collect()
    }

    /// Closes the connections to a server and reconnects without backoff.
    pub async fn restart(&self, server: &str) {
        self.0.shared.capture_runtime();
        for link in self.links_of(server) {
            link.restart().await;
        }
    }

    /// Closes all connections and stops all server processes.
    pub async fn shutdown(&self) {
        self.0.closed.store(true, Ordering::Relaxed);
        let links: Vec<Arc<Link>> = {
            let mut links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *links).into_values().collect()
        };
        futures::future::join_all(links.iter().map(|link| link.close())).await;
        futures::future::join_all(self.0.held.drain().iter().map(|held| held.connection.close())).await;
    }

    fn shared_links(&self) -> Vec<Arc<Link>> {
        let shared = self.0.servers.servers.iter().filter(|(_, entry)| !entry.is_per_user());
        shared.filter_map(|(server, _)| self.link(server, None).ok()).collect()
    }

    fn all_links(&self) -> Vec<Arc<Link>> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn links_of(&self, server: &str) -> Vec<Arc<Link>> {
        let links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.iter().filter(|((name, _), _)| name == server).map(|(_, link)| link.clone()).collect()
    }

    /// The link to a server: the user's own for a per-user server, otherwise the shared one.
    fn link(&self, server: &str, user: Option<&Principal>) -> Result<Arc<Link>, String> {
        if self.0.closed.load(Ordering::Relaxed) {
            return Err("the gateway is shutting down".to_owned());
        }
        let Some(entry) = self.0.servers.servers.get(server) else {
            return Err(format!("there is no server `{server}`"));
        };
        let user = user.filter(|_| entry.is_per_user());
        let mut links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (server.to_owned(), user.map(|user| user.id.clone()));
        if let Some(link) = links.get(&key) {
            return Ok(link.clone());
        }
        if links.len() >= CONNECTIONS {
            return Err(format!("the limit of {CONNECTIONS} connections is reached"));
        }
        let variables = self.variables(user);
        let alias = self.alias_of(server).unwrap_or(server);
        let shared = (self.0.shared.clone(), self.0.changes.clone());
        let cached = self.0.cached.get(server);
        let names = (server, alias);
        let link = Arc::new(Link::new(names, key.1.clone(), entry.clone(), variables, shared, cached));
        links.insert(key, link.clone());
        Ok(link)
    }

    fn variables(&self, user: Option<&Principal>) -> Arc<dyn Variables + Send + Sync> {
        match (user, &self.0.users, &self.0.shared.logins) {
            (Some(user), Some(users), _) => users(user),
            (user, _, Some(logins)) => logins.variables(user.map(|user| &*user.id)),
            _ => Arc::new(ProcessEnv),
        }
    }

    /// The secrets that arguments can refer to.
    pub(crate) fn secrets(&self) -> Option<Arc<dyn SecretStore>> {
        self.0.shared.logins.as_ref().map(Logins::store)
    }

    /// The environment variables that definitions can read, if they are known.
    pub(crate) fn env(&self) -> Option<&BTreeSet<String>> {
        self.0.env.as_ref()
    }

    /// The server of a tool, by its name in the config.
    pub(crate) fn server_of(&self, tool: &str) -> Option<String> {
        self.0.aliases.server_of(tool).map(str::to_owned)
    }

    /// Opens a channel for requests of servers to the client of a relayed call.
    pub(crate) fn relay(&self) -> Option<RelayChannel> {
        self.0.relays.open()
    }

    /// The catalogue of a tool's server as last listed, also while the server is down.
    fn catalogue(&self, tool: &str) -> Option<Arc<Catalogue>> {
        let server = self.0.aliases.server_of(tool)?;
        let listed = self.links_of(server).into_iter().find_map(|link| link.catalogue());
        listed.or_else(|| self.0.cached.get(server).map(|server| server.catalogue.clone()))
    }

    /// Whether a tool exists. `None` if its server has never listed its tools.
    pub fn has_tool(&self, tool: &str) -> Option<bool> {
        if self.0.aliases.server_of(tool).is_none() {
            return Some(false);
        }
        self.catalogue(tool).map(|catalogue| catalogue.tools.contains_key(tool))
    }

    /// A tool by its full name, as last listed.
    pub fn tool(&self, tool: &str) -> Option<Arc<ToolInfo>> {
        self.catalogue(tool)?.tools.get(tool).cloned()
    }

    /// The tools of all links as last listed.
    pub(crate) fn tools_up(&self) -> Vec<Arc<ToolInfo>> {
        let links = self.all_links();
        let catalogues = links.iter().filter_map(|link| link.catalogue());
        catalogues.flat_map(|catalogue| catalogue.tools.values().cloned().collect::<Vec<_>>()).collect()
    }

    /// Lists the tools of every server that is up again.
    pub async fn refresh(&self) {
        futures::future::join_all(self.all_links().iter().map(|link| link.refresh())).await;
    }

    /// The full names of the tools of all links as last listed.
    pub(crate) fn known_tools(&self) -> Vec<String> {
        self.tools_up().iter().map(|tool| tool.name.clone()).collect()
    }
}
