//! A login as it is stored: the client, its tokens, and the server that they were issued for.

use std::sync::Arc;

use rmcp::transport::auth::{OAuthTokenResponse, StoredCredentials};
use serde::{Deserialize, Serialize};

use super::error::LoginError;
use crate::limits::REFRESH_BEFORE_SECS;
use crate::secrets::{Secret, SecretScope, SecretStore};

/// Secrets with this prefix are logins; users cannot give such names.
const PREFIX: &str = "oauth/";

/// A login at a server.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Login {
    /// The URL of the MCP server. The tokens are sent nowhere else.
    pub url: String,
    /// The client that the tokens were issued to.
    pub client: Client,
    /// The tokens; none after the authorization server rejected the refresh token.
    pub credentials: StoredCredentials,
    /// Scopes that the server demanded since the login.
    #[serde(default)]
    pub wanted: Vec<String>,
}

/// An OAuth client.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Client {
    pub id: String,
    /// The secret that dynamic registration issued. A configured one is not copied here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    pub redirect_uri: String,
}

impl Login {
    /// The access token, unless it is about to expire.
    pub(super) fn fresh_token(&self) -> Option<String> {
        let lasts = self.seconds_left().is_none_or(|left| left >= REFRESH_BEFORE_SECS);
        self.access_token().filter(|_| lasts)
    }

    /// The access token, expired or not.
    pub(super) fn access_token(&self) -> Option<String> {
        let token = serde_json::to_value(self.credentials.token_response.as_ref()?).ok()?;
        token["access_token"].as_str().map(str::to_owned)
    }

    /// Whether there is a refresh token.
    pub(super) fn can_refresh(&self) -> bool {
        let token = self.credentials.token_response.as_ref().map(serde_json::to_value);
        token.and_then(Result::ok).is_some_and(|token| token["refresh_token"].is_string())
    }

    /// Seconds until the access token expires, if the authorization server said when.
    pub(super) fn seconds_left(&self) -> Option<u64> {
        let expires_in = self.credentials.token_response.as_ref().and_then(expires_in)?;
        let received = self.credentials.token_received_at?;
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default();
        Some(received.saturating_add(expires_in).saturating_sub(now))
    }
}

/// Seconds that a token lasts from its issue.
pub(super) fn expires_in(token: &OAuthTokenResponse) -> Option<u64> {
    serde_json::to_value(token).ok()?["expires_in"].as_u64()
}

/// Where the logins of one server and user are stored.
#[derive(Clone)]
pub(super) struct Place {
    pub store: Arc<dyn SecretStore>,
    pub scope: SecretScope,
    pub server: String,
}

impl Place {
    /// The login, if there is one for this URL.
    pub(super) async fn load(&self, url: &str) -> Result<Option<Login>, LoginError> {
        let Some(stored) = self.on_disk(|store, scope, name| store.get(scope, name)).await? else {
            return Ok(None);
        };
        let login = serde_json::from_str::<Login>(stored.expose()).map_err(|_| {
            LoginError::Refused(format!(
                "the stored login at `{}` cannot be read; run `steprail logout {0}` and log in again",
                self.server
            ))
        })?;
        Ok(Some(login).filter(|login| login.url == url))
    }

    pub(super) async fn save(&self, login: &Login) -> Result<(), LoginError> {
        let text = serde_json::to_string(login)
            .map_err(|error| LoginError::Unavailable(format!("the login cannot be stored: {error}")))?;
        self.on_disk(move |store, scope, name| store.set(scope, name, &Secret::new(text))).await
    }

    pub(super) async fn remove(&self) -> Result<bool, LoginError> {
        self.on_disk(|store, scope, name| store.remove(scope, name)).await
    }

    /// Runs a blocking operation of the store.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn SecretStore, &SecretScope, &str) -> Result<T, crate::secrets::SecretError>
        + Send
        + 'static,
    ) -> Result<T, LoginError> {
        let place = self.clone();
        let name = format!("{PREFIX}{}", self.server);
        let done = tokio::task::spawn_blocking(move || work(&*place.store, &place.scope, &name)).await;
        match done {
            Ok(done) => Ok(done?),
            Err(_) => Err(LoginError::Unavailable("the secret store failed".to_owned())),
        }
    }
}
