//! One connection to one server, kept up: opened when it is needed, opened again when it broke, given up for a while
//! when that does not help.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rmcp::ClientCacheConfig;
use rmcp::model::{PaginatedRequestParams, ProtocolVersion, Tool};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt, Peer, RoleClient, RunningService,
    ServiceError,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::catalogue::{Catalogue, ToolInfo};
use super::child::{Process, Program, Words};
use super::listener::Listener;
use crate::config::{Entry, Road, Text, Variables};
use crate::limits::{
    ANSWER_BYTES, ATTEMPTS, BACKOFF_MS, CONNECT_SECS, PARKED_SECS, REQUEST_SECS, STEADY_SECS, TOOLS,
};

const ENDED: &str = "it ended before it answered";

/// A connection that is kept up.
pub(super) struct Line {
    pub server: String,
    alias: String,
    pub entry: Entry,
    variables: Arc<dyn Variables + Send + Sync>,
    records: Option<PathBuf>,
    state: Mutex<State>,
    words: Words,
    /// Whether the server is known to begin connections as older revisions do.
    is_older: AtomicBool,
    /// Whether nobody is to be reached any more.
    ended: AtomicBool,
    /// The tools, as they were last listed, also while the server is down.
    known: RwLock<Option<Arc<RwLock<Arc<Catalogue>>>>>,
}

#[derive(Default)]
struct State {
    up: Option<Arc<Connection>>,
    /// Attempts that failed one after another.
    failures: u32,
    /// When the next attempt is made.
    again: Option<Instant>,
    /// Why the last one failed.
    reason: String,
}

/// A connection that is up.
pub(super) struct Connection {
    pub peer: Peer<RoleClient>,
    /// What the server says on its own.
    pub listener: Listener,
    /// Shared with the line, which remembers it when the connection is gone.
    catalogue: Arc<RwLock<Arc<Catalogue>>>,
    /// What makes a catalogue of a list of tools.
    naming: (String, Entry),
    /// One call at a time, where questions could not be told apart otherwise.
    turns: Option<Arc<Semaphore>>,
    /// Cancelled when the other side is gone.
    pub lost: CancellationToken,
    opened: Instant,
    process: Option<Process>,
    service: Mutex<Option<RunningService<RoleClient, Listener>>>,
}

/// How a server is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Nobody has needed it yet.
    Idle,
    /// It answers.
    Up,
    /// It is tried again soon.
    Down(String),
    /// It failed again and again, and is left alone for a while.
    Parked(String),
}

impl Connection {
    fn is_up(&self) -> bool {
        !self.lost.is_cancelled() && !self.peer.is_transport_closed()
    }

    /// The tools, as they were last listed.
    pub(super) fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A tool. If the server has said that it has others now, or there is none of this name, they are listed again.
    pub(super) async fn tool(&self, name: &str) -> Option<Arc<ToolInfo>> {
        let known = self.catalogue().tools.get(name).cloned();
        if known.is_some() && !self.listener.take_stale() {
            return known;
        }
        self.relist().await;
        self.catalogue().tools.get(name).cloned()
    }

    /// Asks for the tools again. What is known stays if there is no answer.
    async fn relist(&self) {
        let listing = tokio::time::timeout(Duration::from_secs(REQUEST_SECS), tools(&self.peer)).await;
        let Ok(Ok(tools)) = listing else { return self.listener.mark_stale() };
        let catalogue = Arc::new(Catalogue::new(&self.naming.0, &self.naming.1, tools));
        *self.catalogue.write().unwrap_or_else(PoisonError::into_inner) = catalogue;
    }

    /// Waits until a call may be sent.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turns.clone()?.acquire_owned().await.ok()
    }

    /// Closes the connection, and ends the process.
    pub(super) async fn close(&self) {
        self.lost.cancel();
        if let Some(service) = self.service.lock().await.take() {
            let patience = Duration::from_secs(2);
            let _ = tokio::time::timeout(patience, service.cancel()).await;
        }
        if let Some(process) = &self.process {
            process.stop().await;
        }
    }
}

impl Line {
    pub(super) fn new(
        server: &str,
        alias: &str,
        entry: Entry,
        variables: Arc<dyn Variables + Send + Sync>,
        records: Option<PathBuf>,
    ) -> Self {
        Self {
            server: server.to_owned(),
            alias: alias.to_owned(),
            entry,
            variables,
            records,
            state: Mutex::default(),
            words: Words::default(),
            is_older: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            known: RwLock::default(),
        }
    }

    /// The connection, opened if it is not up. The error says why it is not, and what to do.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, String> {
        let mut state = self.state.lock().await;
        if self.ended.load(Ordering::Relaxed) {
            return Err(format!("{} is not reached any more: we are about to end", self.server));
        }
        if let Some(up) = state.up.as_ref().filter(|up| up.is_up()) {
            return Ok(up.clone());
        }
        self.clear_up(&mut state).await;
        if let Some(again) = state.again.filter(|again| *again > Instant::now()) {
            if state.failures >= ATTEMPTS {
                return Err(format!(
                    "{} is parked after {} failures: {}",
                    self.server, state.failures, state.reason
                ));
            }
            tokio::time::sleep_until(again).await;
        }
        match self.open().await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                state.up = Some(connection.clone());
                state.again = None;
                Ok(connection)
            }
            Err(reason) => {
                self.note_failure(&mut state, &reason);
                Err(format!("{} cannot be reached: {}", self.server, state.reason))
            }
        }
    }

    /// A connection that broke: if it did not last, that counts as a failure.
    async fn clear_up(&self, state: &mut State) {
        let Some(broken) = state.up.take() else { return };
        let lasted = broken.opened.elapsed() >= Duration::from_secs(STEADY_SECS);
        broken.close().await;
        if lasted {
            state.failures = 0;
        } else {
            self.note_failure(state, "the connection broke");
        }
    }

    fn note_failure(&self, state: &mut State, reason: &str) {
        state.failures += 1;
        let (first, longest) = BACKOFF_MS;
        let delay = first.saturating_mul(1 << state.failures.min(16)).min(longest);
        let delay = if state.failures >= ATTEMPTS { PARKED_SECS * 1_000 } else { delay };
        state.again = Some(Instant::now() + Duration::from_millis(delay));
        let words = self.words.last();
        state.reason = match words.last() {
            Some(_) => format!("{reason}; it said: {}", words.join(" | ")),
            None => reason.to_owned(),
        };
    }

    pub(super) async fn health(&self) -> Health {
        let state = self.state.lock().await;
        match &state.up {
            Some(up) if up.is_up() => Health::Up,
            _ if state.failures >= ATTEMPTS => Health::Parked(state.reason.clone()),
            _ if state.failures > 0 => Health::Down(state.reason.clone()),
            _ => Health::Idle,
        }
    }

    /// Forgets that a server failed: the next call tries it at once.
    pub(super) async fn forgive(&self) {
        let mut state = self.state.lock().await;
        (state.failures, state.again) = (0, None);
    }

    pub(super) async fn close(&self) {
        if let Some(up) = self.state.lock().await.up.take() {
            up.close().await;
        }
    }

    /// Closes the connection for good.
    pub(super) async fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.close().await;
    }

    /// Leaves a connection to a call that waits on it: whoever comes next gets another one.
    pub(super) async fn give_up(&self, connection: &Arc<Connection>) {
        let mut state = self.state.lock().await;
        if state.up.as_ref().is_some_and(|up| Arc::ptr_eq(up, connection)) {
            state.up = None;
        }
    }

    /// The tools, as they were last listed.
    pub(super) fn known(&self) -> Option<Arc<Catalogue>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let catalogue = known.read().unwrap_or_else(PoisonError::into_inner).clone();
        Some(catalogue)
    }

    /// Asks for the tools again, if the server is up.
    pub(super) async fn refresh(&self) {
        if let Some(up) = self.up() {
            up.relist().await;
        }
    }

    /// What is up now, without waiting.
    pub(super) fn up(&self) -> Option<Arc<Connection>> {
        self.state.try_lock().ok()?.up.clone()
    }

    async fn open(&self) -> Result<Connection, String> {
        let opening = Duration::from_secs(CONNECT_SECS);
        match tokio::time::timeout(opening, self.connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("it did not answer within {CONNECT_SECS} s")),
        }
    }

    async fn connect(&self) -> Result<Connection, String> {
        match self.greet(self.lifecycle()).await {
            Err(Greeting::Older) => {
                self.is_older.store(true, Ordering::Relaxed);
                self.greet(self.lifecycle()).await.map_err(Greeting::reason)
            }
            greeted => greeted.map_err(Greeting::reason),
        }
    }

    /// How a connection begins: as servers do today, unless this one is known not to.
    fn lifecycle(&self) -> ClientLifecycleMode {
        if self.is_older.load(Ordering::Relaxed) {
            return ClientLifecycleMode::Initialize;
        }
        ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        }
    }

    async fn greet(&self, lifecycle: ClientLifecycleMode) -> Result<Connection, Greeting> {
        let listener = Listener::new(self.entry.elicitation);
        let us = || listener.clone();
        let (service, process) = match &self.entry.road {
            Road::Child { .. } => {
                let program = self.program()?;
                let (process, stdout, stdin) =
                    Process::start(&program, self.records.as_deref(), self.words.clone())
                        .map_err(|error| format!("`{}` cannot be started: {error}", program.command))?;
                // Something that it started may hold its output: then no end of it is ever read.
                let served = tokio::select! {
                    served = us().serve_with_lifecycle((stdout, stdin), lifecycle) => served,
                    () = process.ended.cancelled() => return Err(ENDED.to_owned().into()),
                };
                (served.map_err(|error| plainly(&error))?, Some(process))
            }
            Road::Http { url, headers } => {
                let transport = self.http(url, headers)?;
                let served = us().serve_with_lifecycle(transport, lifecycle).await;
                (served.map_err(|error| plainly(&error))?, None)
            }
        };
        // Lists are asked for when they may have changed: none is to come out of a cache.
        service.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
        let tools =
            tools(service.peer()).await.map_err(|error| format!("it does not list its tools: {error}"))?;
        let catalogue = Arc::new(RwLock::new(Arc::new(Catalogue::new(&self.alias, &self.entry, tools))));
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(catalogue.clone());
        // To give a connection up is not to say that its process has ended.
        let lost =
            process.as_ref().map_or_else(CancellationToken::new, |process| process.ended.child_token());
        let legacy = service
            .peer()
            .peer_info()
            .is_some_and(|info| info.protocol_version.as_str() < ProtocolVersion::V_2026_07_28.as_str());
        Ok(Connection {
            peer: service.peer().clone(),
            listener,
            catalogue,
            naming: (self.alias.clone(), self.entry.clone()),
            turns: (self.entry.elicitation && legacy).then(|| Arc::new(Semaphore::new(1))),
            lost,
            opened: Instant::now(),
            process,
            service: Mutex::new(Some(service)),
        })
    }

    fn program(&self) -> Result<Program, String> {
        let Road::Child { command, args, env, cwd } = &self.entry.road else {
            return Err("it is no program".to_owned());
        };
        Ok(Program {
            command: self.expand(command)?,
            args: args.iter().map(|arg| self.expand(arg)).collect::<Result<_, _>>()?,
            env: env
                .iter()
                .map(|(key, text)| Ok((key.clone(), self.expand(text)?)))
                .collect::<Result<_, String>>()?,
            cwd: cwd.as_ref().map(|cwd| self.expand(cwd)).transpose()?,
        })
    }

    fn http(
        &self,
        url: &Text,
        headers: &std::collections::BTreeMap<String, Text>,
    ) -> Result<StreamableHttpClientTransport<reqwest::Client>, String> {
        let mut custom = std::collections::HashMap::new();
        for (name, text) in headers {
            let bad = |_| format!("the header `{name}` cannot be sent");
            let mut value = http::HeaderValue::from_str(&self.expand(text)?).map_err(bad)?;
            value.set_sensitive(true);
            let key =
                name.parse::<http::HeaderName>().map_err(|_| format!("`{name}` is no name of a header"))?;
            custom.insert(key, value);
        }
        let config = StreamableHttpClientTransportConfig::with_uri(self.expand(url)?)
            .custom_headers(custom)
            .max_sse_event_size(ANSWER_BYTES);
        Ok(StreamableHttpClientTransport::from_config(config))
    }

    fn expand(&self, text: &Text) -> Result<String, String> {
        text.expand(&*self.variables).map_err(|missing| not_set(&missing))
    }
}

/// Why a connection did not begin.
enum Greeting {
    /// The server knows how connections begin today, and speaks older revisions only.
    Older,
    /// Something else.
    Failed(String),
}

impl Greeting {
    fn reason(self) -> String {
        match self {
            Self::Older => "it speaks no revision of the protocol that we do".to_owned(),
            Self::Failed(reason) => reason,
        }
    }
}

impl From<String> for Greeting {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// Why a server did not answer, without the names of types.
fn plainly(error: &ClientInitializeError) -> Greeting {
    if matches!(error, ClientInitializeError::NoCompatibleProtocolVersion { .. }) {
        return Greeting::Older;
    }
    Greeting::Failed(match error {
        ClientInitializeError::TransportError { error, .. } => match error.error.to_string() {
            text if text.contains("Broken pipe") => ENDED.to_owned(),
            text => text,
        },
        ClientInitializeError::ConnectionClosed(_) => ENDED.to_owned(),
        other => other.to_string(),
    })
}

/// Every tool of a server, up to the limit.
async fn tools(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, ServiceError> {
    let mut tools = Vec::new();
    let mut cursor = None;
    loop {
        let page = peer.list_tools(Some(PaginatedRequestParams::default().with_cursor(cursor))).await?;
        tools.extend(page.tools);
        cursor = page.next_cursor;
        if cursor.is_none() || tools.len() > TOOLS {
            return Ok(tools);
        }
    }
}

fn not_set(missing: &BTreeSet<String>) -> String {
    let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [one] => format!("the variable {one} is not set"),
        _ => format!("the variables {} are not set", names.join(", ")),
    }
}
