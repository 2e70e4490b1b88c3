//! A managed connection to one server: its state, its capacity for calls, and its tools as last listed.

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use steprail_core::run::Millis;
use steprail_engine::{CallSite, Capacity, Outage, RunId};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, CachedServer};
use super::catalogue::{Catalogue, Listing};
use super::changes::Changes;
use super::child::Stderr;
use super::connection::Connection;
use super::era::Era;
use super::login::Logins;
use crate::config::{ServerEntry, Variables};
use crate::limits::{CONCURRENT_STARTS, SUSPECTS};
use crate::redact;

/// Called with the name of the slots of a link when the link may accept calls again.
type OnAvailable = Box<dyn Fn(&str) + Send + Sync>;
/// Called when a server that calls wait for cannot be reached.
type OnOutage = Box<dyn Fn(Outage) + Send + Sync>;

/// State that all links of a gateway share.
pub(super) struct Shared {
    /// The command that supervises stdio servers; empty without a supervisor.
    pub supervisor: Vec<OsString>,
    pub cache: Option<Cache>,
    pub logins: Option<Logins>,
    /// Limits how many servers start at the same time.
    pub(super) starts: Arc<Semaphore>,
    pub(super) available: OnceLock<OnAvailable>,
    pub(super) outage: OnceLock<OnOutage>,
    /// The runtime that connections are opened on. The engine queries capacity on a thread without a runtime.
    pub(super) runtime: OnceLock<Handle>,
}

impl Shared {
    pub(super) fn new(supervisor: Vec<OsString>, cache: Option<Cache>, logins: Option<Logins>) -> Self {
        let shared = Self {
            supervisor,
            cache,
            logins,
            starts: Arc::new(Semaphore::new(CONCURRENT_STARTS)),
            available: OnceLock::new(),
            outage: OnceLock::new(),
            runtime: OnceLock::new(),
        };
        shared.capture_runtime();
        shared
    }

    /// Stores the runtime of the caller, if it has one.
    pub(super) fn capture_runtime(&self) {
        if let Ok(handle) = Handle::try_current() {
            let _ = self.runtime.set(handle);
        }
    }

    pub(super) fn on_available(&self, available: OnAvailable) {
        self.capture_runtime();
        let _ = self.available.set(available);
    }

    pub(super) fn on_outage(&self, outage: OnOutage) {
        let _ = self.outage.set(outage);
    }
}

/// A managed connection: shared, or of one user.
pub(super) struct Link {
    pub server: String,
    pub alias: String,
    pub user: Option<String>,
    pub entry: ServerEntry,
    pub(super) variables: Arc<dyn Variables + Send + Sync>,
    pub(super) shared: Arc<Shared>,
    pub(super) changes: Changes,
    pub(super) stderr: Stderr,
    state: Mutex<LinkState>,
    /// Counts state changes.
    changed: watch::Sender<u64>,
    /// Ends a backoff early.
    pub(super) retry_now: Notify,
    /// Whether a step waits for the server. Shortens the backoff.
    pub(super) in_demand: AtomicBool,
    /// Whether a task waits for a login.
    pub(super) awaits_login: AtomicBool,
    /// Cancelled when the link is closed for good.
    pub(super) closed: CancellationToken,
    /// Calls that were in flight when the server crashed. They are repeated one at a time.
    suspects: Mutex<HashSet<(RunId, Box<str>)>>,
    /// The tools as last listed, also while the server is down.
    catalogue: RwLock<Option<Arc<RwLock<Arc<Catalogue>>>>>,
}

pub(super) struct LinkState {
    pub health: Health,
    /// When `health` last changed.
    pub since: Millis,
    pub up: Option<Arc<Connection>>,
    /// Whether a task opens the connection or waits for its backoff.
    pub connecting: bool,
    /// Failed attempts in a row.
    pub failures: u32,
    /// Whether the outage was reported.
    pub told_outage: bool,
    /// When an outage was last reported.
    pub told_at: Option<Instant>,
    pub retry_at: Option<Instant>,
    pub error: Option<String>,
    pub busy_until: Option<Instant>,
    pub era: Option<Era>,
    /// Whether the server supports only HTTP+SSE.
    pub sse: bool,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Not needed yet.
    Idle,
    /// The server is being started or connected to.
    Starting,
    /// The server accepts calls.
    Up,
    /// The server asked to be retried later, or needs a login.
    Busy,
    /// The server cannot be reached; the next attempt is scheduled.
    Down,
}

impl Health {
    /// Name of the state in output and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::Up => "up",
            Self::Busy => "busy",
            Self::Down => "down",
        }
    }
}

/// The state of a link at one moment.
pub(super) struct Snapshot {
    pub health: Health,
    pub since: Millis,
    pub era: Option<Era>,
    pub error: Option<String>,
    pub retry_in: Option<Duration>,
}

impl Link {
    pub(super) fn new(
        (server, alias): (&str, &str),
        user: Option<String>,
        entry: ServerEntry,
        variables: Arc<dyn Variables + Send + Sync>,
        (shared, changes): (Arc<Shared>, Changes),
        cached: Option<&CachedServer>,
    ) -> Self {
        let catalogue = cached.map(|server| Arc::new(RwLock::new(server.catalogue.clone())));
        Self {
            server: server.to_owned(),
            alias: alias.to_owned(),
            user,
            entry,
            variables,
            shared,
            changes,
            stderr: Stderr::default(),
            state: Mutex::new(LinkState {
                health: Health::Idle,
                since: now(),
                up: None,
                connecting: false,
                failures: 0,
                told_outage: false,
                told_at: None,
                retry_at: None,
                error: None,
                busy_until: None,
                era: cached.map(|server| server.era),
                sse: cached.is_some_and(|server| server.sse),
            }),
            changed: watch::Sender::new(0),
            retry_now: Notify::new(),
            in_demand: AtomicBool::new(false),
            awaits_login: AtomicBool::new(false),
            closed: CancellationToken::new(),
            suspects: Mutex::default(),
            catalogue: RwLock::new(catalogue),
        }
    }

    pub(super) fn listing(&self, honours_key: bool) -> Listing {
        Listing { alias: self.alias.clone(), entry: self.entry.clone(), honours_key }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_health(&self, state: &mut LinkState, health: Health) {
        if state.health != health {
            (state.health, state.since) = (health, now());
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// The name of the concurrency slots of the link.
    pub(super) fn slots_name(&self) -> Box<str> {
        match &self.user {
            None => self.alias.as_str().into(),
            Some(user) => format!("{}@{user}", self.alias).into(),
        }
    }

    /// Whether the server accepts the call of a step now. If not, connects in the background.
    pub(super) fn capacity(self: &Arc<Self>, call: &CallSite<'_>) -> Capacity {
        let mut capacity = Capacity::unlimited(&self.slots_name());
        let state = self.state();
        let up = state.up.as_ref().filter(|up| up.is_up());
        capacity.slots = Some(
            up.map_or(self.entry.max_calls, |up| up.permits.as_ref().map_or(self.entry.max_calls, |_| 1)),
        );
        let is_busy = state.busy_until.is_some_and(|until| until > Instant::now());
        if up.is_some() && !is_busy {
            drop(state);
            capacity.exclusive = self.is_suspect(call.run, call.path);
            return capacity;
        }
        capacity.unavailable = Some(self.unavailable_reason(&state).into());
        drop(state);
        if !self.in_demand.swap(true, Ordering::Relaxed) {
            self.retry_now.notify_waiters();
        }
        self.wake();
        capacity
    }

    fn unavailable_reason(&self, state: &LinkState) -> String {
        let reason = match (state.health, &state.error) {
            (Health::Up | Health::Busy, Some(error)) if state.busy_until.is_some() => error.clone(),
            (Health::Down, Some(error)) => format!("{} cannot be reached: {error}", self.server),
            _ => format!("{} is starting", self.server),
        };
        redact::text(&reason).into_owned()
    }

    /// The connection, opened if it is not up. Fails with the reason of the last failed attempt.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, String> {
        let mut changes = self.changed.subscribe();
        loop {
            {
                let state = self.state();
                if let Some(up) = state.up.as_ref().filter(|up| up.is_up()) {
                    return Ok(up.clone());
                }
                if self.closed.is_cancelled() {
                    return Err("the gateway is shutting down".to_owned());
                }
                if state.health == Health::Down {
                    return Err(state.error.clone().unwrap_or_default());
                }
            }
            self.wake();
            let _ = changes.changed().await;
        }
    }

    pub(super) fn set_catalogue(&self, catalogue: Arc<RwLock<Arc<Catalogue>>>) {
        *self.catalogue.write().unwrap_or_else(PoisonError::into_inner) = Some(catalogue);
    }

    /// Marks a call that was in flight when the server crashed, so that it is repeated alone.
    pub(super) fn suspect(&self, run: RunId, path: &str) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        if suspects.len() < SUSPECTS {
            suspects.insert((run, path.into()));
        }
    }

    /// Unmarks a call that was answered.
    pub(super) fn clear_suspicion(&self, run: RunId, path: &str) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        if !suspects.is_empty() {
            suspects.remove(&(run, path.into()));
        }
    }

    fn is_suspect(&self, run: RunId, path: &str) -> bool {
        let suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        !suspects.is_empty() && suspects.contains(&(run, path.into()))
    }

    /// Closes the link for good.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        let up = self.state().up.take();
        if let Some(up) = up {
            up.close().await;
        }
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let until = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(Instant::now()));
        let retry_in = match state.health {
            Health::Down => until(state.retry_at),
            Health::Busy => until(state.busy_until),
            _ => None,
        };
        Snapshot {
            health: state.health,
            since: state.since,
            era: state.era,
            error: state.error.as_deref().map(|error| redact::text(error).into_owned()),
            retry_in,
        }
    }

    /// Waits until the server is up or the current attempt has failed.
    pub(super) async fn settled(self: &Arc<Self>) {
        let _ = self.connection().await;
    }

    /// The tools as last listed.
    pub(super) fn catalogue(&self) -> Option<Arc<Catalogue>> {
        let shared = self.catalogue.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let catalogue = shared.read().unwrap_or_else(PoisonError::into_inner).clone();
        Some(catalogue)
    }

    /// Lists the tools again, if the server is up.
    pub(super) async fn refresh(&self) {
        if let Some(up) = self.up() {
            up.relist().await;
        }
    }

    /// The connection, if it is up.
    pub(super) fn up(&self) -> Option<Arc<Connection>> {
        self.state().up.clone().filter(|up| up.is_up())
    }

    /// The era of earlier connections, and whether the server supports only HTTP+SSE.
    pub(super) fn known_protocol(&self) -> (Option<Era>, bool) {
        let state = self.state();
        (state.era, state.sse)
    }

    pub(super) fn forget_protocol(&self) {
        let mut state = self.state();
        (state.era, state.sse) = (None, false);
    }
}

fn now() -> Millis {
    jiff::Timestamp::now().as_millisecond()
}
