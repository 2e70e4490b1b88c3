//! Authentication: which principal a request acts as, from its bearer token, session cookie or local peer.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use steprail_core::run::Millis;
use steprail_engine::Principal;

use crate::accounts::oidc::Oidc;
use crate::accounts::{Accounts, AuthError, UserRecord};
use crate::peer::Peer;
use crate::problem::Problem;
use crate::{App, sign_in};

/// The scope of an identity provider's token that marks its holder as a person. Tokens without it are an agent's.
const PERSON_SCOPE: &str = "steprail:person";
/// The header that carries the CSRF token of a browser session.
const CSRF_HEADER: &str = "x-steprail-csrf";

/// The credential of a request. Streams re-check it while they are open.
#[derive(Clone)]
pub(crate) enum Credential {
    /// An API token.
    Token(Arc<str>),
    /// A session cookie and the CSRF token of its session.
    Cookie(Arc<str>, String),
    /// A token of an identity provider, valid until the given time.
    Provider(Millis),
    /// None: the peer is a local program of the owner.
    Local,
}

impl Credential {
    /// The principal of the credential now, or `None` if it was revoked or has expired. Does not extend a session.
    pub(crate) fn renewed(&self, app: &App, before: &Principal) -> Option<Principal> {
        match self {
            Self::Token(text) => app.accounts.by_token(text).ok(),
            Self::Cookie(text, _) => app.accounts.by_cookie(text).ok().map(|(principal, _)| principal),
            Self::Provider(until) if app.engine.now() < *until => {
                let (agent, agent_only) = (before.agent, before.agent_only);
                app.accounts.principal(&before.id).map(|fresh| Principal { agent, agent_only, ..fresh })
            }
            Self::Provider(_) => None,
            Self::Local => Some(before.clone()),
        }
    }
}

/// Authenticates every request as the owner: only the owner can open the socket that it came through.
pub(crate) async fn as_owner(State(app): State<App>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(app.accounts.owner().clone());
    request.extensions_mut().insert(Credential::Local);
    next.run(request).await
}

/// Authenticates a request, or answers 401.
pub(crate) async fn authenticate(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    match identify(&app, &peer, request.method(), request.headers()).await {
        Ok((principal, credential)) => {
            request.extensions_mut().insert(principal);
            request.extensions_mut().insert(credential);
            next.run(request).await
        }
        Err(problem) => challenge(&app, problem.into_response()),
    }
}

/// Adds the `WWW-Authenticate` header that leads MCP clients to the identity provider, if there is one.
fn challenge(app: &App, mut response: Response) -> Response {
    if response.status() != StatusCode::UNAUTHORIZED || app.oidc.is_none() {
        return response;
    }
    let url = app.url.get().map(String::as_str).unwrap_or_default();
    let value = format!("Bearer resource_metadata=\"{url}/.well-known/oauth-protected-resource\"");
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
    }
    response
}

async fn identify(
    app: &App,
    peer: &Peer,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(Principal, Credential), Problem> {
    if let Some(value) = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) {
        let token = value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer "));
        return by_bearer(app, peer.ip, token.unwrap_or_default().trim()).await;
    }
    if let Some(cookie) = sign_in::cookie_of(headers) {
        return by_cookie(app, peer.ip, cookie, method, headers).await;
    }
    if app.access_policy.requires_sign_in {
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "the request has no token");
        return Err(
            problem.hint("create one with `steprail token create` and send it as `Authorization: Bearer …`")
        );
    }
    // The origin of a proxied request is unknown.
    let is_proxied = ["forwarded", "x-forwarded-for", "via"].iter().any(|name| headers.contains_key(*name));
    if is_proxied || !peer.is_owner {
        let detail = "only local programs of the server's owner need no token";
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail);
        return Err(
            problem.hint("ask the owner for a token: `steprail user add`, `steprail token create --user`")
        );
    }
    Ok((app.accounts.owner().clone().through_agent(), Credential::Local))
}

async fn by_cookie(
    app: &App,
    ip: IpAddr,
    cookie: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(Principal, Credential), Problem> {
    app.accounts.extend_session(cookie).await;
    let (principal, csrf) = app.accounts.by_cookie(cookie).map_err(|error| rejected(app, ip, error))?;
    let sent = headers.get(CSRF_HEADER).and_then(|token| token.to_str().ok()).unwrap_or_default();
    if !method.is_safe() && !Accounts::is_csrf_token(&csrf, sent) {
        let problem = Problem::new(StatusCode::FORBIDDEN, "bad_csrf", "the CSRF token is missing or invalid");
        return Err(problem.hint("send `csrf` of GET /api/v1/me in the header X-Steprail-Csrf"));
    }
    Ok((principal, Credential::Cookie(cookie.into(), csrf)))
}

async fn by_bearer(app: &App, ip: IpAddr, token: &str) -> Result<(Principal, Credential), Problem> {
    let Some(oidc) = app.oidc.as_ref().filter(|_| Oidc::looks_like_jwt(token)) else {
        let principal = app.accounts.by_token(token).map_err(|error| rejected(app, ip, error))?;
        return Ok((principal, Credential::Token(token.into())));
    };
    let identity = oidc.validate(token).await.map_err(|error| {
        tracing::info!(%error, "rejected a token of the identity provider");
        let problem =
            rejected(app, ip, AuthError::Unknown).hint("get a new token from your identity provider");
        Problem { detail: error.for_client().into(), ..problem }
    })?;
    let groups = identity.groups.into_iter().collect();
    let record = UserRecord { name: identity.name, email: identity.email, groups, ..UserRecord::default() };
    let principal = app.accounts.by_provider(&identity.user, record).await?;
    // MCP clients get tokens on behalf of their users, so a token is an agent's unless its scope says otherwise.
    let agent = !identity.scopes.iter().any(|scope| scope == PERSON_SCOPE);
    let principal = Principal { agent, agent_only: agent, ..principal };
    Ok((principal, Credential::Provider(identity.expires_at.saturating_mul(1_000))))
}

/// The problem for invalid credentials, and 429 once the rate limit of the address is exhausted. It does not say whether
/// the user or the token is unknown.
pub(crate) fn rejected(app: &App, ip: IpAddr, error: AuthError) -> Problem {
    let now = app.engine.now();
    // A credential that was valid once is not a guess.
    if error != AuthError::Expired {
        app.accounts.failures.record(ip, now);
    }
    if let Some(seconds) = app.accounts.failures.retry_after_secs(ip, now) {
        let detail = format!("too many failed attempts to authenticate; try again in {seconds} s");
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", detail);
        return Problem { retry_after: u32::try_from(seconds).ok(), ..problem };
    }
    let (code, detail) = match error {
        AuthError::Expired => ("expired", "the credentials have expired"),
        AuthError::Unknown | AuthError::NoUser => ("unauthenticated", "the credentials are not valid"),
    };
    Problem::new(StatusCode::UNAUTHORIZED, code, detail)
        .hint("create a new token with `steprail token create`")
}
