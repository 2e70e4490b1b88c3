//! The tokens of one server and user. Concurrent callers share one token request.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use reqwest::Url;
use rmcp::transport::auth::WWWAuthenticateParams;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::error::{LoginError, LoginNeeded};
use super::exchange::{RefreshError, Resource, with_timeout};
use super::record::{Login, LoginStore};
use crate::config::{Grant, OAuth, Variables, is_scope_byte};
use crate::limits::{
    CHALLENGE_BYTES, OAUTH_SCOPES, REFRESH_BEFORE_SECS, REISSUE_SECS, RETRY_SECS, SCOPE_BYTES,
};

/// The tokens of one server and user.
pub(super) struct Session {
    store: LoginStore,
    oauth: OAuth,
    variables: Arc<dyn Variables + Send + Sync>,
    /// Held while tokens are requested, so that concurrent callers share one request.
    state: Arc<Mutex<State>>,
    needed: StdMutex<Option<LoginNeeded>>,
}

#[derive(Default)]
struct State {
    /// The last challenge of the server. Discovery uses its metadata URL and scopes.
    challenge: Option<String>,
    /// The token of the client credentials grant, with its expiry.
    issued: Option<(String, Option<Instant>)>,
    /// Scopes that the server demanded of the client credentials grant, in addition to the configured ones.
    demanded: Vec<String>,
    /// When a rejected token was last replaced.
    replaced: Option<Instant>,
    /// When and why the last token request failed. Callers that waited for it do not repeat it.
    failed: Option<(Instant, LoginError)>,
}

impl State {
    /// Whether a rejected token may be replaced now. Limited, because the server may reject every token.
    fn may_replace(&mut self) -> bool {
        let recently = |at: &Instant| at.elapsed() < Duration::from_secs(REISSUE_SECS);
        if self.replaced.as_ref().is_some_and(recently) {
            return false;
        }
        self.replaced = Some(Instant::now());
        true
    }

    /// Fails if the last token request failed within [`RETRY_SECS`].
    fn check_recent_failure(&self) -> Result<(), LoginError> {
        match &self.failed {
            Some((at, error)) if at.elapsed() < Duration::from_secs(RETRY_SECS) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn record<T>(&mut self, result: Result<T, LoginError>) -> Result<T, LoginError> {
        self.failed = result.as_ref().err().map(|error| (Instant::now(), error.clone()));
        result
    }

    /// The token of the client credentials grant, unless it is about to expire.
    fn fresh_token(&self) -> Option<String> {
        let soon = Instant::now() + Duration::from_secs(REFRESH_BEFORE_SECS);
        let issued = self.issued.as_ref()?;
        issued.1.is_none_or(|expires| expires > soon).then(|| issued.0.clone())
    }
}

impl Session {
    pub(super) fn new(store: LoginStore, oauth: OAuth, variables: Arc<dyn Variables + Send + Sync>) -> Self {
        Self { store, oauth, variables, state: Arc::default(), needed: StdMutex::default() }
    }

    pub(super) async fn token(self: Arc<Self>, url: &str) -> Result<Option<String>, LoginError> {
        let state = self.state.clone().lock_owned().await;
        if self.oauth.grant == Grant::ClientCredentials {
            return match state.fresh_token() {
                Some(token) => Ok(Some(token)),
                None => self.issue(state, url).await.map(Some),
            };
        }
        let Some(login) = self.store.load(url).await? else { return Ok(None) };
        match login.fresh_token() {
            Some(token) => Ok(Some(token)),
            None => self.refresh(state, login).await.map(Some),
        }
    }

    pub(super) async fn token_after_challenge(
        self: Arc<Self>,
        url: &str,
        rejected: Option<&str>,
        www_authenticate: &str,
    ) -> Result<String, LoginError> {
        let mut state = self.state.clone().lock_owned().await;
        let www_authenticate =
            if www_authenticate.len() > CHALLENGE_BYTES { "Bearer" } else { www_authenticate };
        state.challenge = Some(www_authenticate.to_owned());
        let base = Url::parse(url).map_err(|_| LoginError::Refused("the URL is invalid".to_owned()))?;
        let params = WWWAuthenticateParams::parse(www_authenticate, &base);
        let demanded = params.is_insufficient_scope().then(|| scopes_of(&params));
        if self.oauth.grant == Grant::ClientCredentials {
            return self.reissue(state, url, rejected, demanded).await;
        }
        let Some(mut login) = self.store.load(url).await? else {
            return Err(self.need_login("no user has logged in", scopes_of(&params)));
        };
        if let Some(token) = login.fresh_token().filter(|token| Some(&**token) != rejected) {
            return Ok(token);
        }
        if let Some(demanded) = demanded {
            return self.demand_scopes(&mut login, demanded).await;
        }
        if !state.may_replace() {
            return Err(self.need_login("the server rejects the tokens of the current login", Vec::new()));
        }
        self.refresh(state, login).await
    }

    /// Step-up authorization: stores scopes that the login lacks. Only a user can grant them.
    async fn demand_scopes(&self, login: &mut Login, demanded: Vec<String>) -> Result<String, LoginError> {
        let before = login.demanded.len();
        for scope in &demanded {
            if login.demanded.len() < OAUTH_SCOPES && !login.demanded.contains(scope) {
                login.demanded.push(scope.clone());
            }
        }
        if login.demanded.len() > before {
            self.store.save(login).await?;
        }
        Err(self.need_login("the server demands scopes that the current login lacks", demanded))
    }

    /// Refreshes the tokens of a login. Runs in its own task, so that a cancelled caller does not lose a rotated refresh
    /// token.
    async fn refresh(
        self: &Arc<Self>,
        state: OwnedMutexGuard<State>,
        login: Login,
    ) -> Result<String, LoginError> {
        if !login.can_refresh() {
            return Err(self.need_login("the login has expired", Vec::new()));
        }
        state.check_recent_failure()?;
        let this = self.clone();
        join(tokio::spawn(async move {
            let mut state = state;
            let resource = this.resource(&login.url, state.challenge.as_deref());
            match with_timeout(resource.refresh(&login)).await {
                Ok(refreshed) => {
                    this.store.save(&refreshed).await?;
                    this.set_needed(None);
                    let none =
                        || LoginError::Unavailable("the authorization server returned no token".to_owned());
                    refreshed.access_token().ok_or_else(none)
                }
                Err(RefreshError::Rejected(reason)) => {
                    // The tokens are deleted, so that the refresh is not repeated until a user logs in.
                    let mut login = login;
                    login.credentials.token_response = None;
                    this.store.save(&login).await?;
                    Err(this.need_login(reason, Vec::new()))
                }
                Err(RefreshError::Failed(error)) => state.record(Err(error)),
            }
        }))
        .await
    }

    /// Replaces a rejected token of the client credentials grant.
    async fn reissue(
        self: &Arc<Self>,
        mut state: OwnedMutexGuard<State>,
        url: &str,
        rejected: Option<&str>,
        demanded: Option<Vec<String>>,
    ) -> Result<String, LoginError> {
        if let Some(token) = state.fresh_token().filter(|token| Some(&**token) != rejected) {
            return Ok(token);
        }
        let has = |state: &State, scope: &String| {
            state.demanded.contains(scope) || self.oauth.scopes.contains(scope)
        };
        let new: Vec<String> =
            demanded.into_iter().flatten().filter(|scope| !has(&state, scope)).take(OAUTH_SCOPES).collect();
        if new.is_empty() && !state.may_replace() {
            return Err(LoginError::Refused(format!(
                "`{}` rejects the tokens of its client credentials; check `oauth` in its entry",
                self.store.server
            )));
        }
        state.demanded.extend(new);
        state.demanded.truncate(OAUTH_SCOPES);
        self.issue(state, url).await
    }

    async fn issue(
        self: &Arc<Self>,
        mut state: OwnedMutexGuard<State>,
        url: &str,
    ) -> Result<String, LoginError> {
        state.check_recent_failure()?;
        let scopes: Vec<String> = self.oauth.scopes.iter().chain(&state.demanded).cloned().collect();
        let issued = with_timeout(self.resource(url, state.challenge.as_deref()).issue(&scopes)).await;
        let issued = state.record(issued)?;
        let expires =
            issued.expires_in.and_then(|left| Instant::now().checked_add(Duration::from_secs(left)));
        state.issued = Some((issued.token.clone(), expires));
        Ok(issued.token)
    }

    fn resource<'a>(&'a self, url: &'a str, challenge: Option<&'a str>) -> Resource<'a> {
        Resource { url, oauth: &self.oauth, variables: &*self.variables, challenge }
    }

    /// Parameters of the next login: the last challenge, and the scopes that are known to be needed.
    pub(super) async fn login_params(
        &self,
        url: &str,
        configured: &[String],
    ) -> Result<(Option<String>, Vec<String>), LoginError> {
        let state = self.state.lock().await;
        let mut scopes = configured.to_vec();
        if let Some(login) = self.store.load(url).await?.filter(|login| !login.demanded.is_empty()) {
            scopes.extend(login.credentials.granted_scopes.iter().chain(&login.demanded).cloned());
        }
        let mut seen = std::collections::BTreeSet::new();
        scopes.retain(|scope| seen.insert(scope.clone()));
        Ok((state.challenge.clone(), scopes))
    }

    /// Stores a new login.
    pub(super) async fn save(&self, login: &Login) -> Result<(), LoginError> {
        let mut state = self.state.lock().await;
        self.store.save(login).await?;
        *state = State::default();
        self.set_needed(None);
        Ok(())
    }

    /// Deletes the login.
    pub(super) async fn forget(&self) -> Result<bool, LoginError> {
        let mut state = self.state.lock().await;
        let existed = self.store.remove().await?;
        *state = State::default();
        Ok(existed)
    }

    pub(super) fn needed(&self) -> Option<LoginNeeded> {
        self.needed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_needed(&self, needed: Option<LoginNeeded>) {
        *self.needed.lock().unwrap_or_else(PoisonError::into_inner) = needed;
    }

    /// Records that a user has to log in. Logs it once, not once per call.
    fn need_login(&self, reason: &str, scopes: Vec<String>) -> LoginError {
        let server = self.store.server.clone();
        let needed = LoginNeeded { server, scopes, reason: reason.to_owned() };
        if self.needed().is_none() {
            tracing::warn!(server = needed.server, scope = ?self.store.scope, "{needed}");
        }
        self.set_needed(Some(needed.clone()));
        LoginError::Needed(needed)
    }
}

/// The valid scopes of a challenge.
fn scopes_of(params: &WWWAuthenticateParams) -> Vec<String> {
    let scopes = params.scope.as_deref().unwrap_or_default().split_ascii_whitespace();
    let scopes = scopes.filter(|scope| scope.len() <= SCOPE_BYTES && scope.bytes().all(is_scope_byte));
    scopes.take(OAUTH_SCOPES).map(str::to_owned).collect()
}

/// The result of a spawned task.
async fn join<T>(task: tokio::task::JoinHandle<Result<T, LoginError>>) -> Result<T, LoginError> {
    task.await.unwrap_or_else(|_| Err(LoginError::Unavailable("the token request failed".to_owned())))
}
