//! Opens and reopens links in the background, with backoff and a limit on concurrent starts.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use steprail_core::limits::RETRY_AFTER_MS;
use steprail_engine::Outage;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cache::CacheRecord;
use super::connection::Connection;
use super::link::{Health, Link, LinkState};
use super::meters;
use crate::config::Transport;
use crate::limits::{
    BACKOFF_MS, CONNECT_ATTEMPTS, LOGIN_WAIT_SECS, OUTAGE_FAILURES, OUTAGE_INTERVAL, PARKED_SECS,
    STABLE_SECS, START_TURN_SECS,
};

impl Link {
    /// Connects in the background, unless the link is up or connecting.
    pub(super) fn wake(self: &Arc<Self>) {
        let Some(runtime) = self.shared.runtime.get() else { return };
        let mut state = self.state();
        let is_up = state.up.as_ref().is_some_and(|up| up.is_up());
        if is_up || state.connecting || self.closed.is_cancelled() {
            return;
        }
        if let Some(broken) = state.up.take() {
            self.record_loss(&mut state, &broken, "the connection was closed");
            runtime.spawn(async move { broken.close().await });
        }
        state.connecting = true;
        drop(state);
        runtime.spawn(connect_until_up(Arc::downgrade(self)));
    }

    /// Makes one connection attempt, within the limit on concurrent starts.
    async fn attempt(&self) -> Result<Connection, String> {
        let is_process = matches!(self.entry.transport, Transport::Stdio { .. });
        let permit = match self.shared.starts.clone().acquire_owned().await {
            Ok(permit) if is_process => Some(permit),
            _ => None,
        };
        let attempt_ended = CancellationToken::new();
        let ended = attempt_ended.clone();
        tokio::spawn(async move {
            // Released early so that a slow or hanging server does not block the others.
            let _ = tokio::time::timeout(Duration::from_secs(START_TURN_SECS), ended.cancelled()).await;
            drop(permit);
        });
        let _guard = attempt_ended.drop_guard();
        let timeout = self.entry.start_timeout;
        match tokio::time::timeout(timeout, self.connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("it did not answer within {} s", timeout.as_secs_f64())),
        }
    }

    fn connected(self: &Arc<Self>, connection: Connection) {
        let connection = Arc::new(connection);
        self.set_catalogue(connection.catalogue.clone());
        self.write_cache(&connection);
        let mut state = self.state();
        if self.closed.is_cancelled() {
            tokio::spawn(async move { connection.close().await });
            return;
        }
        state.connecting = false;
        state.told_outage = false;
        self.in_demand.store(false, Ordering::Relaxed);
        (state.error, state.retry_at, state.busy_until) = (None, None, None);
        (state.era, state.sse) = (Some(connection.era), connection.sse);
        state.up = Some(connection.clone());
        self.set_health(&mut state, Health::Up);
        drop(state);
        let (link, lost, connection) =
            (Arc::downgrade(self), connection.lost.clone(), Arc::downgrade(&connection));
        tokio::spawn(async move {
            lost.cancelled().await;
            if let (Some(link), Some(connection)) = (link.upgrade(), connection.upgrade()) {
                let reason = connection.end_reason().await;
                link.disconnected(&connection, &reason);
            }
        });
        self.notify_available();
    }

    fn write_cache(&self, connection: &Connection) {
        if let Some(cache) = &self.shared.cache {
            let tools = connection.catalogue().tools.values().map(|tool| tool.listed().clone()).collect();
            let record =
                CacheRecord::new(&self.entry, connection.era, connection.sse, connection.honours_key, tools);
            cache.store(&self.alias, &record);
        }
    }

    fn notify_available(&self) {
        if let Some(available) = self.shared.available.get() {
            available(&self.slots_name());
        }
    }

    fn attempt_failed(&self, reason: String) {
        let mut state = self.state();
        state.failures += 1;
        let delay = self.backoff(state.failures);
        state.retry_at = Some(Instant::now() + delay);
        state.error = Some(reason);
        let reason = state.error.clone().unwrap_or_default();
        self.set_health(&mut state, Health::Down);
        let is_known = state.told_outage
            || state.told_at.is_some_and(|told_at| told_at.elapsed() < OUTAGE_INTERVAL)
            || self.awaits_login.load(Ordering::Relaxed)
            || !self.in_demand.load(Ordering::Relaxed);
        if state.failures < OUTAGE_FAILURES || is_known {
            return;
        }
        (state.told_outage, state.told_at) = (true, Some(Instant::now()));
        drop(state);
        self.report_outage(&reason, self.user.as_deref(), false);
    }

    fn report_outage(&self, reason: &str, user: Option<&str>, needs_login: bool) {
        if let Some(report) = self.shared.outage.get() {
            let (server, user) = (self.server.as_str().into(), user.map(str::to_owned));
            report(Outage { server, reason: reason.into(), needs_login, user });
        }
    }

    /// The user whose login the requests carry; `None` for a shared login.
    pub(super) fn login_user(&self) -> Option<&str> {
        let per_user = self.entry.oauth.as_ref().is_some_and(|oauth| oauth.per_user);
        self.user.as_deref().filter(|_| per_user)
    }

    /// The server rejected a call because a login is needed. It gets no calls until the login is made.
    pub(super) fn needs_login(self: &Arc<Self>, reason: &str) {
        self.busy(reason, Duration::from_secs(LOGIN_WAIT_SECS));
        // The login may have been made in the meantime.
        if self.shared.logins.is_some() && !self.await_login() {
            self.logged_in();
        }
    }

    /// Accepts calls again, or connects, once the needed login is made. Returns false if none is needed.
    fn await_login(self: &Arc<Self>) -> bool {
        let Some(logins) = self.shared.logins.clone() else { return false };
        let user = self.login_user().map(str::to_owned);
        if logins.needed(&self.server, user.as_deref()).is_none() {
            return false;
        }
        if self.awaits_login.swap(true, Ordering::Relaxed) {
            return true;
        }
        self.report_outage("it requires a new login", user.as_deref(), true);
        let link = Arc::downgrade(self);
        let server = self.server.clone();
        tokio::spawn(async move {
            logins.wait_for_login(&server, user.as_deref()).await;
            if let Some(link) = link.upgrade() {
                link.awaits_login.store(false, Ordering::Relaxed);
                link.logged_in();
            }
        });
        true
    }

    /// Resets the backoff after a login. A connection that is up is kept, and with it the calls in flight.
    fn logged_in(self: &Arc<Self>) {
        {
            let mut state = self.state();
            (state.failures, state.retry_at, state.busy_until) = (0, None, None);
            if state.health == Health::Busy {
                state.error = None;
                self.set_health(&mut state, Health::Up);
            }
        }
        self.retry_now.notify_waiters();
        self.wake();
        self.notify_available();
    }

    fn backoff(&self, failures: u32) -> Duration {
        let (first, longest) = BACKOFF_MS;
        let delay = first.saturating_mul(1 << failures.min(16)).min(longest);
        let is_parked = failures >= CONNECT_ATTEMPTS && !self.in_demand.load(Ordering::Relaxed);
        Duration::from_millis(if is_parked { PARKED_SECS * 1_000 } else { delay })
    }

    /// The connection is lost or cannot be used any more. Reconnects.
    pub(super) fn disconnected(self: &Arc<Self>, connection: &Arc<Connection>, reason: &str) {
        let mut state = self.state();
        if !state.up.as_ref().is_some_and(|up| Arc::ptr_eq(up, connection)) {
            return;
        }
        state.up = None;
        self.record_loss(&mut state, connection, reason);
        drop(state);
        // Over HTTP each call is a separate request and may still be answered.
        if connection.process.is_some() {
            let broken = connection.clone();
            tokio::spawn(async move { broken.close().await });
        }
        self.wake();
    }

    /// A connection that was lost before it was stable counts as a failed attempt.
    fn record_loss(&self, state: &mut LinkState, connection: &Connection, reason: &str) {
        let was_stable = connection.opened.elapsed() >= Duration::from_secs(STABLE_SECS);
        state.failures = if was_stable { 0 } else { state.failures + 1 };
        state.retry_at = Some(Instant::now() + self.backoff(state.failures));
        state.error = Some(reason.to_owned());
        self.set_health(state, Health::Down);
    }

    /// The server asked to be retried after a delay.
    pub(super) fn busy(self: &Arc<Self>, reason: &str, delay: Duration) {
        let mut state = self.state();
        let until = Instant::now() + delay.min(Duration::from_millis(RETRY_AFTER_MS));
        if state.up.is_none() || state.busy_until.is_some_and(|known| known >= until) {
            return;
        }
        state.busy_until = Some(until);
        state.error = Some(reason.to_owned());
        self.set_health(&mut state, Health::Busy);
        drop(state);
        let link = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            if let Some(link) = link.upgrade() {
                link.clear_busy(until);
            }
        });
    }

    fn clear_busy(&self, until: Instant) {
        let mut state = self.state();
        if state.busy_until == Some(until) {
            state.busy_until = None;
            if state.health == Health::Busy {
                state.error = None;
                self.set_health(&mut state, Health::Up);
            }
        }
        drop(state);
        self.notify_available();
    }

    /// Leaves a connection to the call that holds it. Opens another one for other calls.
    pub(super) fn detach(self: &Arc<Self>, connection: &Arc<Connection>) {
        let mut state = self.state();
        if state.up.as_ref().is_some_and(|up| Arc::ptr_eq(up, connection)) {
            state.up = None;
            self.set_health(&mut state, Health::Idle);
            drop(state);
            self.wake();
        }
    }

    /// Closes the connection and reconnects without backoff.
    pub(super) async fn restart(self: &Arc<Self>) {
        let up = {
            let mut state = self.state();
            (state.failures, state.retry_at, state.busy_until) = (0, None, None);
            self.set_health(&mut state, Health::Idle);
            state.up.take()
        };
        if let Some(up) = up {
            up.close().await;
        }
        self.retry_now.notify_waiters();
        self.wake();
    }
}

/// Tries to connect until it succeeds, with backoff.
async fn connect_until_up(link: Weak<Link>) {
    loop {
        let Some(link) = link.upgrade().filter(|link| !link.closed.is_cancelled()) else { return };
        let mut retry_now = std::pin::pin!(link.retry_now.notified());
        // Registered before the time is read, so that no notification is missed.
        retry_now.as_mut().enable();
        let retry_at = link.state().retry_at;
        if let Some(retry_at) = retry_at.filter(|retry_at| *retry_at > Instant::now()) {
            tokio::select! {
                () = tokio::time::sleep_until(retry_at) => {}
                () = retry_now => {
                    // The backoff is shorter while a step waits.
                    let mut state = link.state();
                    let delay = link.backoff(state.failures.saturating_sub(1));
                    state.retry_at = state.retry_at.map(|retry_at| retry_at.min(Instant::now() + delay));
                    continue;
                }
                () = link.closed.cancelled() => return,
            }
        }
        {
            let mut state = link.state();
            link.set_health(&mut state, Health::Starting);
        }
        let result = tokio::select! {
            result = link.attempt() => result,
            () = link.closed.cancelled() => return,
        };
        meters::connection_attempted(&link.server, result.is_ok());
        match result {
            Ok(connection) => return link.connected(connection),
            Err(reason) => {
                link.attempt_failed(reason);
                link.await_login();
            }
        }
    }
}
