//! Sessions of clients, stored in the database: they survive a restart, and each belongs to one user.

use rmcp::model::Extensions;
use rmcp::transport::streamable_http_server::session::{SessionState, SessionStore, SessionStoreError};
use serde_json::{Value, json};
use steprail_engine::{Error, Registry, Session};

tokio::task_local! {
    /// The owner of the sessions of the current request: its user and its token.
    pub(super) static REQUESTER: String;
}

/// The header that names a session.
pub(super) const SESSION: &str = "mcp-session-id";
/// Key of the subscribed URIs in the stored state of a session, beside the keys of rmcp.
const SUBSCRIPTIONS: &str = "dev.steprail/subscriptions";

/// Access to the stored sessions.
pub(super) struct Sessions(pub Registry);

impl Sessions {
    /// The owner of a session: its user and its token; `None` if it does not exist.
    pub(super) async fn owner(&self, id: &str) -> Result<Option<String>, SessionStoreError> {
        Ok(self.0.session(id).await?.map(|session| session.user))
    }

    /// URIs that a session is subscribed to.
    pub(super) async fn subscriptions(&self, id: &str) -> Vec<String> {
        let Ok(Some(session)) = self.0.session(id).await else { return Vec::new() };
        let state: Value = serde_json::from_str(&session.state).unwrap_or_default();
        serde_json::from_value(state[SUBSCRIPTIONS].clone()).unwrap_or_default()
    }

    /// Replaces the URIs that a session is subscribed to.
    pub(super) async fn set_subscriptions(&self, id: &str, uris: Vec<String>) -> Result<(), Error> {
        let Some(session) = self.0.session(id).await? else { return Ok(()) };
        let mut state: Value = serde_json::from_str(&session.state).unwrap_or_default();
        state[SUBSCRIPTIONS] = json!(uris);
        self.0.put_session(Session { state: state.to_string(), ..session }).await
    }
}

/// The id of the session that a request belongs to.
pub(super) fn session_of(extensions: &Extensions) -> Option<&str> {
    extensions.get::<::http::request::Parts>()?.headers.get(SESSION)?.to_str().ok()
}

#[async_trait::async_trait]
impl SessionStore for Sessions {
    async fn load(&self, id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        let requester = REQUESTER.try_with(Clone::clone).unwrap_or_default();
        match self.0.session(id).await? {
            Some(session) if session.user == requester => Ok(serde_json::from_str(&session.state).ok()),
            _ => Ok(None),
        }
    }

    async fn store(&self, id: &str, state: &SessionState) -> Result<(), SessionStoreError> {
        let user = REQUESTER.try_with(Clone::clone)?;
        let state = serde_json::to_string(state)?;
        self.0.put_session(Session { id: id.to_owned(), user, state }).await?;
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), SessionStoreError> {
        Ok(self.0.drop_session(id).await?)
    }
}
