//! OAuth logins at remote servers: tokens for connections, and the logins that give them.

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

use crate::config::{Grant, OAuth, Road, Servers, Text, Variables};
use crate::limits::CONNECTIONS;
use crate::secrets::{SecretScope, SecretStore, SecretVariables};
use pending::PendingLogins;
use record::Place;
use session::Session;

/// Logins at remote servers. A clone is another handle to the same ones.
#[derive(Clone)]
pub struct Logins(Arc<Inner>);

struct Inner {
    store: Arc<dyn SecretStore>,
    servers: BTreeMap<String, Remote>,
    sessions: Mutex<Sessions>,
    pending: PendingLogins,
    /// Counts the logins that ended well.
    finished: watch::Sender<u64>,
}

/// A session per server and user; one per server where all users share a login.
type Sessions = BTreeMap<(String, Option<String>), Arc<Session>>;

/// What the entry of a remote server says about tokens.
struct Remote {
    url: Text,
    oauth: OAuth,
    /// The entry has an `Authorization` header of its own.
    has_header: bool,
}

impl Logins {
    /// Logins at the remote servers among these, kept in a secret store.
    pub fn new(store: Arc<dyn SecretStore>, servers: &Servers) -> Self {
        let remote = servers.servers.iter().filter_map(|(name, entry)| {
            let Road::Http { url, headers } = &entry.road else { return None };
            let has_header = headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
            let oauth = entry.oauth.clone().unwrap_or_default();
            Some((name.clone(), Remote { url: url.clone(), oauth, has_header }))
        });
        Self(Arc::new(Inner {
            store,
            servers: remote.collect(),
            sessions: Mutex::default(),
            pending: PendingLogins::default(),
            finished: watch::Sender::new(0),
        }))
    }

    /// What variables in config texts stand for: for a user, or for connections that all users share.
    pub fn variables(&self, user: Option<&str>) -> Arc<dyn Variables + Send + Sync> {
        Arc::new(SecretVariables::new(self.0.store.clone(), user))
    }

    /// Whether each user logs in at a server for themselves; `None` if it is no remote server.
    pub fn is_per_user(&self, server: &str) -> Option<bool> {
        self.0.servers.get(server).map(|remote| remote.oauth.per_user)
    }

    /// The bearer token to send to a server, refreshed if it is about to expire. `None` where nobody logged in and no
    /// client credentials are configured.
    pub async fn token(
        &self,
        server: &str,
        url: &str,
        user: Option<&str>,
    ) -> Result<Option<String>, LoginError> {
        match self.0.servers.get(server) {
            Some(remote) if !remote.has_header => self.session(server, user).token(url).await,
            _ => Ok(None),
        }
    }

    /// The bearer token to send after a server answered 401, or 403 with `insufficient_scope`. `rejected` is the token
    /// that was sent, if any. Send the request again at most once per call.
    pub async fn challenged(
        &self,
        server: &str,
        url: &str,
        user: Option<&str>,
        rejected: Option<&str>,
        www_authenticate: &str,
    ) -> Result<String, LoginError> {
        match self.0.servers.get(server) {
            Some(remote) if !remote.has_header => {
                self.session(server, user).challenged(url, rejected, www_authenticate).await
            }
            _ => Err(LoginError::Refused(format!(
                "`{server}` rejected the Authorization header of its entry; correct it"
            ))),
        }
    }

    /// The login that a server needs before its next call, if it does.
    pub fn needed(&self, server: &str, user: Option<&str>) -> Option<LoginNeeded> {
        let sessions = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.get(&(server.to_owned(), user.map(str::to_owned)))?.needed()
    }

    /// Waits until no login at a server is needed.
    pub async fn logged_in(&self, server: &str, user: Option<&str>) {
        let mut finished = self.0.finished.subscribe();
        while self.needed(server, user).is_some() {
            // The sender lives as long as `self`.
            let _ = finished.changed().await;
        }
    }

    fn remote(&self, server: &str) -> Result<&Remote, LoginError> {
        let remote = self.0.servers.get(server);
        let remote = remote.ok_or_else(|| {
            LoginError::Refused(format!("`{server}` is not a remote server; `steprail servers` lists them"))
        })?;
        match remote.oauth.grant {
            _ if remote.has_header => Err(LoginError::Refused(format!(
                "`{server}` has an Authorization header in its entry; remove it to log in"
            ))),
            Grant::ClientCredentials => Err(LoginError::Refused(format!(
                "`{server}` uses client credentials; there is nobody to log in"
            ))),
            Grant::AuthorizationCode => Ok(remote),
        }
    }

    fn session(&self, server: &str, user: Option<&str>) -> Arc<Session> {
        let mut sessions = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= CONNECTIONS {
            // What is dropped here was known in memory only: the last challenge, and tokens that can be issued again.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        let key = (server.to_owned(), user.map(str::to_owned));
        let new = || {
            let place = Place {
                store: self.0.store.clone(),
                scope: SecretScope::of(user),
                server: server.to_owned(),
            };
            let oauth = self.0.servers.get(server).map(|remote| remote.oauth.clone()).unwrap_or_default();
            Arc::new(Session::new(place, oauth, self.variables(user)))
        };
        sessions.entry(key).or_insert_with(new).clone()
    }
}
