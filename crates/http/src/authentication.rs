//! Authentication: which principal a request acts as, from its bearer token, session cookie or local peer.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use steprail_core::run::{Millis, Provenance};
use steprail_engine::{AdminAction, AdminEvent, Principal};

use crate::accounts::oidc::Oidc;
use crate::accounts::{AuthError, SessionAuth, UserRecord};
use crate::peer::{Peer, process};
use crate::problem::Problem;
use crate::stream::HEARTBEAT;
use crate::{App, audit, sign_in};

/// The scope of an identity provider's token that marks its holder as a person. Tokens without it are an agent's.
const PERSON_SCOPE: &str = "steprail:person";
/// The header that carries the page secret of a browser session.
const PAGE_HEADER: &str = "x-steprail-page";
/// The query parameter that carries a ticket.
const TICKET_PARAMETER: &str = "ticket=";

/// The credential of a request. Streams re-check it while they are open.
#[derive(Clone)]
pub(crate) enum Credential {
    /// An API token.
    Token(Arc<str>),
    /// A session cookie, and the public id of its session.
    Cookie(Arc<str>, Arc<str>),
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
            Self::Cookie(text, _) => app.accounts.by_cookie(text).ok().map(|session| session.principal),
            Self::Provider(until) if app.engine.now() < *until => {
                let (agent, agent_only) = (before.agent, before.agent_only);
                app.accounts.principal(&before.id).map(|fresh| Principal { agent, agent_only, ..fresh })
            }
            Self::Provider(_) => None,
            Self::Local => Some(before.clone()),
        }
    }

    /// How the holder of the credential acts, for the log of decisions.
    fn provenance(&self, principal: &Principal) -> Provenance {
        let (surface, credential) = match self {
            Self::Token(_) => ("rest", principal.token.clone()),
            Self::Cookie(_, session) => ("browser", Some((**session).into())),
            Self::Provider(_) | Self::Local => ("rest", None),
        };
        Provenance { surface: Some(surface.into()), credential, ..Provenance::default() }
    }

    /// Waits until the credential is revoked or has expired.
    async fn ended(self, app: App, principal: Principal) {
        let mut changes = app.accounts.watch();
        while self.renewed(&app, &principal).is_some() {
            // Nothing reports that a credential has expired.
            let _ = tokio::time::timeout(HEARTBEAT, changes.changed()).await;
        }
    }
}

/// Ends the body of a stream when the credential of its request becomes invalid: a client must not receive anything after
/// its token, its session or its user was revoked.
fn until_revoked(app: &App, principal: &Principal, credential: &Credential, response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
    if !is_stream || matches!(credential, Credential::Local) {
        return response;
    }
    let ended = credential.clone().ended(app.clone(), principal.clone());
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(ended))))
}

/// Authenticates every request as the owner: only the owner can open the socket that it came through.
pub(crate) async fn as_owner(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut owner = app.accounts.owner().clone();
    owner.provenance.surface = Some("terminal".into());
    owner.provenance.process = peer.pid.and_then(|pid| process::describe(pid, peer.os_user));
    if let Some(problem) = reject_agents(&app, &peer, owner.provenance.process.as_deref()).await {
        return problem.into_response();
    }
    request.extensions_mut().insert(owner);
    request.extensions_mut().insert(Credential::Local);
    next.run(request).await
}

/// The problem for a program that the daemon or an MCP client started, or that is unknown: it must not act as a person.
async fn reject_agents(app: &App, peer: &Peer, process: Option<&str>) -> Option<Problem> {
    let reason = app.agent_processes.objection(peer.pid)?;
    let process = process.unwrap_or("(unknown)").to_owned();
    tracing::warn!(target: audit::TARGET, action = "peer_rejected", process, reason, "a program of an agent used the socket for people");
    let now = app.engine.now();
    // A program that repeats the request does not fill the log.
    if app.peer_rejections.retry_after_secs(peer.ip, now).is_none() {
        app.peer_rejections.record(peer.ip, now);
        let action = AdminAction::PeerRejected { process: process.clone(), reason: reason.to_owned() };
        if let Err(error) = app.engine.registry().record(vec![AdminEvent::new(action, None)]).await {
            return Some(error.into());
        }
    }
    let detail = format!("the program {process} cannot act as a person: {reason}");
    Some(
        Problem::new(StatusCode::FORBIDDEN, "agent_process", detail)
            .hint("this socket is for people: agents use the tools of the MCP server, people another terminal or the browser"),
    )
}

/// Authenticates a request, or answers 401.
pub(crate) async fn authenticate(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    match identify(&app, &peer, request.uri(), request.headers()).await {
        Ok((mut principal, credential)) => {
            principal.provenance = credential.provenance(&principal);
            request.extensions_mut().insert(principal.clone());
            request.extensions_mut().insert(credential.clone());
            until_revoked(&app, &principal, &credential, next.run(request).await)
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
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(Principal, Credential), Problem> {
    if let Some(value) = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) {
        let token = value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer "));
        return by_bearer(app, peer.ip, token.unwrap_or_default().trim()).await;
    }
    if let Some(cookie) = sign_in::cookie_of(headers) {
        return by_cookie(app, peer, cookie, uri, headers).await;
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

/// Authenticates a request with a session cookie. Browsers send the cookie to every port of the host, so the request must
/// also prove that it comes from the page that signed in, and from the same user of the operating system.
async fn by_cookie(
    app: &App,
    peer: &Peer,
    cookie: &str,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(Principal, Credential), Problem> {
    let session = app.accounts.by_cookie(cookie).map_err(|error| rejected(app, peer.ip, error))?;
    if !session.belongs_to(peer.os_user) {
        return Err(replayed(app, peer, &session, "another user of the operating system"));
    }
    let secret = headers.get(PAGE_HEADER).and_then(|secret| secret.to_str().ok()).unwrap_or_default();
    let is_from_page = session.is_page_secret(secret)
        || ticket_of(uri).is_some_and(|ticket| app.accounts.use_ticket(ticket, &session.id));
    if !is_from_page {
        return Err(replayed(app, peer, &session, "a request without the secret of the page"));
    }
    app.accounts.extend_session(cookie).await;
    Ok((session.principal, Credential::Cookie(cookie.into(), session.id.into())))
}

/// The ticket of a request that opens a stream. Other requests can send the header.
fn ticket_of(uri: &Uri) -> Option<&str> {
    let path = uri.path();
    let is_of_run = path.starts_with("/api/v1/runs/") && path.ends_with("/stream");
    if !is_of_run && !matches!(path, "/api/v1/stream" | "/api/v1/socket") {
        return None;
    }
    uri.query()?.split('&').find_map(|parameter| parameter.strip_prefix(TICKET_PARAMETER))
}

/// The problem for a session cookie that somebody else sent. It is a sign of an attack, so it is logged.
fn replayed(app: &App, peer: &Peer, session: &SessionAuth, by: &str) -> Problem {
    tracing::warn!(
        target: audit::TARGET,
        action = "session_cookie_rejected",
        reason = by,
        user = session.principal.id,
        session = session.id,
        ip = %peer.ip,
        os_user = peer.os_user,
        "a session cookie was sent by {by}"
    );
    let problem = rejected(app, peer.ip, AuthError::Unknown);
    if problem.status != StatusCode::UNAUTHORIZED.as_u16() {
        return problem;
    }
    let detail = "the session cookie is valid only with the secret of the page that signed in";
    Problem::new(StatusCode::UNAUTHORIZED, "page_secret_required", detail).hint(
        "send the page secret in the header X-Steprail-Page, or a ticket of POST /api/v1/tickets with a stream; \
         `steprail open` prints a new sign-in link",
    )
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
        AuthError::Unknown | AuthError::NoUser | AuthError::OtherOsUser => {
            ("unauthenticated", "the credentials are not valid")
        }
    };
    Problem::new(StatusCode::UNAUTHORIZED, code, detail)
        .hint("create a new token with `steprail token create`")
}
