//! OAuth logins at remote servers, and the access tokens of connections.

mod error;
mod exchange;
mod interactive;
mod pending;
mod policy;
mod record;
mod session;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

pub use error::{LoginError, LoginNeeded};
pub use interactive::LoggedIn;

use crate::config::{Grant, OAuth, Servers, Text, Transport, Variables};
use crate::limits::CONNECTIONS;
use crate::redact;
use crate::secrets::{SecretScope, SecretStore, SecretVariables};
use pending::PendingLogins;
use record::LoginStore;
use session::Session;

/// Logins at remote servers. Clones share the state.
#[derive(Clone)]
pub struct Logins(Arc<Inner>);

struct Inner {
    store: Arc<dyn SecretStore>,
    servers: BTreeMap<String, RemoteServer>,
    sessions: Mutex<Sessions>,
    pending: PendingLogins,
    /// Counts completed logins.
    finished: watch::Sender<u64>,
}

/// Sessions by server and, for per-user logins, user id.
type Sessions = BTreeMap<(String, Option<String>), Arc<Session>>;

/// The OAuth settings of a remote server.
struct RemoteServer {
    url: Text,
    oauth: OAuth,
    /// Whether the entry sets an `Authorization` header, which disables OAuth.
    has_header: bool,
}

impl Logins {
    /// Logins at the HTTP servers of a config, stored in a secret store.
    pub fn new(store: Arc<dyn SecretStore>, servers: &Servers) -> Self {
        let remote = servers.servers.iter().filter_map(|(name, entry)| {
            let Transport::Http { url, headers } = &entry.transport else { return None };
            let has_header = headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
            let oauth = entry.oauth.clone().unwrap_or_default();
            Some((name.clone(), RemoteServer { url: url.clone(), oauth, has_header }))
        });
        Self(Arc::new(Inner {
            store,
            servers: remote.collect(),
            sessions: Mutex::default(),
            pending: PendingLogins::default(),
            finished: watch::Sender::new(0),
        }))
    }

    /// The secret store.
    pub(crate) fn store(&self) -> Arc<dyn SecretStore> {
        self.0.store.clone()
    }

    /// The variables of config texts, for a user or for shared connections.
    pub fn variables(&self, user: Option<&str>) -> Arc<dyn Variables + Send + Sync> {
        Arc::new(SecretVariables::new(self.0.store.clone(), user))
    }

    /// Whether each user has their own login at a server; `None` if it is not a remote server.
    pub fn is_per_user(&self, server: &str) -> Option<bool> {
        self.0.servers.get(server).map(|remote| remote.oauth.per_user)
    }

    /// The bearer token to send to a server, refreshed if it is about to expire. `None` without a login and client
    /// credentials.
    pub async fn token(
        &self,
        server: &str,
        url: &str,
        user: Option<&str>,
    ) -> Result<Option<String>, LoginError> {
        match self.0.servers.get(server) {
            Some(remote) if !remote.has_header => {
                let token = self.session(server, user).token(url).await?;
                token.iter().for_each(|token| redact::learn(&login_name(server), token));
                Ok(token)
            }
            _ => Ok(None),
        }
    }

    /// The bearer token to send after a 401, or a 403 with `insufficient_scope`. `rejected` is the token that was sent, if
    /// any. Repeat a request at most once.
    pub async fn token_after_challenge(
        &self,
        server: &str,
        url: &str,
        user: Option<&str>,
        rejected: Option<&str>,
        www_authenticate: &str,
    ) -> Result<String, LoginError> {
        match self.0.servers.get(server) {
            Some(remote) if !remote.has_header => {
                let session = self.session(server, user);
                let token = session.token_after_challenge(url, rejected, www_authenticate).await?;
                redact::learn(&login_name(server), &token);
                Ok(token)
            }
            _ => Err(LoginError::Refused(format!(
                "`{server}` rejected the Authorization header of its entry; correct it"
            ))),
        }
    }

    /// The login that a server needs before its next call, if any.
    pub fn needed(&self, server: &str, user: Option<&str>) -> Option<LoginNeeded> {
        let sessions = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.get(&(server.to_owned(), user.map(str::to_owned)))?.needed()
    }

    /// Waits until no login at a server is needed.
    pub async fn wait_for_login(&self, server: &str, user: Option<&str>) {
        let mut finished = self.0.finished.subscribe();
        while self.needed(server, user).is_some() {
            // The sender lives as long as `self`.
            let _ = finished.changed().await;
        }
    }

    /// A server that a user can log in at.
    fn remote(&self, server: &str) -> Result<&RemoteServer, LoginError> {
        let remote = self.0.servers.get(server);
        let remote = remote.ok_or_else(|| {
            LoginError::Refused(format!("`{server}` is not a remote server; `steprail servers` lists them"))
        })?;
        match remote.oauth.grant {
            _ if remote.has_header => Err(LoginError::Refused(format!(
                "`{server}` has an Authorization header in its entry; remove it to log in"
            ))),
            Grant::ClientCredentials => {
                Err(LoginError::Refused(format!("`{server}` uses client credentials and needs no login")))
            }
            Grant::AuthorizationCode => Ok(remote),
        }
    }

    fn session(&self, server: &str, user: Option<&str>) -> Arc<Session> {
        let mut sessions = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= CONNECTIONS {
            // Idle sessions have no durable state: only the last challenge, and tokens that can be requested again.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        let key = (server.to_owned(), user.map(str::to_owned));
        let new = || {
            let store = LoginStore {
                store: self.0.store.clone(),
                scope: SecretScope::of(user),
                server: server.to_owned(),
            };
            let oauth = self.0.servers.get(server).map(|remote| remote.oauth.clone()).unwrap_or_default();
            Arc::new(Session::new(store, oauth, self.variables(user)))
        };
        sessions.entry(key).or_insert_with(new).clone()
    }
}

/// The name of an access token in redacted text.
fn login_name(server: &str) -> String {
    format!("login at {server}")
}
