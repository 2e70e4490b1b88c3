//! Pending logins: from the authorization URL to the redirect.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Url;
use tokio::time::Instant;

use super::error::LoginError;
use super::exchange::Authority;
use super::record::Client;
use crate::limits::{LOGIN_SECS, LOGINS, USER_LOGINS};

/// A login that waits for its redirect.
pub(super) struct PendingLogin {
    pub server: String,
    pub user: Option<String>,
    pub url: String,
    pub client: Client,
    pub redirect_uri: Url,
    pub authority: Authority,
    pub started: Instant,
}

impl PendingLogin {
    fn belongs_to(&self, server: &str, user: Option<&str>) -> bool {
        self.server == server && self.user.as_deref() == user
    }

    fn has_expired(&self) -> bool {
        self.started.elapsed() >= Duration::from_secs(LOGIN_SECS)
    }
}

/// Pending logins by `state` parameter, limited in number and duration.
#[derive(Default)]
pub(super) struct PendingLogins(Mutex<BTreeMap<String, PendingLogin>>);

impl PendingLogins {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PendingLogin>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a login. Evicts the oldest login of the user above [`USER_LOGINS`].
    pub(super) fn insert(&self, state: String, pending: PendingLogin) -> Result<(), LoginError> {
        let mut logins = self.lock();
        logins.retain(|_, login| !login.has_expired());
        let own = logins.iter().filter(|(_, login)| login.user == pending.user);
        if own.clone().count() >= USER_LOGINS {
            let oldest = own.min_by_key(|(_, login)| login.started).map(|(state, _)| state.clone());
            oldest.and_then(|state| logins.remove(&state));
        }
        if logins.len() >= LOGINS {
            return Err(LoginError::Unavailable("too many logins are pending; try again later".to_owned()));
        }
        logins.insert(state, pending);
        Ok(())
    }

    /// Removes the login of a redirect. Fails if it belongs to another user or server.
    pub(super) fn take(
        &self,
        state: &str,
        server: &str,
        user: Option<&str>,
    ) -> Result<PendingLogin, LoginError> {
        let mut logins = self.lock();
        logins.retain(|_, login| !login.has_expired());
        let is_own = logins.get(state).is_some_and(|login| login.belongs_to(server, user));
        let found = is_own.then(|| logins.remove(state)).flatten();
        found.ok_or_else(|| {
            LoginError::Refused(format!(
                "the login is unknown or has expired after {} minutes; run `steprail login {server}` again",
                LOGIN_SECS / 60
            ))
        })
    }

    /// Restores a login after a forged redirect: the genuine one may still arrive.
    pub(super) fn put_back(&self, state: String, pending: PendingLogin) {
        self.lock().insert(state, pending);
    }
}
