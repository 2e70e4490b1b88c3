//! A login with a browser: the URL to open, and the redirect that ends it.

use reqwest::Url;
use rmcp::transport::auth::{AuthError, AuthorizationCallback};
use tokio::time::Instant;

use super::Logins;
use super::error::{LoginError, harmless};
use super::exchange::{Resource, in_time};
use super::pending::Pending;
use super::policy;
use super::record::Login;
use crate::limits::REDIRECT_BYTES;

/// A login that ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedIn {
    /// The scopes that were granted.
    pub scopes: Vec<String>,
    /// Seconds until the access token expires, if the authorization server said so.
    pub expires_in: Option<u64>,
    /// Whether tokens are renewed without another login.
    pub renews: bool,
}

impl Logins {
    /// Begins a login: gives the URL that the user opens in a browser. `redirect_uri` is on a loopback address.
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
            LoginError::Refused(format!("the URL of `{server}` uses {}, not set", names.join(", ")))
        })?;
        let (challenge, needed) = self.session(server, user).wanted(&url, &remote.oauth.scopes).await?;
        let resource = Resource {
            url: &url,
            oauth: &remote.oauth,
            variables: &*variables,
            challenge: challenge.as_deref(),
        };
        let (page, authority, client) = in_time(async {
            let mut authority = resource.authority().await?;
            let scopes = authority.scopes(needed).await;
            let client = resource.client(&mut authority, &redirect_uri, &scopes).await?;
            let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
            let page = authority.manager.get_authorization_url(&scopes).await?;
            Ok::<_, LoginError>((page, authority, client))
        })
        .await?;
        let pending = Pending {
            server: server.to_owned(),
            user: user.map(str::to_owned),
            url,
            client,
            redirect_uri,
            authority,
            began: Instant::now(),
        };
        let parsed = Url::parse(&page).ok();
        let state = parsed.as_ref().and_then(|page| parameter(page, "state"));
        let none = || LoginError::Unavailable("the login has no `state`".to_owned());
        self.0.pending.insert(state.ok_or_else(none)?, pending)?;
        Ok(page)
    }

    /// Ends a login with the URL that the browser was redirected to.
    pub async fn finish(
        &self,
        server: &str,
        user: Option<&str>,
        redirect: &str,
    ) -> Result<LoggedIn, LoginError> {
        let redirect = read(redirect)?;
        let state = parameter(&redirect, "state").unwrap_or_default();
        let pending = self.0.pending.take(&state, server, user)?;
        if !policy::leads_to(&redirect, &pending.redirect_uri) {
            self.0.pending.put_back(state, pending);
            return Err(LoginError::Refused(
                "the URL is not the one that this login redirects to".to_owned(),
            ));
        }
        if let Some(error) = parameter(&redirect, "error") {
            let why = parameter(&redirect, "error_description").unwrap_or(error);
            let message = format!("the authorization server refused the login: {}", harmless(&why));
            return Err(LoginError::Refused(message));
        }
        // A redirect is used once: whoever goes away now must not lose the tokens that were issued for it.
        let this = self.clone();
        let exchange = tokio::spawn(async move { this.exchange(pending, redirect, state).await });
        exchange.await.unwrap_or_else(|_| Err(LoginError::Unavailable("the login failed".to_owned())))
    }

    async fn exchange(&self, pending: Pending, redirect: Url, state: String) -> Result<LoggedIn, LoginError> {
        let callback = AuthorizationCallback::from_redirect_url(redirect.as_str())?;
        let exchanged = in_time(async {
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
        let login = Login { url: pending.url, client: pending.client, credentials, wanted: Vec::new() };
        self.session(&pending.server, pending.user.as_deref()).store(&login).await?;
        self.0.finished.send_modify(|count| *count += 1);
        Ok(LoggedIn {
            scopes: login.credentials.granted_scopes.clone(),
            expires_in: login.seconds_left(),
            renews: login.can_refresh(),
        })
    }

    /// Deletes a login; whether there was one. The authorization server is not told.
    pub async fn log_out(&self, server: &str, user: Option<&str>) -> Result<bool, LoginError> {
        self.remote(server)?;
        self.session(server, user).forget().await
    }
}

/// The URL that a user pasted or a listener received.
fn read(redirect: &str) -> Result<Url, LoginError> {
    let redirect = redirect.trim();
    let parsed = Url::parse(redirect).ok().filter(|_| redirect.len() <= REDIRECT_BYTES);
    parsed.ok_or_else(|| {
        LoginError::Refused("that is not the URL of the page that the browser ended on".to_owned())
    })
}

fn parameter(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}
