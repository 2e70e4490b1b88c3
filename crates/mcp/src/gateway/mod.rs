//! The way out: tools of MCP servers, called for a user.

mod answer;
mod cache;
mod call;
mod catalogue;
mod changes;
mod child;
mod connection;
mod era;
mod failure;
mod federation;
mod link;
mod listener;
mod login;
mod meters;
mod open;
mod questions;
mod reconnect;
mod supervisor;
mod transport;
mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_core::run::Millis;
use steprail_engine::{
    Annotations, BoxFuture, CallSite, Capacity, Continuation, Failure, FailureKind, InputRequest,
    OnToolChange, Outcome, Principal, Report, ToolCall, ToolCaller,
};

pub use catalogue::ToolInfo;
pub(crate) use changes::Change;
pub use era::Era;
pub(crate) use federation::Offer;
pub use link::Health;
pub use login::{LoggedIn, LoginError, LoginNeeded, Logins};
pub(crate) use questions::{KEY, REQUEST, RESPONSE, URL};
pub use supervisor::supervise;
pub(crate) use watched::Watching;

use crate::config::{Entry, ProcessEnv, Servers, Variables};
use crate::limits::CONNECTIONS;
use crate::names::Aliases;
use crate::relay::{Relayed, Relays};
use crate::suggest;
use cache::{Cache, Remembered};
use call::{Call, Poll};
use catalogue::Catalogue;
use changes::Changes;
use connection::Connection;
use link::{Link, Shared};
use questions::{Held, Pending};

/// Gives the variables of a user, for connections of their own.
pub type UserVariables = dyn Fn(&Principal) -> Arc<dyn Variables + Send + Sync> + Send + Sync;

/// What a gateway may be told.
#[derive(Default)]
pub struct Options {
    /// Where the era and the tools of servers are kept between runs of the program.
    pub cache: Option<PathBuf>,
    /// The command that runs [`supervise`] with the arguments after `--`. Without it, the descendants of a server may
    /// outlive a gateway that is killed.
    pub supervisor: Vec<OsString>,
    /// What `${user:NAME}` stands for.
    pub users: Option<Box<UserVariables>>,
    /// OAuth logins at remote servers, and secrets for config texts.
    pub logins: Option<Logins>,
}

/// Calls tools of MCP servers. A clone is another handle to the same one.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    aliases: Aliases,
    servers: Servers,
    users: Option<Box<UserVariables>>,
    shared: Arc<Shared>,
    /// Servers as the last process knew them: recovery asks for their tools before any of them is up.
    remembered: BTreeMap<String, Remembered>,
    links: Mutex<Links>,
    /// Whether no further connections are opened.
    closed: AtomicBool,
    /// Calls whose tools wait for an answer.
    held: Held,
    /// Clients that wait for relayed calls.
    relays: Relays,
    /// What servers announce.
    changes: Changes,
    offers: federation::Offers,
    watched: watched::Watched,
}

/// A link per server, and per user where a server needs that.
type Links = BTreeMap<(String, Option<String>), Arc<Link>>;

/// The state of a server, and its tools.
#[derive(Debug)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// The user whose connection it is, where each has their own.
    pub user: Option<String>,
    /// The state of its connection.
    pub health: Health,
    /// Since when it is in that state, in milliseconds since 1970.
    pub since: Millis,
    /// The era of the protocol that it speaks, once that is known.
    pub era: Option<Era>,
    /// Its tools, as they were last listed.
    pub tools: Vec<Arc<ToolInfo>>,
    /// Problems with some of them.
    pub warnings: Vec<String>,
    /// Why the last attempt to reach it failed, in one line.
    pub error: Option<String>,
    /// The time until the next attempt.
    pub retry_in: Option<Duration>,
    /// The last lines of its standard error: for operators only, since they may hold anything.
    pub stderr: Vec<String>,
}

impl ServerStatus {
    /// What the operator can do next, if anything.
    pub fn next_action(&self) -> Option<String> {
        let error = self.error.as_deref().unwrap_or_default();
        match self.health {
            Health::Down if error.contains("steprail login") || error.contains("wants a login") => {
                Some(format!("steprail login {}", self.name))
            }
            Health::Down if error.contains("is not set") || error.contains("are not set") => {
                Some("set it in the environment of the daemon, or with `steprail secret set`".to_owned())
            }
            Health::Down => Some(format!("steprail servers restart {}", self.name)),
            Health::Idle | Health::Starting | Health::Up | Health::Busy => None,
        }
    }
}

impl Gateway {
    /// A gateway to some servers. Nothing is started before it is needed.
    pub fn new(servers: Servers, options: Options) -> Result<Self, String> {
        let aliases = Aliases::new(servers.servers.keys())?;
        meters::describe();
        let cache = options.cache.map(Cache::new);
        let load = |(alias, name): (&str, &str)| {
            let remembered = cache.as_ref()?.load(alias, servers.servers.get(name)?)?;
            Some((name.to_owned(), remembered))
        };
        let remembered = aliases.iter().filter_map(load).collect();
        Ok(Self(Arc::new(Inner {
            aliases,
            servers,
            users: options.users,
            shared: Arc::new(Shared::new(options.supervisor, cache, options.logins)),
            remembered,
            links: Mutex::default(),
            closed: AtomicBool::new(false),
            held: Held::default(),
            relays: Relays::default(),
            changes: Changes::default(),
            offers: federation::Offers::default(),
            watched: watched::Watched::default(),
        })))
    }

    /// Begins to connect to every server, in the background. Connections of users wait for their users.
    pub fn start(&self) {
        self.0.shared.enter();
        self.shared_links().iter().for_each(Link::wake);
    }

    /// Connects to every server, and waits until each is up or its first attempt has failed.
    pub async fn connect(&self) -> Vec<ServerStatus> {
        self.start();
        let links = self.shared_links();
        futures::future::join_all(links.iter().map(Link::settled)).await;
        self.status()
    }

    /// Waits until the servers of some tools are up, or their first attempts have failed.
    pub async fn settle(&self, tools: impl IntoIterator<Item = &str>) {
        self.0.shared.enter();
        let servers: BTreeSet<&str> =
            tools.into_iter().filter_map(|tool| self.0.aliases.server_of(tool)).collect();
        let links: Vec<Arc<Link>> =
            servers.into_iter().filter_map(|server| self.link(server, None).ok()).collect();
        futures::future::join_all(links.iter().map(Link::settled)).await;
    }

    /// The state of the servers.
    pub fn status(&self) -> Vec<ServerStatus> {
        let mut links = self.shared_links();
        links.extend(self.all_links().into_iter().filter(|link| link.user.is_some()));
        links.iter().map(|link| status_of(link)).collect()
    }

    /// Connects to a server anew, at once.
    pub async fn restart(&self, server: &str) {
        self.0.shared.enter();
        for link in self.links_of(server) {
            link.restart().await;
        }
    }

    /// Closes every connection and ends every process.
    pub async fn shutdown(&self) {
        self.0.closed.store(true, Ordering::Relaxed);
        let links: Vec<Arc<Link>> = {
            let mut links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *links).into_values().collect()
        };
        futures::future::join_all(links.iter().map(|link| link.end())).await;
        futures::future::join_all(self.0.held.drain().iter().map(|held| held.connection.close())).await;
    }

    fn shared_links(&self) -> Vec<Arc<Link>> {
        let shared = self.0.servers.servers.iter().filter(|(_, entry)| !entry.is_personal());
        shared.filter_map(|(server, _)| self.link(server, None).ok()).collect()
    }

    fn all_links(&self) -> Vec<Arc<Link>> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn links_of(&self, server: &str) -> Vec<Arc<Link>> {
        let links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.iter().filter(|((name, _), _)| name == server).map(|(_, link)| link.clone()).collect()
    }

    /// The link to a server: everybody's, or that of a user.
    fn link(&self, server: &str, user: Option<&Principal>) -> Result<Arc<Link>, String> {
        if self.0.closed.load(Ordering::Relaxed) {
            return Err("the gateway is shutting down".to_owned());
        }
        let Some(entry) = self.0.servers.servers.get(server) else {
            return Err(format!("there is no server `{server}`"));
        };
        let user = user.filter(|_| entry.is_personal());
        let mut links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (server.to_owned(), user.map(|user| user.id.clone()));
        if let Some(link) = links.get(&key) {
            return Ok(link.clone());
        }
        if links.len() >= CONNECTIONS {
            return Err(format!("more than {CONNECTIONS} connections are open"));
        }
        let variables = match (user, &self.0.users, &self.0.shared.logins) {
            (Some(user), Some(users), _) => users(user),
            (user, _, Some(logins)) => logins.variables(user.map(|user| &*user.id)),
            _ => Arc::new(ProcessEnv),
        };
        let alias =
            self.0.aliases.iter().find(|(_, name)| *name == server).map_or(server, |(alias, _)| alias);
        let shared = self.0.shared.clone();
        let changes = self.0.changes.clone();
        let remembered = self.0.remembered.get(server);
        let (names, shared) = ((server, alias), (shared, changes));
        let link = Arc::new(Link::new(names, key.1.clone(), entry.clone(), variables, shared, remembered));
        links.insert(key, link.clone());
        Ok(link)
    }

    /// A channel for what servers ask the client of a relayed call.
    pub(crate) fn relay(&self) -> Option<Relayed> {
        self.0.relays.open()
    }

    async fn make(&self, server: &str, call: ToolCall) -> Outcome {
        // A call that was sent before is not one that was never sent.
        let under_way = call.continues.as_ref().is_some_and(|continues| match continues {
            Continuation::Task(_) => true,
            Continuation::Answer(answered) => !answered.is_whether(),
        });
        let kind = if under_way { FailureKind::Lost } else { FailureKind::Transport };
        let not_reached = |problem: String| {
            if kind == FailureKind::Lost {
                failure::lost(server, &problem)
            } else {
                failure::not_sent(server, &problem)
            }
        };
        let link = self.link(server, Some(&call.principal)).map_err(not_reached)?;
        let relay = call.principal.relay.as_ref();
        let client = relay.and_then(|relay| self.0.relays.find(&relay.id));
        let this = Call { link: &link, call: &call, held: &self.0.held, client };
        match &call.continues {
            Some(Continuation::Task(id)) => return Poll { link: &link, call: &call }.until_ended(id).await,
            // It has a connection of its own, whatever became of the others.
            Some(Continuation::Answer(answered)) => {
                if let Some(Pending::Held { id, asked, .. }) = Pending::read(&answered.state) {
                    return this.go_on_held(&id, asked, answered).await;
                }
            }
            None => {}
        }
        let connection = tokio::select! {
            connection = link.connection() => connection.map_err(not_reached)?,
            () = call.cancelled.cancelled() => {
                return Err(not_reached("the step was stopped before its call was sent".to_owned()));
            }
        };
        let listed = tokio::select! {
            tool = connection.tool(&call.tool) => tool,
            () = call.cancelled.cancelled() => {
                return Err(not_reached("the step was stopped before its call was sent".to_owned()));
            }
        };
        let tool = match listed {
            Some(tool) => tool,
            None if under_way => return Err(failure::lost(server, "it no longer has the tool")),
            None => return Err(self.unknown(&call.tool)),
        };
        let tool = if under_way { tool } else { fitting(&connection, tool, &call).await? };
        let made = this.make(connection.clone(), &tool).await;
        if matches!(&made, Err(error) if matches!(error.kind, FailureKind::NotFound | FailureKind::Validation))
        {
            // Perhaps the server has other tools now.
            connection.listener.mark_stale();
        }
        made
    }

    /// There is no such tool: the nearest names help.
    fn unknown(&self, tool: &str) -> Failure {
        let aliases: Vec<String> = self.0.aliases.iter().map(|(alias, _)| alias.to_owned()).collect();
        let hint = suggest::hint(tool, &self.known_tools(), &aliases);
        Failure::new(FailureKind::NotFound, format!("there is no tool `{tool}`; {hint}"))
    }

    /// What is known about a server's tools, also while it is down.
    fn catalogue(&self, tool: &str) -> Option<Arc<Catalogue>> {
        let server = self.0.aliases.server_of(tool)?;
        let known = self.links_of(server).into_iter().find_map(|link| link.known());
        known.or_else(|| self.0.remembered.get(server).map(|server| server.catalogue.clone()))
    }

    /// Whether there is such a tool; nobody knows while its server has not been up.
    pub fn has_tool(&self, tool: &str) -> Option<bool> {
        if self.0.aliases.server_of(tool).is_none() {
            return Some(false);
        }
        self.catalogue(tool).map(|known| known.tools.contains_key(tool))
    }

    /// A tool, if its server has it.
    pub fn tool(&self, tool: &str) -> Option<Arc<ToolInfo>> {
        self.catalogue(tool)?.tools.get(tool).cloned()
    }

    /// The tools of every server that has been up, by name.
    pub(crate) fn tools_up(&self) -> Vec<Arc<ToolInfo>> {
        let links = self.all_links();
        let known = links.iter().filter_map(|link| link.known());
        known.flat_map(|known| known.tools.values().cloned().collect::<Vec<_>>()).collect()
    }

    /// Asks every server that is up for its tools again.
    pub async fn refresh(&self) {
        futures::future::join_all(self.all_links().iter().map(|link| link.refresh())).await;
    }

    /// The tools of the servers that are up, by name.
    pub(crate) fn known_tools(&self) -> Vec<String> {
        self.tools_up().iter().map(|tool| tool.name.clone()).collect()
    }
}

impl ToolCaller for Gateway {
    fn call(&self, call: ToolCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let Some(server) = self.0.aliases.server_of(&call.tool) else {
                return Err(self.unknown(&call.tool));
            };
            self.0.shared.enter();
            let begun = Instant::now();
            let outcome = self.make(server, call).await;
            meters::call_ended(server, &outcome, begun.elapsed());
            outcome
        })
    }

    fn annotations(&self, tool: &str) -> Annotations {
        self.tool(tool).map_or(Annotations::UNANNOTATED, |tool| tool.annotations)
    }

    fn capacity(&self, call: &CallSite<'_>) -> Capacity {
        let link = self.0.aliases.server_of(call.tool).map(|server| self.link(server, Some(call.principal)));
        match link {
            Some(Ok(link)) => link.capacity(call),
            // The call itself says what is wrong.
            Some(Err(_)) | None => Capacity::unlimited(call.tool),
        }
    }

    fn on_available(&self, available: Box<dyn Fn(&str) + Send + Sync>) {
        self.0.shared.on_available(available);
    }

    fn pin(&self, tool: &str) -> Option<Hash> {
        // What a server has for one user may be something else for another.
        let server = self.0.aliases.server_of(tool)?;
        let personal = self.0.servers.servers.get(server).is_some_and(Entry::is_personal);
        self.tool(tool).filter(|_| !personal).map(|tool| tool.pin)
    }

    fn forget(&self, state: &Value) {
        match Pending::read(state) {
            Some(Pending::Held { id, .. }) => {
                if let (Some(held), Some(runtime)) = (self.0.held.take(&id), self.0.shared.runtime.get()) {
                    runtime.spawn(async move { held.connection.close().await });
                }
            }
            Some(Pending::Task { server, id, .. }) => {
                let link = self.links_of(&server).into_iter().next();
                if let (Some(link), Some(runtime)) = (link, self.0.shared.runtime.get()) {
                    runtime.spawn(async move { call::cancel_task(&link, &id).await });
                }
            }
            Some(Pending::Retry { .. }) | None => {}
        }
    }
}

fn status_of(link: &Link) -> ServerStatus {
    let (now, catalogue) = (link.snapshot(), link.known());
    let tools = catalogue.as_ref().map(|known| known.tools.values().cloned().collect());
    ServerStatus {
        name: link.server.clone(),
        user: link.user.clone(),
        health: now.health,
        since: now.since,
        era: now.era,
        tools: tools.unwrap_or_default(),
        warnings: catalogue.map(|known| known.warnings.clone()).unwrap_or_default(),
        error: now.error,
        retry_in: now.retry_in,
        stderr: link.stderr.last_lines(),
    }
}

/// A tool whose schema the arguments fit, and that is what it was; or why not. Before it is refused, its server is asked
/// once more what it takes.
async fn fitting(
    connection: &Connection,
    tool: Arc<ToolInfo>,
    call: &ToolCall,
) -> Result<Arc<ToolInfo>, Failure> {
    let mut tool = tool;
    let mut problems = tool.problems(call.args.value());
    if !problems.is_empty() {
        connection.listener.mark_stale();
        tool = connection.tool(&call.tool).await.unwrap_or(tool);
        problems = tool.problems(call.args.value());
    }
    changed(&tool, call)?;
    if problems.is_empty() {
        return Ok(tool);
    }
    let message = format!("the arguments are not what `{}` takes: {}", call.tool, problems.join("; "));
    Err(Failure::new(FailureKind::Validation, message))
}

/// A tool that is not what it was when the definition was stored: the log says so, and the definition says what to do.
fn changed(tool: &ToolInfo, call: &ToolCall) -> Result<(), Failure> {
    let Some((_, policy)) = call.pinned.filter(|(pin, _)| *pin != tool.pin) else { return Ok(()) };
    // A human has seen what it is now.
    let seen = match &call.continues {
        Some(Continuation::Answer(answered)) => answered.seen(),
        _ => None,
    };
    if seen == Some(tool.pin) {
        return Ok(());
    }
    let what = format!("what `{}` says about itself has changed since the definition was stored", tool.name);
    call.reporter.report(Report::ToolChanged { what: what.as_str().into() });
    match policy {
        OnToolChange::Warn => Ok(()),
        OnToolChange::Block => {
            let hint = "look at it, and define the workflow again";
            Err(Failure::new(FailureKind::Validation, format!("{what}; {hint}")).code("tool_changed"))
        }
        OnToolChange::Approve => {
            let question = format!("{what}: {}. Call it all the same?", tool.description);
            Err(Failure::input_required(InputRequest::whether(question, Some(tool.pin))))
        }
    }
}
