//! Sessions of clients: in the database, so that they outlive our process, and each for one user only.

use rmcp::transport::streamable_http_server::session::{SessionState, SessionStore, SessionStoreError};
use steprail_engine::{Engine, Session};

tokio::task_local! {
    /// Who sent the request that is being served.
    pub(super) static REQUESTER: String;
}

/// Sessions in the engine's database.
pub(super) struct Sessions(pub Engine);

impl Sessions {
    /// Whose session it is, if there is such a session.
    pub(super) async fn owner(&self, id: &str) -> Result<Option<String>, SessionStoreError> {
        Ok(self.0.session(id).await?.map(|session| session.user))
    }
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
        self.0.keep_session(Session { id: id.to_owned(), user, state }).await?;
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), SessionStoreError> {
        Ok(self.0.drop_session(id).await?)
    }
}
