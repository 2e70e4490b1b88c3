//! The tokens of one server and user: fresh ones at once, others renewed once for all who wait.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use reqwest::Url;
use rmcp::transport::auth::WWWAuthenticateParams;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::error::{LoginError, LoginNeeded};
use super::exchange::{NotRenewed, Resource, in_time};
use super::record::{Login, Place};
use crate::config::{Grant, OAuth, Variables, is_scope_byte};
use crate::limits::{
    CHALLENGE_BYTES, OAUTH_SCOPES, REFRESH_BEFORE_SECS, REISSUE_SECS, RETRY_SECS, SCOPE_BYTES,
};

/// The tokens of one server and user.
pub(super) struct Session {
    place: Place,
    oauth: OAuth,
    variables: Arc<dyn Variables + Send + Sync>,
    /// Held while tokens are requested, so that concurrent callers share one request.
    state: Arc<Mutex<State>>,
    needed: StdMutex<Option<LoginNeeded>>,
}

#[derive(Default)]
struct State {
    /// The last challenge of the server. It leads discovery to the right metadata and scopes.
    challenge: Option<String>,
    /// The token of the client credentials grant, with its expiry.
    issued: Option<(String, Option<Instant>)>,
    /// Scopes that the server demanded of the client credentials grant, beside the configured ones.
    demanded: Vec<String>,
    /// When a token was last requested because the server rejected one.
    replaced: Option<Instant>,
    /// Why the last token request failed, and when: those who waited for it do not repeat it.
    failed: Option<(Instant, LoginError)>,
}

impl State {
    /// Whether a rejected token may be replaced: the server may reject every token.
    fn may_replace(&mut self) -> bool {
        let recently = |at: &Instant| at.elapsed() < Duration::from_secs(REISSUE_SECS);
        if self.replaced.as_ref().is_some_and(recently) {
            return false;
        }
        self.replaced = Some(Instant::now());
        true
    }

    /// The failure of a token request that is too recent to be repeated.
    fn recent_failure(&self) -> Result<(), LoginError> {
        match &self.failed {
            Some((at, error)) if at.elapsed() < Duration::from_secs(RETRY_SECS) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn note<T>(&mut self, done: Result<T, LoginError>) -> Result<T, LoginError> {
        self.failed = done.as_ref().err().map(|error| (Instant::now(), error.clone()));
        done
    }

    fn fresh(&self) -> Option<String> {
        let soon = Instant::now() + Duration::from_secs(REFRESH_BEFORE_SECS);
        let issued = self.issued.as_ref()?;
        issued.1.is_none_or(|expires| expires > soon).then(|| issued.0.clone())
    }
}

impl Session {
    pub(super) fn new(place: Place, oauth: OAuth, variables: Arc<dyn Variables + Send + Sync>) -> Self {
        Self { place, oauth, variables, state: Arc::default(), needed: StdMutex::default() }
    }

    pub(super) async fn token(self: Arc<Self>, url: &str) -> Result<Option<String>, LoginError> {
        let state = self.state.clone().lock_owned().await;
        if self.oauth.grant == Grant::ClientCredentials {
            return match state.fresh() {
                Some(token) => Ok(Some(token)),
                None => self.issue(state, url).await.map(Some),
            };
        }
        let Some(login) = self.place.load(url).await? else { return Ok(None) };
        match login.fresh_token() {
            Some(token) => Ok(Some(token)),
            None => self.renew(state, login).await.map(Some),
        }
    }

    pub(super) async fn challenged(
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
            return self.issue_again(state, url, rejected, demanded).await;
        }
        let Some(mut login) = self.place.load(url).await? else {
            return Err(self.need("nobody has logged in", scopes_of(&params)));
        };
        if let Some(token) = login.fresh_token().filter(|token| Some(&**token) != rejected) {
            return Ok(token);
        }
        if let Some(demanded) = demanded {
            return self.step_up(&mut login, demanded).await;
        }
        if !state.may_replace() {
            return Err(self.need("the server rejects the tokens of the present login", Vec::new()));
        }
        self.renew(state, login).await
    }

    /// Remembers scopes that the login lacks: only a user can grant them.
    async fn step_up(&self, login: &mut Login, demanded: Vec<String>) -> Result<String, LoginError> {
        let before = login.wanted.len();
        for scope in &demanded {
            if login.wanted.len() < OAUTH_SCOPES && !login.wanted.contains(scope) {
                login.wanted.push(scope.clone());
            }
        }
        if login.wanted.len() > before {
            self.place.save(login).await?;
        }
        Err(self.need("the server demands more than the present login grants", demanded))
    }

    /// Renews a login. The request ends and its result is stored even if the caller goes away: a refresh token may be
    /// valid once only.
    async fn renew(
        self: &Arc<Self>,
        state: OwnedMutexGuard<State>,
        login: Login,
    ) -> Result<String, LoginError> {
        if !login.can_refresh() {
            return Err(self.need("the login has expired", Vec::new()));
        }
        state.recent_failure()?;
        let this = self.clone();
        ended(tokio::spawn(async move {
            let mut state = state;
            let resource = this.resource(&login.url, state.challenge.as_deref());
            match in_time(resource.renew(&login)).await {
                Ok(renewed) => {
                    this.place.save(&renewed).await?;
                    this.set_needed(None);
                    let none =
                        || LoginError::Unavailable("the authorization server gave no token".to_owned());
                    renewed.access_token().ok_or_else(none)
                }
                Err(NotRenewed::Rejected(why)) => {
                    // Without its tokens, the login is not tried again until a user logs in.
                    let mut login = login;
                    login.credentials.token_response = None;
                    this.place.save(&login).await?;
                    Err(this.need(why, Vec::new()))
                }
                Err(NotRenewed::Failed(error)) => state.note(Err(error)),
            }
        }))
        .await
    }

    /// A token of the client credentials grant in the place of one that the server rejected.
    async fn issue_again(
        self: &Arc<Self>,
        mut state: OwnedMutexGuard<State>,
        url: &str,
        rejected: Option<&str>,
        demanded: Option<Vec<String>>,
    ) -> Result<String, LoginError> {
        if let Some(token) = state.fresh().filter(|token| Some(&**token) != rejected) {
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
                self.place.server
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
        state.recent_failure()?;
        let scopes: Vec<String> = self.oauth.scopes.iter().chain(&state.demanded).cloned().collect();
        let issued = in_time(self.resource(url, state.challenge.as_deref()).issue(&scopes)).await;
        let issued = state.note(issued)?;
        let expires =
            issued.expires_in.and_then(|left| Instant::now().checked_add(Duration::from_secs(left)));
        state.issued = Some((issued.token.clone(), expires));
        Ok(issued.token)
    }

    fn resource<'a>(&'a self, url: &'a str, challenge: Option<&'a str>) -> Resource<'a> {
        Resource { url, oauth: &self.oauth, variables: &*self.variables, challenge }
    }

    /// What the next login goes by: the last challenge, and the scopes that are known to be needed.
    pub(super) async fn wanted(
        &self,
        url: &str,
        configured: &[String],
    ) -> Result<(Option<String>, Vec<String>), LoginError> {
        let state = self.state.lock().await;
        let mut scopes = configured.to_vec();
        if let Some(login) = self.place.load(url).await?.filter(|login| !login.wanted.is_empty()) {
            scopes.extend(login.credentials.granted_scopes.iter().chain(&login.wanted).cloned());
        }
        let mut seen = std::collections::BTreeSet::new();
        scopes.retain(|scope| seen.insert(scope.clone()));
        Ok((state.challenge.clone(), scopes))
    }

    /// Stores a new login.
    pub(super) async fn store(&self, login: &Login) -> Result<(), LoginError> {
        let mut state = self.state.lock().await;
        self.place.save(login).await?;
        *state = State::default();
        self.set_needed(None);
        Ok(())
    }

    /// Deletes the login.
    pub(super) async fn forget(&self) -> Result<bool, LoginError> {
        let mut state = self.state.lock().await;
        let was_there = self.place.remove().await?;
        *state = State::default();
        Ok(was_there)
    }

    pub(super) fn needed(&self) -> Option<LoginNeeded> {
        self.needed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_needed(&self, needed: Option<LoginNeeded>) {
        *self.needed.lock().unwrap_or_else(PoisonError::into_inner) = needed;
    }

    /// Notes that a user has to log in. One line of the log says so, however many calls wait for it.
    fn need(&self, reason: &str, scopes: Vec<String>) -> LoginError {
        let server = self.place.server.clone();
        let needed = LoginNeeded { server, scopes, reason: reason.to_owned() };
        if self.needed().is_none() {
            tracing::warn!(server = needed.server, scope = ?self.place.scope, "{needed}");
        }
        self.set_needed(Some(needed.clone()));
        LoginError::Needed(needed)
    }
}

/// The scopes of a challenge, without what is no scope.
fn scopes_of(params: &WWWAuthenticateParams) -> Vec<String> {
    let scopes = params.scope.as_deref().unwrap_or_default().split_ascii_whitespace();
    let scopes = scopes.filter(|scope| scope.len() <= SCOPE_BYTES && scope.bytes().all(is_scope_byte));
    scopes.take(OAUTH_SCOPES).map(str::to_owned).collect()
}

/// The result of a task of our own.
async fn ended<T>(task: tokio::task::JoinHandle<Result<T, LoginError>>) -> Result<T, LoginError> {
    task.await.unwrap_or_else(|_| Err(LoginError::Unavailable("the token request failed".to_owned())))
}
