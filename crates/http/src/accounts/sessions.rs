//! Browser sessions: sign-in links of the owner, session cookies and page secrets.
//!
//! Browsers send a cookie to every port of its host. A cookie alone therefore authenticates nothing: the page that signed in
//! holds a second secret, which browsers keep per origin, and a session that began on loopback belongs to one user of the
//! operating system.

use std::sync::PoisonError;

use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;
use steprail_engine::{AccountKind, Error, Principal};

use super::secret::{Secret, SecretHash};
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
    /// Hash of the page secret. A session without one is not valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<SecretHash>,
    /// The user of the operating system that signed in, if the connection was local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_user: Option<u32>,
    /// The host at which it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Id of the token that started the session. The session ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Box<str>>,
    pub created_at: Millis,
    /// The last use, at most [`LAST_USE_MS`] old.
    pub seen_at: Millis,
}

impl BrowserSession {
    pub(super) fn is_expired(&self, now: Millis, lifetime: SessionLifetime) -> bool {
        now - self.seen_at >= lifetime.idle || now - self.created_at >= lifetime.max
    }
}

/// A sign-in link that was not used yet.
pub(super) struct SignInKey {
    until: Millis,
    /// The user of the operating system who may use it from this machine; `None` for any.
    os_user: Option<u32>,
}

/// A session that was started.
pub(crate) struct NewSession {
    /// Value of the cookie.
    pub cookie: String,
    /// The secret that only the page gets.
    pub page_secret: String,
    /// Seconds until both expire.
    pub max_age: i64,
}

/// The session of a cookie, before the request has proved that it comes from the page.
pub(crate) struct SessionAuth {
    /// Public id of the session.
    pub id: String,
    pub principal: Principal,
    page: Option<SecretHash>,
    os_user: Option<u32>,
    host: Option<String>,
}

impl SessionAuth {
    /// Whether the session was started at a host. A program on this machine that gets the cookie of a loopback address can
    /// send it with any host name.
    pub(crate) fn is_of_host(&self, host: Option<&str>) -> bool {
        host.is_some() && self.host.as_deref() == host
    }

    /// Whether a text is the page secret of the session.
    pub(crate) fn is_page_secret(&self, text: &str) -> bool {
        let secret = Secret::parse(text);
        self.page.zip(secret).is_some_and(|(page, secret)| page.matches(&secret))
    }

    /// Whether the session belongs to the user of the operating system at the other end of a connection.
    pub(crate) fn belongs_to(&self, os_user: Option<u32>) -> bool {
        self.os_user.is_none() || self.os_user == os_user
    }
}

impl Accounts {
    /// Creates the key of a link that signs one browser in as the owner. On this machine it works only for the given user of
    /// the operating system: links are passed to browsers as arguments, which other users can read.
    pub(crate) fn create_link(&self, os_user: Option<u32>) -> Result<String, Error> {
        let key = Secret::generate().map_err(Error::BadInput)?.text();
        let now = self.engine.now();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, link| link.until > now);
        if links.len() >= OPEN_LINKS {
            return Err(Error::Conflict(format!(
                "{OPEN_LINKS} links are unused; use one, or wait ten minutes"
            )));
        }
        links.insert(key.clone(), SignInKey { until: now + LINK_MS, os_user });
        Ok(key)
    }

    /// The principal whom the key of a link signs in. A key works once.
    pub(crate) fn by_link(&self, key: &str, os_user: Option<u32>) -> Result<Principal, AuthError> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = links.get(key).and_then(|link| link.os_user);
        if expected.zip(os_user).is_some_and(|(expected, os_user)| expected != os_user) {
            return Err(AuthError::OtherOsUser);
        }
        match links.remove(key) {
            Some(link) if link.until > self.engine.now() => Ok(self.owner.clone()),
            Some(_) => Err(AuthError::Expired),
            None => Err(AuthError::Unknown),
        }
    }

    /// Starts a browser session of a user of the operating system, if that is known.
    pub(crate) async fn start_session(
        &self,
        user: &Principal,
        os_user: Option<u32>,
        host: Option<String>,
    ) -> Result<NewSession, Error> {
        let (secret, page) =
            (Secret::generate().map_err(Error::BadInput)?, Secret::generate().map_err(Error::BadInput)?);
        let now = self.engine.now();
        let session = BrowserSession {
            user: user.id.clone(),
            hash: secret.hash(),
            page: Some(page.hash()),
            os_user,
            host,
            token: user.token.clone(),
            created_at: now,
            seen_at: now,
        };
        let _writing = self.writing.lock().await;
        let expired = self.cache().expired_sessions(now, self.lifetime);
        for id in expired {
            self.delete(AccountKind::SignIn, &id, None).await?;
        }
        check_capacity(self.cache().sessions.len(), false, "browser sessions")?;
        self.put(AccountKind::SignIn, &secret.id, &session, Some(user)).await?;
        let max_age = self.lifetime.max / 1_000;
        Ok(NewSession { cookie: secret.text(), page_secret: page.text(), max_age })
    }

    /// The session of a cookie.
    pub(crate) fn by_cookie(&self, text: &str) -> Result<SessionAuth, AuthError> {
        let secret = Secret::parse(text).ok_or(AuthError::Unknown)?;
        let session = self.session(&secret).ok_or(AuthError::Unknown)?;
        let now = self.engine.now();
        if session.is_expired(now, self.lifetime) {
            return Err(AuthError::Expired);
        }
        if let Some(token) = &session.token {
            let expires_at = self.cache().tokens.get(&**token).map(|token| token.expires_at);
            if expires_at.ok_or(AuthError::Unknown)? <= now {
                return Err(AuthError::Expired);
            }
        }
        let BrowserSession { page, os_user, host, token, .. } = session;
        let principal = self.principal(&session.user).ok_or(AuthError::NoUser)?;
        Ok(SessionAuth { id: secret.id, principal: Principal { token, ..principal }, page, os_user, host })
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
}
