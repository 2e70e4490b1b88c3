//! Requests to authorization servers: discovery, client registration, and tokens.

use std::future::Future;
use std::time::Duration;

use reqwest::Url;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, ClientCredentialsConfig, CredentialStore,
    InMemoryCredentialStore, JwtSigningAlgorithm, OAuthClientConfig, StoredCredentials,
};

use super::error::LoginError;
use super::policy;
use super::record::{Client, Login, lifetime};
use crate::config::{KeyAlgorithm, OAuth, Text, Variables};
use crate::limits::TOKEN_SECS;

/// The name under which clients are registered.
const CLIENT_NAME: &str = "Steprail";

/// A server that tokens are requested for: its URL, OAuth settings and last challenge.
#[derive(Clone, Copy)]
pub(super) struct Resource<'a> {
    pub url: &'a str,
    pub oauth: &'a OAuth,
    pub variables: &'a (dyn Variables + Send + Sync),
    pub challenge: Option<&'a str>,
}

/// An authorization server whose metadata was fetched and checked.
pub(super) struct Authority {
    pub manager: AuthorizationManager,
    pub metadata: AuthorizationMetadata,
    credentials: InMemoryCredentialStore,
    /// Whether metadata was published; otherwise the endpoints are the defaults of the 2025-03-26 revision.
    is_published: bool,
}

/// An access token of the client credentials grant.
pub(super) struct IssuedToken {
    pub token: String,
    /// Seconds until expiry, if the authorization server states it.
    pub expires_in: Option<u64>,
}

/// Why the tokens of a login were not refreshed.
pub(super) enum RefreshError {
    /// The login is no longer valid, for this reason.
    Rejected(&'static str),
    /// The request failed; the login may still be valid.
    Failed(LoginError),
}

impl<E: Into<LoginError>> From<E> for RefreshError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Resource<'_> {
    /// Discovers the authorization server of the resource and checks its endpoints.
    pub(super) async fn authority(&self) -> Result<Authority, LoginError> {
        let url = policy::server_url(self.url).map_err(LoginError::Refused)?;
        let mut manager = if self.oauth.private_addresses {
            AuthorizationManager::new_allowing_private_addresses(url.clone()).await?
        } else {
            AuthorizationManager::new(url.clone()).await?
        };
        let discovered = manager.resolve_metadata_from_challenge(self.challenge).await?;
        policy::endpoints(&url, &discovered.metadata).map_err(LoginError::Refused)?;
        let credentials = InMemoryCredentialStore::new();
        manager.set_credential_store(credentials.clone());
        manager.set_metadata(discovered.metadata.clone());
        Ok(Authority {
            manager,
            metadata: discovered.metadata,
            credentials,
            is_published: discovered.source.is_discovered(),
        })
    }

    /// Requests new tokens with the refresh token of a login.
    pub(super) async fn refresh(&self, login: &Login) -> Result<Login, RefreshError> {
        let mut authority = self.authority().await?;
        // A refresh token is only sent to the authorization server that issued it.
        if login.credentials.issuer != authority.metadata.issuer {
            return Err(RefreshError::Rejected("its authorization server has changed"));
        }
        let secret = match self.configured_client()? {
            Some((id, secret)) if id == login.client.id => secret,
            _ => login.client.secret.clone(),
        };
        authority.manager.configure_client(client_config(&login.client, secret, &[]))?;
        authority.credentials.save(login.credentials.clone()).await?;
        match authority.manager.refresh_token().await {
            Ok(_) => {}
            Err(AuthError::AuthorizationRequired | AuthError::TokenRefreshRejected(_)) => {
                return Err(RefreshError::Rejected("the login has expired"));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Login { credentials: authority.tokens().await?, ..login.clone() })
    }

    /// Requests a token with the client credentials grant.
    pub(super) async fn issue(&self, scopes: &[String]) -> Result<IssuedToken, LoginError> {
        let config = self.client_credentials(scopes.to_vec())?;
        let mut authority = self.authority().await?;
        authority.manager.validate_client_credentials_metadata(&config)?;
        authority.manager.configure_client_credentials(&config)?;
        // The future of rmcp is not `Send`, so it runs on one thread. Its requests have timeouts.
        let runtime = tokio::runtime::Handle::current();
        let exchange = move || runtime.block_on(authority.manager.exchange_client_credentials(&config));
        let failed = |_| LoginError::Unavailable("the token request failed".to_owned());
        let token = tokio::task::spawn_blocking(exchange).await.map_err(failed)??;
        let value = serde_json::to_value(&token).unwrap_or_default();
        let text = value["access_token"].as_str().unwrap_or_default().to_owned();
        Ok(IssuedToken { token: text, expires_in: lifetime(&token) })
    }

    fn client_credentials(&self, scopes: Vec<String>) -> Result<ClientCredentialsConfig, LoginError> {
        let resource = Some(self.url.to_owned());
        let key = self.oauth.client_key.as_ref().map(|key| self.expand(key)).transpose()?;
        match (self.configured_client()?, key) {
            (Some((client_id, _)), Some(key)) => Ok(ClientCredentialsConfig::PrivateKeyJwt {
                client_id,
                signing_key: key.into_bytes(),
                signing_algorithm: algorithm(self.oauth.client_key_algorithm),
                token_endpoint_audience: None,
                scopes,
                resource,
            }),
            (Some((client_id, Some(client_secret))), None) => {
                Ok(ClientCredentialsConfig::ClientSecret { client_id, client_secret, scopes, resource })
            }
            _ => Err(LoginError::Refused("`clientId` and `clientSecret` are not set".to_owned())),
        }
    }

    /// The id and secret of the client in the settings.
    fn configured_client(&self) -> Result<Option<(String, Option<String>)>, LoginError> {
        let Some(id) = &self.oauth.client_id else { return Ok(None) };
        let secret = self.oauth.client_secret.as_ref().map(|secret| self.expand(secret)).transpose()?;
        Ok(Some((self.expand(id)?, secret)))
    }

    fn expand(&self, text: &Text) -> Result<String, LoginError> {
        text.expand(self.variables).map_err(|missing| {
            let names: Vec<String> = missing.into_iter().collect();
            LoginError::Refused(format!(
                "`oauth` of the server uses variables that are not set: {}",
                names.join(", ")
            ))
        })
    }

    /// The client of a login, by precedence of the MCP specification: configured, metadata document, dynamic registration.
    pub(super) async fn client(
        &self,
        authority: &mut Authority,
        redirect_uri: &Url,
        scopes: &[String],
    ) -> Result<Client, LoginError> {
        let redirect_uri = redirect_uri.to_string();
        if let Some((id, secret)) = self.configured_client()? {
            let client = Client { id, secret: None, redirect_uri };
            authority.manager.configure_client(client_config(&client, secret, scopes))?;
            return Ok(client);
        }
        let document =
            self.oauth.client_metadata_url.as_ref().filter(|_| authority.supports_client_documents());
        if let Some(id) = document {
            let client = Client { id: id.clone(), secret: None, redirect_uri };
            authority.manager.configure_client(client_config(&client, None, scopes))?;
            return Ok(client);
        }
        authority.register(redirect_uri, scopes).await
    }
}

impl Authority {
    fn supports(&self, scope: &str) -> bool {
        self.metadata.scopes_supported.iter().flatten().any(|supported| supported == scope)
    }

    fn supports_client_documents(&self) -> bool {
        let supported = self.metadata.additional_fields.get("client_id_metadata_document_supported");
        supported.and_then(serde_json::Value::as_bool).unwrap_or_default()
    }

    /// The scopes of a login: the needed ones, otherwise those that the server advertises.
    pub(super) async fn scopes(&self, needed: Vec<String>) -> Vec<String> {
        if needed.is_empty() {
            return self.manager.select_initial_scopes(&[]).await;
        }
        let mut scopes = needed;
        let offline = "offline_access";
        if self.supports(offline) && !scopes.iter().any(|scope| scope == offline) {
            scopes.push(offline.to_owned());
        }
        scopes
    }

    async fn register(&mut self, redirect_uri: String, scopes: &[String]) -> Result<Client, LoginError> {
        if self.metadata.registration_endpoint.is_none() {
            let message = "the authorization server does not support dynamic registration; register a client there and set \
                           `oauth.clientId`, and `oauth.clientSecret` if it has one, in the server's entry";
            return Err(LoginError::Refused(message.to_owned()));
        }
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        match self.manager.register_client(CLIENT_NAME, &redirect_uri, &scopes).await {
            Ok(config) => Ok(Client { id: config.client_id, secret: config.client_secret, redirect_uri }),
            Err(_) if !self.is_published => {
                Err(LoginError::Refused("the server publishes no OAuth metadata".to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The tokens of the last exchange.
    pub(super) async fn tokens(&self) -> Result<StoredCredentials, LoginError> {
        let none = || LoginError::Unavailable("the authorization server returned no token".to_owned());
        self.credentials.load().await?.ok_or_else(none)
    }
}

fn algorithm(algorithm: KeyAlgorithm) -> JwtSigningAlgorithm {
    match algorithm {
        KeyAlgorithm::ES256 => JwtSigningAlgorithm::ES256,
        KeyAlgorithm::ES384 => JwtSigningAlgorithm::ES384,
        KeyAlgorithm::RS256 => JwtSigningAlgorithm::RS256,
        KeyAlgorithm::RS384 => JwtSigningAlgorithm::RS384,
        KeyAlgorithm::RS512 => JwtSigningAlgorithm::RS512,
    }
}

fn client_config(client: &Client, secret: Option<String>, scopes: &[String]) -> OAuthClientConfig {
    let config = OAuthClientConfig::new(&client.id, &client.redirect_uri).with_scopes(scopes.to_vec());
    match secret {
        Some(secret) => config.with_client_secret(secret),
        None => config,
    }
}

/// Applies [`TOKEN_SECS`] to all requests for one token.
pub(super) async fn with_timeout<T, E: From<LoginError>>(
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let timed_out =
        || LoginError::Unavailable(format!("the authorization server did not answer within {TOKEN_SECS} s"));
    match tokio::time::timeout(Duration::from_secs(TOKEN_SECS), request).await {
        Ok(result) => result,
        Err(_) => Err(timed_out().into()),
    }
}
