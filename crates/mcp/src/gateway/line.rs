//! One connection to one server, kept up: opened when it is needed, opened again when it broke, given up for a while
//! when that does not help.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::catalogue::Catalogue;
use super::child::Words;
use super::connection::Connection;
use super::meters;
use crate::config::{Entry, Variables};
use crate::limits::{ATTEMPTS, BACKOFF_MS, CONNECT_SECS, PARKED_SECS, STEADY_SECS};

/// A connection that is kept up.
pub(super) struct Line {
    pub server: String,
    pub(super) alias: String,
    pub entry: Entry,
    pub(super) variables: Arc<dyn Variables + Send + Sync>,
    pub(super) records: Option<PathBuf>,
    state: Mutex<State>,
    pub(super) words: Words,
    /// Whether the server is known to begin connections as older revisions do.
    pub(super) is_older: AtomicBool,
    /// Whether nobody is to be reached any more.
    ended: AtomicBool,
    /// The tools, as they were last listed, also while the server is down.
    pub(super) known: RwLock<Option<Arc<RwLock<Arc<Catalogue>>>>>,
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
        let opened = self.open().await;
        meters::opened(&self.server, opened.is_ok());
        match opened {
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
}
