//! Logins that are under way: from the URL that a user opens to the redirect that comes back.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Url;
use tokio::time::Instant;

use super::error::LoginError;
use super::exchange::Authority;
use super::record::Client;
use crate::limits::{LOGIN_SECS, LOGINS, USER_LOGINS};

/// A login that is under way.
pub(super) struct Pending {
    pub server: String,
    pub user: Option<String>,
    pub url: String,
    pub client: Client,
    pub redirect_uri: Url,
    pub authority: Authority,
    pub began: Instant,
}

impl Pending {
    fn is_of(&self, server: &str, user: Option<&str>) -> bool {
        self.server == server && self.user.as_deref() == user
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() >= Duration::from_secs(LOGIN_SECS)
    }
}

/// Logins by their `state` parameter, bounded in number and in time.
#[derive(Default)]
pub(super) struct PendingLogins(Mutex<BTreeMap<String, Pending>>);

impl PendingLogins {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a login until its redirect comes. A user's oldest one gives way to the newest.
    pub(super) fn insert(&self, state: String, pending: Pending) -> Result<(), LoginError> {
        let mut logins = self.lock();
        logins.retain(|_, login| !login.is_over());
        let own = logins.iter().filter(|(_, login)| login.user == pending.user);
        if own.clone().count() >= USER_LOGINS {
            let oldest = own.min_by_key(|(_, login)| login.began).map(|(state, _)| state.clone());
            oldest.and_then(|state| logins.remove(&state));
        }
        if logins.len() >= LOGINS {
            return Err(LoginError::Unavailable("too many logins are under way; try again later".to_owned()));
        }
        logins.insert(state, pending);
        Ok(())
    }

    /// Takes the login that a redirect belongs to. That of another user or server is not found.
    pub(super) fn take(&self, state: &str, server: &str, user: Option<&str>) -> Result<Pending, LoginError> {
        let mut logins = self.lock();
        logins.retain(|_, login| !login.is_over());
        let is_own = logins.get(state).is_some_and(|login| login.is_of(server, user));
        let found = is_own.then(|| logins.remove(state)).flatten();
        found.ok_or_else(|| {
            LoginError::Refused(format!(
                "no such login is under way, or it took longer than {} minutes; run `steprail login {server}` again",
                LOGIN_SECS / 60
            ))
        })
    }

    /// Puts a login back whose redirect was forged: the true one may still come.
    pub(super) fn put_back(&self, state: String, pending: Pending) {
        self.lock().insert(state, pending);
    }
}
