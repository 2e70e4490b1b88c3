//! The way out: tools of MCP servers, called for a user.

mod answer;
mod call;
mod catalogue;
mod child;
mod connection;
mod line;
mod listener;
mod login;
mod meters;
mod open;
mod questions;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_engine::{
    BoxFuture, Failure, FailureKind, OnToolChange, Outcome, Principal, Question, Report, Resumes, ToolCall,
    ToolCaller, Traits,
};

pub use catalogue::ToolInfo;
pub use line::Health;
pub use login::{LoggedIn, LoginError, LoginNeeded, Logins};

use crate::config::{Entry, ProcessEnv, Servers, Variables};
use crate::limits::CONNECTIONS;
use crate::names::Aliases;
use call::{Call, Poll};
use catalogue::Catalogue;
use connection::Connection;
use line::Line;
use questions::Held;

/// Gives the variables of a user, for connections of their own.
pub type UserVariables = dyn Fn(&Principal) -> Arc<dyn Variables + Send + Sync> + Send + Sync;

/// What a gateway may be told.
#[derive(Default)]
pub struct Options {
    /// Where processes are recorded, so that those that a dead gateway left behind are ended.
    pub records: Option<PathBuf>,
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
    options: Options,
    lines: Mutex<Lines>,
    /// Calls whose tools wait for an answer.
    held: Held,
}

/// A connection per server, and per user where a server needs that.
type Lines = BTreeMap<(String, Option<String>), Arc<Line>>;

/// How a server is doing, and what it has.
#[derive(Debug)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// How it is doing.
    pub health: Health,
    /// Its tools, as far as they are known.
    pub tools: Vec<Arc<ToolInfo>>,
    /// What is wrong with some of them.
    pub warnings: Vec<String>,
}

impl Gateway {
    /// A gateway to some servers. Nothing is started before it is needed; what an earlier one left behind is ended.
    pub fn new(servers: Servers, options: Options) -> Result<Self, String> {
        if let Some(records) = &options.records {
            child::reap(records);
        }
        let aliases = Aliases::new(servers.servers.keys())?;
        meters::describe();
        Ok(Self(Arc::new(Inner {
            aliases,
            servers,
            options,
            lines: Mutex::default(),
            held: Held::default(),
        })))
    }

    /// Connects to every server, so that its tools are known. Those of each user wait for their users.
    pub async fn connect(&self) -> Vec<ServerStatus> {
        let shared: Vec<Arc<Line>> = self.shared_lines();
        let opening = shared.iter().map(|line| async move {
            let _ = line.connection().await;
        });
        futures::future::join_all(opening).await;
        self.status().await
    }

    /// How the servers are doing.
    pub async fn status(&self) -> Vec<ServerStatus> {
        let mut all = Vec::new();
        for line in self.shared_lines() {
            let health = line.health().await;
            let up = line.up();
            let catalogue = up.as_ref().map(|up| up.catalogue());
            all.push(ServerStatus {
                name: line.server.clone(),
                health,
                tools: catalogue
                    .as_ref()
                    .map(|known| known.tools.values().cloned().collect())
                    .unwrap_or_default(),
                warnings: catalogue.map(|known| known.warnings.clone()).unwrap_or_default(),
            });
        }
        all
    }

    /// Tries a server again that was given up.
    pub async fn restart(&self, server: &str) {
        let lines = self.lines_of(server);
        for line in lines {
            line.close().await;
            line.forgive().await;
        }
    }

    /// Closes every connection and ends every process.
    pub async fn shutdown(&self) {
        let lines: Vec<Arc<Line>> = {
            let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *lines).into_values().collect()
        };
        futures::future::join_all(lines.iter().map(|line| line.end())).await;
    }

    fn shared_lines(&self) -> Vec<Arc<Line>> {
        let shared = self.0.servers.servers.iter().filter(|(_, entry)| !entry.is_personal());
        shared.filter_map(|(server, _)| self.line(server, None).ok()).collect()
    }

    fn all_lines(&self) -> Vec<Arc<Line>> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn lines_of(&self, server: &str) -> Vec<Arc<Line>> {
        let lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|((name, _), _)| name == server).map(|(_, line)| line.clone()).collect()
    }

    /// The connection to a server: everybody's, or that of a user.
    fn line(&self, server: &str, user: Option<&Principal>) -> Result<Arc<Line>, String> {
        let Some(entry) = self.0.servers.servers.get(server) else {
            return Err(format!("there is no server `{server}`"));
        };
        let user = user.filter(|_| entry.is_personal());
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (server.to_owned(), user.map(|user| user.id.clone()));
        if let Some(line) = lines.get(&key) {
            return Ok(line.clone());
        }
        if lines.len() >= CONNECTIONS {
            return Err(format!("more than {CONNECTIONS} connections are open"));
        }
        let variables = match (user, &self.0.options.users, &self.0.options.logins) {
            (Some(user), Some(users), _) => users(user),
            (user, _, Some(logins)) => logins.variables(user.map(|user| &*user.id)),
            _ => Arc::new(ProcessEnv),
        };
        let alias =
            self.0.aliases.iter().find(|(_, name)| *name == server).map_or(server, |(alias, _)| alias);
        let records = self.0.options.records.clone();
        let line = Arc::new(Line::new(server, alias, entry.clone(), variables, records));
        lines.insert(key, line.clone());
        Ok(line)
    }

    async fn make(&self, server: &str, call: ToolCall) -> Outcome {
        // A call that was sent before is not one that was never sent.
        let under_way = call.resumes.as_ref().is_some_and(|resumes| match resumes {
            Resumes::Task(_) => true,
            Resumes::Answer(answered) => !answered.is_whether(),
        });
        let kind = if under_way { FailureKind::Lost } else { FailureKind::Transport };
        let not_reached = |problem: String| Failure::new(kind, problem);
        let line = self.line(server, Some(&call.principal)).map_err(not_reached)?;
        if let Some(Resumes::Task(id)) = &call.resumes {
            return Poll { line: &line, call: &call }.until_ended(id).await;
        }
        let connection = tokio::select! {
            connection = line.connection() => connection.map_err(not_reached)?,
            () = call.cancelled.cancelled() => {
                return Err(Failure::new(FailureKind::Cancelled, "stopped before the call was sent"));
            }
        };
        let tool = match connection.tool(&call.tool).await {
            Some(tool) => tool,
            None if under_way => return Err(answer::lost(server, "it no longer has the tool")),
            None => return Err(self.unknown(&call.tool)),
        };
        let tool = if under_way { tool } else { fitting(&connection, tool, &call).await? };
        let call = Call { line: &line, tool: &tool, call: &call, held: &self.0.held };
        let made = call.make(connection.clone()).await;
        if matches!(&made, Err(error) if matches!(error.kind, FailureKind::NotFound | FailureKind::Validation))
        {
            // Perhaps the server has other tools now.
            connection.listener.mark_stale();
        }
        made
    }

    /// There is no such tool: the nearest names help.
    fn unknown(&self, tool: &str) -> Failure {
        let known = self.known_tools();
        let near = |name: &String| strsim::jaro_winkler(name, tool);
        let nearest = known.iter().max_by(|a, b| near(a).total_cmp(&near(b))).filter(|name| near(name) > 0.8);
        let hint = nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        Failure::new(FailureKind::NotFound, format!("there is no tool `{tool}`{hint}"))
    }

    /// What is known about a server's tools, also while it is down.
    fn catalogue(&self, tool: &str) -> Option<Arc<Catalogue>> {
        let server = self.0.aliases.server_of(tool)?;
        self.lines_of(server).into_iter().find_map(|line| line.known())
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
        let lines = self.all_lines();
        let known = lines.iter().filter_map(|line| line.known());
        known.flat_map(|known| known.tools.values().cloned().collect::<Vec<_>>()).collect()
    }

    /// Asks every server that is up for its tools again.
    pub async fn refresh(&self) {
        futures::future::join_all(self.all_lines().iter().map(|line| line.refresh())).await;
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
            let begun = Instant::now();
            let outcome = self.make(server, call).await;
            meters::call_ended(server, &outcome, begun.elapsed());
            outcome
        })
    }

    fn traits(&self, tool: &str) -> Traits {
        // Of what is not known, the worst is thought.
        let unknown = Traits { destructive: true, ..Traits::default() };
        self.tool(tool).map_or(unknown, |tool| tool.traits)
    }

    fn pin(&self, tool: &str) -> Option<Hash> {
        // What a server has for one user may be something else for another.
        let server = self.0.aliases.server_of(tool)?;
        let personal = self.0.servers.servers.get(server).is_some_and(Entry::is_personal);
        self.tool(tool).filter(|_| !personal).map(|tool| tool.pin)
    }

    fn forget(&self, state: &Value) {
        let id = state["id"].as_str().unwrap_or_default().to_owned();
        match state["kind"].as_str() {
            Some("held") => {
                if let Some(held) = self.0.held.take(&id) {
                    tokio::spawn(async move { held.connection.close().await });
                }
            }
            Some("task") => {
                let lines = self.lines_of(state["server"].as_str().unwrap_or_default());
                if let Some(line) = lines.into_iter().next() {
                    tokio::spawn(async move { call::cancel_task(&line, &id).await });
                }
            }
            _ => {}
        }
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
    let seen = match &call.resumes {
        Some(Resumes::Answer(answered)) => answered.seen(),
        _ => None,
    };
    if seen == Some(tool.pin) {
        return Ok(());
    }
    let what = format!("what `{}` says about itself has changed since the definition was stored", tool.name);
    call.reports.tell(Report::ToolChanged { what: what.as_str().into() });
    match policy {
        OnToolChange::Warn => Ok(()),
        OnToolChange::Block => {
            let hint = "look at it, and define the workflow again";
            Err(Failure::new(FailureKind::Validation, format!("{what}; {hint}")).code("tool_changed"))
        }
        OnToolChange::Approve => {
            let question = format!("{what}: {}. Call it all the same?", tool.description);
            Err(Failure::asks(Question::whether(question, Some(tool.pin))))
        }
    }
}
