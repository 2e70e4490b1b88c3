//! The door of every route: which names and pages may reach it, and who comes in.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use steprail_core::run::Millis;
use steprail_engine::Principal;

use super::listen::Place;
use super::problem::Problem;
use super::{App, sign_in};
use crate::accounts::oidc::Oidc;
use crate::accounts::{Accounts, Person, Refused};

/// The scope of a provider's token that a person holds, and not an agent.
const PERSON: &str = "steprail:person";
/// The header with the word that a page sends along with what it changes.
pub(super) const CSRF: &str = "x-steprail-csrf";

/// Headers that pages of other origins may send.
const ALLOWED_HEADERS: &str = "authorization, content-type, if-match, if-none-match, idempotency-key, last-event-id, \
                               traceparent, tracestate, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name";
/// Headers of responses that such pages may read.
const EXPOSED_HEADERS: &str = "etag, retry-after, www-authenticate, mcp-session-id";
/// What headers for arguments of MCP tools begin with (`x-mcp-header`).
const ARGUMENT_HEADER: &str = "mcp-param-";
/// How many of them a page may send.
const ARGUMENT_HEADERS: usize = 32;

/// What may reach the server, and how people sign in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Doors {
    /// Whether everybody has to sign in. Otherwise whoever reaches it acts for the owner, as an agent.
    pub sign_in: bool,
    /// Names under which it may be reached, beside those of this machine.
    pub hosts: Vec<String>,
    /// Origins whose pages may call it, beside its own.
    pub origins: Vec<String>,
}

/// What somebody came in with: a stream looks again whether it still counts.
#[derive(Clone)]
pub(super) enum Credential {
    /// A token of ours.
    Token(Arc<str>),
    /// A cookie, and the word that changes must carry.
    Cookie(Arc<str>, String),
    /// A token of an identity provider, until its time is up.
    Provider(Millis),
    /// Nothing: it came from this machine.
    Local,
}

impl Credential {
    /// Whoever comes with it now, if it still counts. Looking again is not using it.
    pub(super) fn renewed(&self, app: &App, before: &Principal) -> Option<Principal> {
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

/// Lets a request in for whoever owns the data directory: it came through a socket that nobody else can open.
pub(super) async fn enter_as_owner(State(app): State<App>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(app.accounts.owner().clone());
    request.extensions_mut().insert(Credential::Local);
    next.run(request).await
}

/// Looks where a request comes from: a page of another origin, or a name that does not mean this server, is refused.
pub(super) async fn check_place(State(app): State<App>, request: Request, next: Next) -> Response {
    // Whoever watches over the process asks under any name, and learns nothing.
    if matches!(request.uri().path(), "/healthz" | "/readyz")
        && !request.headers().contains_key(header::ORIGIN)
    {
        return next.run(request).await;
    }
    if let Err(problem) = app.doors.check(request.method(), request.headers()) {
        return problem.into_response();
    }
    let Some(origin) = app.doors.stranger(request.headers()) else { return next.run(request).await };
    let asked =
        text(request.headers(), header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default().to_owned();
    let mut response = if request.method() == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PUT, DELETE"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(&asked));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_HEADERS));
    response
}

/// Headers that pages of other origins may send: those of the API and of MCP. Headers for arguments of MCP tools have
/// names of their own, so those that the browser asks for are allowed by name.
fn allowed_headers(asked: &str) -> HeaderValue {
    let arguments = asked.split(',').map(|name| name.trim().to_ascii_lowercase());
    let arguments = arguments.filter(|name| name.starts_with(ARGUMENT_HEADER)).take(ARGUMENT_HEADERS);
    let all: Vec<String> = std::iter::once(ALLOWED_HEADERS.to_owned()).chain(arguments).collect();
    HeaderValue::from_str(&all.join(", ")).unwrap_or(HeaderValue::from_static(ALLOWED_HEADERS))
}

/// Finds out who sends a request.
pub(super) async fn enter(
    State(app): State<App>,
    ConnectInfo(place): ConnectInfo<Place>,
    mut request: Request,
    next: Next,
) -> Response {
    match identify(&app, place, request.method(), request.headers()).await {
        Ok((principal, credential)) => {
            request.extensions_mut().insert(principal);
            request.extensions_mut().insert(credential);
            next.run(request).await
        }
        Err(problem) => challenge(&app, problem.into_response()),
    }
}

/// Whoever has to sign in is told where, if an identity provider does that.
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

impl Doors {
    fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
        let host = text(headers, header::HOST).and_then(|host| host.parse::<Authority>().ok());
        let named = host.filter(|host| self.is_ours(host));
        let Some(host) = named else {
            let detail = "the server is not reached under this name";
            let problem = Problem::new(StatusCode::MISDIRECTED_REQUEST, "bad_host", detail);
            return Err(problem.hint("`http.hosts` in steprail.toml lists further names"));
        };
        let refused = || {
            let problem = Problem::new(
                StatusCode::FORBIDDEN,
                "bad_origin",
                "pages of other origins may not call this server",
            );
            problem.hint("`http.origins` in steprail.toml lists those that may")
        };
        match text(headers, header::ORIGIN) {
            Some(origin) if self.is_same(origin, &host) => Ok(()),
            Some(_) => Err(refused()),
            None => match headers.get("sec-fetch-site").and_then(|site| site.to_str().ok()) {
                None | Some("same-origin" | "none") => Ok(()),
                // A link that is followed shows something to whoever follows it, and to nobody else.
                Some(_) if method == Method::GET && is_navigation(headers) => Ok(()),
                Some(_) => Err(refused()),
            },
        }
    }

    /// The origin of a page that is not ours and may call all the same: its browser wants to hear that.
    fn stranger(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = text(headers, header::ORIGIN)?;
        let is_listed = self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin));
        is_listed.then(|| headers.get(header::ORIGIN).cloned())?
    }

    /// A name that is listed with a port counts with that port only.
    fn is_ours(&self, host: &Authority) -> bool {
        let is_it =
            |ours: &String| [host.host(), host.as_str()].iter().any(|name| ours.eq_ignore_ascii_case(name));
        sign_in::is_here(host) || self.hosts.iter().any(is_it)
    }

    fn is_same(&self, origin: &str, host: &Authority) -> bool {
        let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        own.is_some_and(|own| own.eq_ignore_ascii_case(host.as_str()))
            || self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }
}

fn is_navigation(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
}

async fn identify(
    app: &App,
    place: Place,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(Principal, Credential), Problem> {
    if let Some(value) = text(headers, header::AUTHORIZATION) {
        let token =
            value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")).unwrap_or_default();
        return by_bearer(app, place.ip, token.trim()).await;
    }
    if let Some(cookie) = sign_in::sent(headers) {
        app.accounts.touch(cookie).await;
        let (principal, csrf) =
            app.accounts.by_cookie(cookie).map_err(|refused| refuse(app, place.ip, refused))?;
        let sent = headers.get(CSRF).and_then(|word| word.to_str().ok()).unwrap_or_default();
        if !method.is_safe() && !Accounts::is_csrf(&csrf, sent) {
            let problem =
                Problem::new(StatusCode::FORBIDDEN, "bad_csrf", "the page did not prove that it is ours");
            return Err(problem.hint("send the word that /api/v1/me gives in the header X-Steprail-Csrf"));
        }
        return Ok((principal, Credential::Cookie(cookie.into(), csrf)));
    }
    if app.doors.sign_in {
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "a token is needed");
        return Err(problem.hint("`steprail token create` makes one; send it as `Authorization: Bearer …`"));
    }
    // What a proxy passes on may come from anywhere.
    let is_passed_on = ["forwarded", "x-forwarded-for", "via"].iter().any(|name| headers.contains_key(*name));
    if is_passed_on || !place.is_own {
        let detail = "this server is for the user who runs it, and you are somebody else";
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail);
        return Err(
            problem.hint("they can make you a token: `steprail user add`, `steprail token create --user`")
        );
    }
    Ok((app.accounts.owner().clone().through_agent(), Credential::Local))
}

async fn by_bearer(app: &App, place: IpAddr, token: &str) -> Result<(Principal, Credential), Problem> {
    if let Some(oidc) = app.oidc.as_ref().filter(|_| Oidc::looks_like_jwt(token)) {
        let identity = oidc.validate(token).await.map_err(|refused| {
            tracing::info!(%refused, "a token of the identity provider was refused");
            let detail = refused.for_client().into();
            Problem {
                detail,
                ..refuse(app, place, Refused::Unknown).hint("get a new one from your identity provider")
            }
        })?;
        let (name, email) = (identity.name, identity.email);
        let person =
            Person { name, email, groups: identity.groups.into_iter().collect(), ..Person::default() };
        let principal = app.accounts.by_provider(&identity.user, person).await?;
        // MCP clients get such tokens for their users: only one that is said to be a person's is.
        let agent = !identity.scopes.iter().any(|scope| scope == PERSON);
        let principal = Principal { agent, agent_only: agent, ..principal };
        return Ok((principal, Credential::Provider(identity.expires_at.saturating_mul(1_000))));
    }
    let principal = app.accounts.by_token(token).map_err(|refused| refuse(app, place, refused))?;
    Ok((principal, Credential::Token(token.into())))
}

/// What somebody is told whose token or cookie is not taken: as little as helps.
pub(super) fn refuse(app: &App, place: IpAddr, refused: Refused) -> Problem {
    let now = app.engine.now();
    // Whoever had a good one and was too late is not guessing.
    if refused != Refused::Expired {
        app.accounts.attempts.refused(place, now);
    }
    if let Some(seconds) = app.accounts.attempts.must_wait(place, now) {
        let detail = format!("too many attempts were refused; try again in {seconds} s");
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", detail);
        return Problem { retry_after: u32::try_from(seconds).ok(), ..problem };
    }
    let (code, detail) = match refused {
        Refused::Expired => ("expired", "what you signed in with is no longer valid"),
        Refused::Unknown | Refused::NoUser => ("unauthenticated", "what you signed in with is not valid"),
    };
    Problem::new(StatusCode::UNAUTHORIZED, code, detail).hint("`steprail token create` makes a new token")
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
