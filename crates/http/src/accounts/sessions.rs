//! Browser sessions: sign-in links of the owner, session cookies and their CSRF tokens.

use std::sync::PoisonError;

use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;
use steprail_engine::{AccountKind, Error, Principal};

use super::secret::{Secret, SecretHash, constant_time_eq};
use super::{Accounts, AuthError, check_capacity};

/// How long a sign-in link is valid.
const LINK_MS: Millis = 10 * 60 * 1_000;
/// The maximum number of unused sign-in links.
const OPEN_LINKS: usize = 100;
/// The last use of a session is stored at most this often.
const LAST_USE_MS: Millis = 10 * 60 * 1_000;

/// How long browser sessions last, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct SessionLifetime {
    /// Without a request.
    pub idle: Millis,
    /// In total.
    pub max: Millis,
}

/// The stored part of a browser session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BrowserSession {
    pub user: String,
    /// Hash of the cookie.
    pub hash: SecretHash,
    pub created_at: Millis,
    /// The last use, at most [`LAST_USE_MS`] old.
    pub seen_at: Millis,
}

impl BrowserSession {
    pub(super) fn is_expired(&self, now: Millis, lifetime: SessionLifetime) -> bool {
        now - self.seen_at >= lifetime.idle || now - self.created_at >= lifetime.max
    }
}

impl Accounts {
    /// Creates the key of a link that signs one browser in as the owner.
    pub(crate) fn create_link(&self) -> Result<String, Error> {
        let key = Secret::generate().map_err(Error::BadInput)?.text();
        let now = self.engine.now();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, until| *until > now);
        if links.len() >= OPEN_LINKS {
            return Err(Error::Conflict(format!(
                "{OPEN_LINKS} links are unused; use one, or wait ten minutes"
            )));
        }
        links.insert(key.clone(), now + LINK_MS);
        Ok(key)
    }

    /// The principal whom the key of a link signs in. A key works once.
    pub(crate) fn by_link(&self, key: &str) -> Result<Principal, AuthError> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        match links.remove(key) {
            Some(until) if until > self.engine.now() => Ok(self.owner.clone()),
            Some(_) => Err(AuthError::Expired),
            None => Err(AuthError::Unknown),
        }
    }

    /// Starts a browser session. Returns the value of its cookie and its maximum age in seconds.
    pub(crate) async fn start_session(&self, user: &Principal) -> Result<(String, i64), Error> {
        let secret = Secret::generate().map_err(Error::BadInput)?;
        let now = self.engine.now();
        let session =
            BrowserSession { user: user.id.clone(), hash: secret.hash(), created_at: now, seen_at: now };
        let _writing = self.writing.lock().await;
        let expired = self.cache().expired_sessions(now, self.lifetime);
        for id in expired {
            self.delete(AccountKind::SignIn, &id, None).await?;
        }
        check_capacity(self.cache().sessions.len(), false, "browser sessions")?;
        self.put(AccountKind::SignIn, &secret.id, &session, Some(user)).await?;
        Ok((secret.text(), self.lifetime.max / 1_000))
    }

    /// The principal and the CSRF token of a session cookie.
    pub(crate) fn by_cookie(&self, text: &str) -> Result<(Principal, String), AuthError> {
        let secret = Secret::parse(text).ok_or(AuthError::Unknown)?;
        let session = self.session(&secret).ok_or(AuthError::Unknown)?;
        if session.is_expired(self.engine.now(), self.lifetime) {
            return Err(AuthError::Expired);
        }
        let principal = self.principal(&session.user).ok_or(AuthError::NoUser)?;
        Ok((principal, secret.csrf_token()))
    }

    fn session(&self, secret: &Secret) -> Option<BrowserSession> {
        self.cache().sessions.get(&secret.id).filter(|session| session.hash.matches(secret)).cloned()
    }

    /// Restarts the idle time of a session.
    pub(crate) async fn extend_session(&self, text: &str) {
        let now = self.engine.now();
        let Some(secret) = Secret::parse(text) else { return };
        let due = || {
            let is_due = |session: &BrowserSession| {
                now - session.seen_at > LAST_USE_MS && !session.is_expired(now, self.lifetime)
            };
            self.session(&secret).filter(is_due)
        };
        if due().is_none() {
            return;
        }
        let _writing = self.writing.lock().await;
        // The session may have ended while this waited. If the write fails, the session expires a little early.
        if let Some(session) = due() {
            let session = BrowserSession { seen_at: now, ..session };
            let _ = self.put(AccountKind::SignIn, &secret.id, &session, None).await;
        }
    }

    /// Ends a browser session.
    pub(crate) async fn end_session(&self, text: &str) -> Result<(), Error> {
        let Some(secret) = Secret::parse(text) else { return Ok(()) };
        let _writing = self.writing.lock().await;
        let Some(session) = self.session(&secret) else { return Ok(()) };
        let by = Principal::user(session.user);
        self.delete(AccountKind::SignIn, &secret.id, Some(&by)).await
    }

    /// Compares CSRF tokens in constant time.
    pub(crate) fn is_csrf_token(expected: &str, sent: &str) -> bool {
        constant_time_eq(expected.as_bytes(), sent.as_bytes())
    }
}
