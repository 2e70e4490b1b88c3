//! Stored logins: the client, its tokens, and the server that they were issued for.

use std::sync::Arc;

use rmcp::transport::auth::{OAuthTokenResponse, StoredCredentials};
use serde::{Deserialize, Serialize};

use super::error::LoginError;
use crate::limits::REFRESH_BEFORE_SECS;
use crate::secrets::{Secret, SecretScope, SecretStore};

/// Prefix of the secrets that hold logins. Names of users' secrets contain no slash.
const PREFIX: &str = "oauth/";

/// A login at a server.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Login {
    /// The URL of the MCP server. The tokens are sent to no other URL.
    pub url: String,
    /// The client that the tokens were issued to.
    pub client: Client,
    /// The tokens; empty after the authorization server rejected the refresh token.
    pub credentials: StoredCredentials,
    /// Scopes that the server demanded since the login.
    #[serde(default, rename = "wanted")]
    pub demanded: Vec<String>,
}

/// An OAuth client.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Client {
    pub id: String,
    /// The secret that dynamic registration issued. A configured secret is not stored here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    pub redirect_uri: String,
}

impl Login {
    /// The access token, unless it is about to expire.
    pub(super) fn fresh_token(&self) -> Option<String> {
        let is_fresh = self.expires_in().is_none_or(|left| left >= REFRESH_BEFORE_SECS);
        self.access_token().filter(|_| is_fresh)
    }

    /// The access token, expired or not.
    pub(super) fn access_token(&self) -> Option<String> {
        let token = serde_json::to_value(self.credentials.token_response.as_ref()?).ok()?;
        token["access_token"].as_str().map(str::to_owned)
    }

    /// Whether the login has a refresh token.
    pub(super) fn can_refresh(&self) -> bool {
        let token = self.credentials.token_response.as_ref().map(serde_json::to_value);
        token.and_then(Result::ok).is_some_and(|token| token["refresh_token"].is_string())
    }

    /// Seconds until the access token expires, if the authorization server states it.
    pub(super) fn expires_in(&self) -> Option<u64> {
        let lifetime = self.credentials.token_response.as_ref().and_then(lifetime)?;
        let received = self.credentials.token_received_at?;
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default();
        Some(received.saturating_add(lifetime).saturating_sub(now))
    }
}

/// Lifetime of a token in seconds, if the authorization server states it.
pub(super) fn lifetime(token: &OAuthTokenResponse) -> Option<u64> {
    serde_json::to_value(token).ok()?["expires_in"].as_u64()
}

/// The stored login of one server and user.
#[derive(Clone)]
pub(super) struct LoginStore {
    pub store: Arc<dyn SecretStore>,
    pub scope: SecretScope,
    pub server: String,
}

impl LoginStore {
    /// Loads the login for this URL.
    pub(super) async fn load(&self, url: &str) -> Result<Option<Login>, LoginError> {
        let Some(stored) = self.blocking(|store, scope, name| store.get(scope, name)).await? else {
            return Ok(None);
        };
        let login = serde_json::from_str::<Login>(stored.expose()).map_err(|_| {
            LoginError::Refused(format!(
                "cannot read the stored login at `{}`; run `steprail logout {0}` and log in again",
                self.server
            ))
        })?;
        Ok(Some(login).filter(|login| login.url == url))
    }

    pub(super) async fn save(&self, login: &Login) -> Result<(), LoginError> {
        let text = serde_json::to_string(login)
            .map_err(|error| LoginError::Unavailable(format!("cannot store the login: {error}")))?;
        self.blocking(move |store, scope, name| store.set(scope, name, &Secret::new(text))).await
    }

    pub(super) async fn remove(&self) -> Result<bool, LoginError> {
        self.blocking(|store, scope, name| store.remove(scope, name)).await
    }

    /// Runs a blocking operation of the secret store.
    async fn blocking<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&dyn SecretStore, &SecretScope, &str) -> Result<T, crate::secrets::SecretError>
        + Send
        + 'static,
    ) -> Result<T, LoginError> {
        let this = self.clone();
        let name = format!("{PREFIX}{}", self.server);
        let task = tokio::task::spawn_blocking(move || operation(&*this.store, &this.scope, &name));
        match task.await {
            Ok(result) => Ok(result?),
            Err(_) => Err(LoginError::Unavailable("the secret store failed".to_owned())),
        }
    }
}
