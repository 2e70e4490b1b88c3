//! How a link is opened and opened again: in the background, in its turn, with delays that grow.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use steprail_core::limits::RETRY_AFTER_MS;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cache::Known;
use super::connection::Connection;
use super::link::{Health, Link, State};
use super::meters;
use crate::config::Road;
use crate::limits::{ATTEMPTS, BACKOFF_MS, LOGIN_WAIT_SECS, PARKED_SECS, START_TURN_SECS, STEADY_SECS};

impl Link {
    /// Connects in the background, unless that is under way.
    pub(super) fn wake(self: &Arc<Self>) {
        let Some(runtime) = self.shared.runtime.get() else { return };
        let mut state = self.state();
        let is_up = state.up.as_ref().is_some_and(|up| up.is_up());
        if is_up || state.connecting || self.ended.is_cancelled() {
            return;
        }
        if let Some(broken) = state.up.take() {
            self.note_loss(&mut state, &broken, "the connection was closed");
            runtime.spawn(async move { broken.close().await });
        }
        state.connecting = true;
        drop(state);
        runtime.spawn(connect_until_up(Arc::downgrade(self)));
    }

    /// One attempt, in its turn among the servers that start.
    async fn attempt(&self) -> Result<Connection, String> {
        let is_process = matches!(self.entry.road, Road::Child { .. });
        let turn = match self.shared.starts.clone().acquire_owned().await {
            Ok(turn) if is_process => Some(turn),
            _ => None,
        };
        let done = CancellationToken::new();
        let started = done.clone();
        tokio::spawn(async move {
            // A server that is slow, or mute, does not keep the others from starting.
            let _ = tokio::time::timeout(Duration::from_secs(START_TURN_SECS), started.cancelled()).await;
            drop(turn);
        });
        let _guard = done.drop_guard();
        let timeout = self.entry.start_timeout;
        match tokio::time::timeout(timeout, self.connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("it did not answer within {} s", timeout.as_secs_f64())),
        }
    }

    fn opened(self: &Arc<Self>, connection: Connection) {
        let connection = Arc::new(connection);
        self.remember(connection.catalogue.clone());
        self.store(&connection);
        let mut state = self.state();
        if self.ended.is_cancelled() {
            tokio::spawn(async move { connection.close().await });
            return;
        }
        state.connecting = false;
        self.wanted.store(false, Ordering::Relaxed);
        (state.error, state.again, state.busy_until) = (None, None, None);
        (state.era, state.sse) = (Some(connection.era), connection.sse);
        state.up = Some(connection.clone());
        self.change(&mut state, Health::Up);
        drop(state);
        let (link, lost, connection) =
            (Arc::downgrade(self), connection.lost.clone(), Arc::downgrade(&connection));
        tokio::spawn(async move {
            lost.cancelled().await;
            if let (Some(link), Some(connection)) = (link.upgrade(), connection.upgrade()) {
                let reason = connection.end_reason().await;
                link.dropped(&connection, &reason);
            }
        });
        self.tell_available();
    }

    fn store(&self, connection: &Connection) {
        if let Some(cache) = &self.shared.cache {
            let tools = connection.catalogue().tools.values().map(|tool| tool.described().clone()).collect();
            let known =
                Known::new(&self.entry, connection.era, connection.sse, connection.honours_key, tools);
            cache.store(&self.alias, &known);
        }
    }

    fn tell_available(&self) {
        if let Some(available) = self.shared.available.get() {
            available(&self.slots_name());
        }
    }

    fn failed(&self, reason: String) {
        let mut state = self.state();
        state.failures += 1;
        let delay = self.backoff(state.failures);
        state.again = Some(Instant::now() + delay);
        state.error = Some(reason);
        self.change(&mut state, Health::Down);
    }

    /// Whose login its requests carry: the user's, where each has their own.
    pub(super) fn login_user(&self) -> Option<&str> {
        let per_user = self.entry.oauth.as_ref().is_some_and(|oauth| oauth.per_user);
        self.user.as_deref().filter(|_| per_user)
    }

    /// The server refused a call for want of a login: it takes no further calls until there is one.
    pub(super) fn needs_login(self: &Arc<Self>, reason: &str) {
        self.busy(reason, Duration::from_secs(LOGIN_WAIT_SECS));
        // The login may have been made before this call was known to have failed.
        if self.shared.logins.is_some() && !self.await_login() {
            self.logged_in();
        }
    }

    /// Takes calls again, or connects, as soon as a login that is needed was made. False if none is needed.
    fn await_login(self: &Arc<Self>) -> bool {
        let Some(logins) = self.shared.logins.clone() else { return false };
        let user = self.login_user().map(str::to_owned);
        if logins.needed(&self.server, user.as_deref()).is_none() {
            return false;
        }
        if self.awaits_login.swap(true, Ordering::Relaxed) {
            return true;
        }
        let link = Arc::downgrade(self);
        let server = self.server.clone();
        tokio::spawn(async move {
            logins.logged_in(&server, user.as_deref()).await;
            if let Some(link) = link.upgrade() {
                link.awaits_login.store(false, Ordering::Relaxed);
                link.logged_in();
            }
        });
        true
    }

    /// Calls in flight go on: a connection that is up is kept.
    fn logged_in(self: &Arc<Self>) {
        {
            let mut state = self.state();
            (state.failures, state.again, state.busy_until) = (0, None, None);
            if state.health == Health::Busy {
                state.error = None;
                self.change(&mut state, Health::Up);
            }
        }
        self.retry_now.notify_waiters();
        self.wake();
        self.tell_available();
    }

    fn backoff(&self, failures: u32) -> Duration {
        let (first, longest) = BACKOFF_MS;
        let delay = first.saturating_mul(1 << failures.min(16)).min(longest);
        let unwanted = failures >= ATTEMPTS && !self.wanted.load(Ordering::Relaxed);
        Duration::from_millis(if unwanted { PARKED_SECS * 1_000 } else { delay })
    }

    /// The other side of a connection is gone, or cannot be reached over it any more. It is opened again.
    pub(super) fn dropped(self: &Arc<Self>, connection: &Arc<Connection>, reason: &str) {
        let mut state = self.state();
        if !state.up.as_ref().is_some_and(|up| Arc::ptr_eq(up, connection)) {
            return;
        }
        state.up = None;
        self.note_loss(&mut state, connection, reason);
        drop(state);
        // Other calls over HTTP have requests of their own, which may still be answered.
        if connection.process.is_some() {
            let broken = connection.clone();
            tokio::spawn(async move { broken.close().await });
        }
        self.wake();
    }

    /// A connection that did not last counts as a failed attempt.
    fn note_loss(&self, state: &mut State, connection: &Connection, reason: &str) {
        let lasted = connection.opened.elapsed() >= Duration::from_secs(STEADY_SECS);
        state.failures = if lasted { 0 } else { state.failures + 1 };
        state.again = Some(Instant::now() + self.backoff(state.failures));
        state.error = Some(reason.to_owned());
        self.change(state, Health::Down);
    }

    /// The server asked to be called later.
    pub(super) fn busy(self: &Arc<Self>, reason: &str, delay: Duration) {
        let mut state = self.state();
        let until = Instant::now() + delay.min(Duration::from_millis(RETRY_AFTER_MS));
        if state.up.is_none() || state.busy_until.is_some_and(|known| known >= until) {
            return;
        }
        state.busy_until = Some(until);
        state.error = Some(reason.to_owned());
        self.change(&mut state, Health::Busy);
        drop(state);
        let link = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            if let Some(link) = link.upgrade() {
                link.free_again(until);
            }
        });
    }

    fn free_again(&self, until: Instant) {
        let mut state = self.state();
        if state.busy_until == Some(until) {
            state.busy_until = None;
            if state.health == Health::Busy {
                state.error = None;
                self.change(&mut state, Health::Up);
            }
        }
        drop(state);
        self.tell_available();
    }

    /// Leaves a connection to a call that waits on it. The next call opens another one.
    pub(super) fn give_up(self: &Arc<Self>, connection: &Arc<Connection>) {
        let mut state = self.state();
        if state.up.as_ref().is_some_and(|up| Arc::ptr_eq(up, connection)) {
            state.up = None;
            self.change(&mut state, Health::Idle);
            drop(state);
            self.wake();
        }
    }

    /// Closes the connection and connects again at once, whatever happened before.
    pub(super) async fn restart(self: &Arc<Self>) {
        let up = {
            let mut state = self.state();
            (state.failures, state.again, state.busy_until) = (0, None, None);
            self.change(&mut state, Health::Idle);
            state.up.take()
        };
        if let Some(up) = up {
            up.close().await;
        }
        self.retry_now.notify_waiters();
        self.wake();
    }
}

/// Tries to connect until it works, with delays that grow.
async fn connect_until_up(link: Weak<Link>) {
    loop {
        let Some(link) = link.upgrade().filter(|link| !link.ended.is_cancelled()) else { return };
        let mut sooner = std::pin::pin!(link.retry_now.notified());
        // Registered before the delay is read: no word in between is missed.
        sooner.as_mut().enable();
        let again = link.state().again;
        if let Some(again) = again.filter(|again| *again > Instant::now()) {
            tokio::select! {
                () = tokio::time::sleep_until(again) => {}
                () = sooner => {
                    // Somebody waits now: the delays of a server that is wanted are shorter.
                    let mut state = link.state();
                    let delay = link.backoff(state.failures.saturating_sub(1));
                    let wanted = state.again.map(|again| again.min(Instant::now() + delay));
                    state.again = wanted;
                    continue;
                }
                () = link.ended.cancelled() => return,
            }
        }
        {
            let mut state = link.state();
            link.change(&mut state, Health::Starting);
        }
        let attempted = tokio::select! {
            attempted = link.attempt() => attempted,
            () = link.ended.cancelled() => return,
        };
        meters::opened(&link.server, attempted.is_ok());
        match attempted {
            Ok(connection) => return link.opened(connection),
            Err(reason) => {
                link.failed(reason);
                link.await_login();
            }
        }
    }
}
