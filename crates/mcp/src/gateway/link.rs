//! A managed connection to one server: opened in the background, reopened with backoff, and asked whether it takes calls.

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use steprail_core::run::Millis;
use steprail_engine::{CallSite, Capacity, RunId};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Remembered};
use super::catalogue::{Catalogue, Listing};
use super::changes::Changes;
use super::child::Stderr;
use super::connection::Connection;
use super::era::Era;
use super::login::Logins;
use crate::config::{Entry, Variables};
use crate::limits::{STARTS, SUSPECTS};

/// Hears that the slots of a name may take calls again.
type Available = Box<dyn Fn(&str) + Send + Sync>;

/// What the links of a gateway share.
pub(super) struct Shared {
    /// The command that supervises stdio servers; none without a supervisor.
    pub supervisor: Vec<OsString>,
    pub cache: Option<Cache>,
    pub logins: Option<Logins>,
    /// Limits how many servers start at the same time.
    pub(super) starts: Arc<Semaphore>,
    /// Called with the name of a link's slots when it may take calls again.
    pub(super) available: OnceLock<Available>,
    /// Where connections are opened. The engine asks for capacity on a thread without a runtime.
    pub(super) runtime: OnceLock<Handle>,
}

impl Shared {
    pub(super) fn new(supervisor: Vec<OsString>, cache: Option<Cache>, logins: Option<Logins>) -> Self {
        let shared = Self {
            supervisor,
            cache,
            logins,
            starts: Arc::new(Semaphore::new(STARTS)),
            available: OnceLock::new(),
            runtime: OnceLock::new(),
        };
        shared.enter();
        shared
    }

    /// Remembers the runtime of the caller, if it has one.
    pub(super) fn enter(&self) {
        if let Ok(handle) = Handle::try_current() {
            let _ = self.runtime.set(handle);
        }
    }

    pub(super) fn on_available(&self, available: Available) {
        self.enter();
        let _ = self.available.set(available);
    }
}

/// A managed connection: everybody's, or one user's.
pub(super) struct Link {
    pub server: String,
    pub alias: String,
    pub user: Option<String>,
    pub entry: Entry,
    pub(super) variables: Arc<dyn Variables + Send + Sync>,
    pub(super) shared: Arc<Shared>,
    pub(super) changes: Changes,
    pub(super) stderr: Stderr,
    state: Mutex<State>,
    /// Counts the changes of the state.
    changed: watch::Sender<u64>,
    /// Ends a backoff early.
    pub(super) retry_now: Notify,
    /// Whether a step waits for it.
    pub(super) wanted: AtomicBool,
    /// Whether a task waits for a login.
    pub(super) awaits_login: AtomicBool,
    pub(super) ended: CancellationToken,
    /// Calls that were in flight when the server crashed. They are repeated one by one.
    suspects: Mutex<HashSet<(RunId, Box<str>)>>,
    /// The tools, as they were last listed, also while the server is down.
    pub(super) known: RwLock<Option<Arc<RwLock<Arc<Catalogue>>>>>,
}

pub(super) struct State {
    pub health: Health,
    /// Since when it is in that health.
    pub since: Millis,
    pub up: Option<Arc<Connection>>,
    /// Whether a task opens the connection, or waits to.
    pub connecting: bool,
    /// Attempts that failed one after another.
    pub failures: u32,
    pub again: Option<Instant>,
    pub error: Option<String>,
    pub busy_until: Option<Instant>,
    pub era: Option<Era>,
    pub sse: bool,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Not needed so far.
    Idle,
    /// The server is being started or connected to.
    Starting,
    /// It takes calls.
    Up,
    /// It asked to be called later.
    Busy,
    /// It cannot be reached; the next attempt is scheduled.
    Down,
}

impl Health {
    /// The word that stands for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::Up => "up",
            Self::Busy => "busy",
            Self::Down => "down",
        }
    }
}

/// A moment of a link, for those who look.
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
        entry: Entry,
        variables: Arc<dyn Variables + Send + Sync>,
        (shared, changes): (Arc<Shared>, Changes),
        remembered: Option<&Remembered>,
    ) -> Self {
        let known = remembered.map(|server| Arc::new(RwLock::new(server.catalogue.clone())));
        Self {
            server: server.to_owned(),
            alias: alias.to_owned(),
            user,
            entry,
            variables,
            shared,
            changes,
            stderr: Stderr::default(),
            state: Mutex::new(State {
                health: Health::Idle,
                since: now(),
                up: None,
                connecting: false,
                failures: 0,
                again: None,
                error: None,
                busy_until: None,
                era: remembered.map(|server| server.era),
                sse: remembered.is_some_and(|server| server.sse),
            }),
            changed: watch::Sender::new(0),
            retry_now: Notify::new(),
            wanted: AtomicBool::new(false),
            awaits_login: AtomicBool::new(false),
            ended: CancellationToken::new(),
            suspects: Mutex::default(),
            known: RwLock::new(known),
        }
    }

    pub(super) fn listing(&self, honours_key: bool) -> Listing {
        Listing { alias: self.alias.clone(), entry: self.entry.clone(), honours_key }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, state: &mut State, health: Health) {
        if state.health != health {
            (state.health, state.since) = (health, now());
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// What the slots of the link are called.
    pub(super) fn slots_name(&self) -> Box<str> {
        match &self.user {
            None => self.alias.as_str().into(),
            Some(user) => format!("{}@{user}", self.alias).into(),
        }
    }

    /// Whether it takes the call of a step now. If not, it is connected in the background.
    pub(super) fn capacity(self: &Arc<Self>, call: &CallSite<'_>) -> Capacity {
        let mut capacity = Capacity::unlimited(&self.slots_name());
        let state = self.state();
        let up = state.up.as_ref().filter(|up| up.is_up());
        capacity.slots =
            Some(up.map_or(self.entry.max_calls, |up| up.turns.as_ref().map_or(self.entry.max_calls, |_| 1)));
        let busy = state.busy_until.is_some_and(|until| until > Instant::now());
        if up.is_some() && !busy {
            drop(state);
            capacity.exclusive = self.is_suspect(call.run, call.path);
            return capacity;
        }
        capacity.unavailable = Some(self.why_unavailable(&state).into());
        drop(state);
        if !self.wanted.swap(true, Ordering::Relaxed) {
            self.retry_now.notify_waiters();
        }
        self.wake();
        capacity
    }

    fn why_unavailable(&self, state: &State) -> String {
        match (state.health, &state.error) {
            (Health::Up | Health::Busy, Some(error)) if state.busy_until.is_some() => error.clone(),
            (Health::Down, Some(error)) => format!("{} cannot be reached: {error}", self.server),
            _ => format!("{} is starting", self.server),
        }
    }

    /// The connection, opened if it is not up. The error says why the last attempt failed.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, String> {
        let mut changes = self.changed.subscribe();
        loop {
            {
                let state = self.state();
                if let Some(up) = state.up.as_ref().filter(|up| up.is_up()) {
                    return Ok(up.clone());
                }
                if self.ended.is_cancelled() {
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

    pub(super) fn remember(&self, catalogue: Arc<RwLock<Arc<Catalogue>>>) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(catalogue);
    }

    /// A call was in flight when the server crashed: it is repeated alone.
    pub(super) fn suspect(&self, run: RunId, path: &str) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        if suspects.len() < SUSPECTS {
            suspects.insert((run, path.into()));
        }
    }

    /// A call was answered.
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

    /// Closes the connection for good.
    pub(super) async fn end(&self) {
        self.ended.cancel();
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
            Health::Down => until(state.again),
            Health::Busy => until(state.busy_until),
            _ => None,
        };
        Snapshot {
            health: state.health,
            since: state.since,
            era: state.era,
            error: state.error.clone(),
            retry_in,
        }
    }

    /// Waits until it is up, or the attempt under way has failed.
    pub(super) async fn settled(self: &Arc<Self>) {
        let _ = self.connection().await;
    }

    /// The tools, as they were last listed.
    pub(super) fn known(&self) -> Option<Arc<Catalogue>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let catalogue = known.read().unwrap_or_else(PoisonError::into_inner).clone();
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

    /// What earlier connections have shown: the era, and whether only HTTP+SSE works.
    pub(super) fn learnt(&self) -> (Option<Era>, bool) {
        let state = self.state();
        (state.era, state.sse)
    }

    pub(super) fn learn(&self, era: Option<Era>, sse: bool) {
        let mut state = self.state();
        (state.era, state.sse) = (era, sse);
    }
}

fn now() -> Millis {
    jiff::Timestamp::now().as_millisecond()
}
