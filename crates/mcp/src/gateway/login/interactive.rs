//! Authorization-code logins: the URL to open in a browser, and the redirect that completes the login.

use reqwest::Url;
use rmcp::transport::auth::{AuthError, AuthorizationCallback};
use tokio::time::Instant;

use super::Logins;
use super::error::{LoginError, sanitized};
use super::exchange::{Resource, with_timeout};
use super::pending::PendingLogin;
use super::policy;
use super::record::Login;
use crate::limits::REDIRECT_BYTES;

/// A completed login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedIn {
    /// The granted scopes.
    pub scopes: Vec<String>,
    /// Seconds until the access token expires, if the authorization server states it.
    pub expires_in: Option<u64>,
    /// Whether there is a refresh token, so that tokens are refreshed without another login.
    pub renews: bool,
}

impl Logins {
    /// Starts a login. Returns the URL to open in a browser. `redirect_uri` must be on a loopback address.
    pub async fn begin(
        &self,
        server: &str,
        user: Option<&str>,
        redirect_uri: &str,
    ) -> Result<String, LoginError> {
        let remote = self.remote(server)?;
        let redirect_uri = policy::redirect_uri(redirect_uri).map_err(LoginError::Refused)?;
        let variables = self.variables(user);
        let url = remote.url.expand(&*variables).map_err(|missing| {
            let names: Vec<String> = missing.into_iter().collect();
            LoginError::Refused(format!(
                "the URL of `{server}` uses variables that are not set: {}",
                names.join(", ")
            ))
        })?;
        let (challenge, needed) = self.session(server, user).login_params(&url, &remote.oauth.scopes).await?;
        let resource = Resource {
            url: &url,
            oauth: &remote.oauth,
            variables: &*variables,
            challenge: challenge.as_deref(),
        };
        let (page, authority, client) = with_timeout(async {
            let mut authority = resource.authority().await?;
            let scopes = authority.scopes(needed).await;
            let client = resource.client(&mut authority, &redirect_uri, &scopes).await?;
            let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
            let page = authority.manager.get_authorization_url(&scopes).await?;
            Ok::<_, LoginError>((page, authority, client))
        })
        .await?;
        let pending = PendingLogin {
            server: server.to_owned(),
            user: user.map(str::to_owned),
            url,
            client,
            redirect_uri,
            authority,
            started: Instant::now(),
        };
        let parsed = Url::parse(&page).ok();
        let state = parsed.as_ref().and_then(|page| parameter(page, "state"));
        let none = || LoginError::Unavailable("the authorization URL has no `state`".to_owned());
        self.0.pending.insert(state.ok_or_else(none)?, pending)?;
        Ok(page)
    }

    /// Completes a login with the URL that the browser was redirected to.
    pub async fn finish(
        &self,
        server: &str,
        user: Option<&str>,
        redirect: &str,
    ) -> Result<LoggedIn, LoginError> {
        let redirect = parse_redirect(redirect)?;
        let state = parameter(&redirect, "state").unwrap_or_default();
        let pending = self.0.pending.take(&state, server, user)?;
        if !policy::matches_redirect_uri(&redirect, &pending.redirect_uri) {
            self.0.pending.put_back(state, pending);
            return Err(LoginError::Refused("the URL is not the redirect URI of this login".to_owned()));
        }
        if let Some(error) = parameter(&redirect, "error") {
            let reason = parameter(&redirect, "error_description").unwrap_or(error);
            let message = format!("the authorization server rejected the login: {}", sanitized(&reason));
            return Err(LoginError::Refused(message));
        }
        // In its own task: a code is valid once, so a cancelled caller must not lose the tokens.
        let this = self.clone();
        let exchange = tokio::spawn(async move { this.exchange(pending, redirect, state).await });
        exchange.await.unwrap_or_else(|_| Err(LoginError::Unavailable("the login failed".to_owned())))
    }

    async fn exchange(
        &self,
        pending: PendingLogin,
        redirect: Url,
        state: String,
    ) -> Result<LoggedIn, LoginError> {
        let callback = AuthorizationCallback::from_redirect_url(redirect.as_str())?;
        let exchanged = with_timeout(async {
            let manager = &pending.authority.manager;
            let issuer = callback.issuer.as_deref();
            let exchanged =
                manager.exchange_code_for_token_with_issuer(&callback.code, &callback.csrf_token, issuer);
            Ok::<_, LoginError>(exchanged.await.map(drop))
        });
        match exchanged.await? {
            Ok(()) => {}
            Err(
                error @ (AuthError::AuthorizationServerMismatch { .. }
                | AuthError::AuthorizationServerMissingIssuer { .. }),
            ) => {
                self.0.pending.put_back(state, pending);
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        }
        let credentials = pending.authority.tokens().await?;
        let login = Login { url: pending.url, client: pending.client, credentials, demanded: Vec::new() };
        self.session(&pending.server, pending.user.as_deref()).save(&login).await?;
        self.0.finished.send_modify(|count| *count += 1);
        Ok(LoggedIn {
            scopes: login.credentials.granted_scopes.clone(),
            expires_in: login.expires_in(),
            renews: login.can_refresh(),
        })
    }

    /// Deletes a login and returns whether there was one. Does not revoke the tokens.
    pub async fn log_out(&self, server: &str, user: Option<&str>) -> Result<bool, LoginError> {
        self.remote(server)?;
        self.session(server, user).forget().await
    }
}

/// Parses the redirect URL, which a user pasted or a listener received.
fn parse_redirect(redirect: &str) -> Result<Url, LoginError> {
    let redirect = redirect.trim();
    let parsed = Url::parse(redirect).ok().filter(|_| redirect.len() <= REDIRECT_BYTES);
    parsed.ok_or_else(|| {
        LoginError::Refused("that is not the URL that the browser was redirected to".to_owned())
    })
}

fn parameter(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}
