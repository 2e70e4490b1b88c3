//! Host, Origin and CORS checks of every route: they stop DNS rebinding and cross-origin requests.

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;
use crate::{App, sign_in};

/// Request headers that cross-origin pages may send.
const ALLOWED_HEADERS: &str = "authorization, content-type, if-match, if-none-match, idempotency-key, last-event-id, \
                               traceparent, tracestate, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name";
/// Response headers that cross-origin pages may read.
const EXPOSED_HEADERS: &str = "etag, retry-after, www-authenticate, mcp-session-id";
/// Prefix of the headers that carry arguments of MCP tools (`x-mcp-header`).
const ARGUMENT_HEADER: &str = "mcp-param-";
/// The number of argument headers that a preflight response allows.
const ARGUMENT_HEADERS: usize = 32;

/// Which hosts and origins may reach the server, and whether requests must authenticate.
#[derive(Debug, Clone, Default)]
pub struct AccessPolicy {
    /// Whether every request needs credentials. If not, requests of the owner's programs act as the owner's agent.
    pub requires_sign_in: bool,
    /// Accepted `Host` names beside those of the loopback interface. A name with a port matches that port only.
    pub hosts: Vec<String>,
    /// Origins that may call the server beside its own.
    pub origins: Vec<String>,
}

/// Rejects requests with a foreign `Host` or `Origin`, and answers CORS preflight requests.
pub(crate) async fn enforce(State(app): State<App>, request: Request, next: Next) -> Response {
    // Health checks use arbitrary host names and reveal nothing.
    if matches!(request.uri().path(), "/healthz" | "/readyz")
        && !request.headers().contains_key(header::ORIGIN)
    {
        return next.run(request).await;
    }
    if let Err(problem) = app.access_policy.check(request.method(), request.headers()) {
        return problem.into_response();
    }
    let Some(origin) = app.access_policy.allowed_cross_origin(request.headers()) else {
        return next.run(request).await;
    };
    let requested =
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
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(&requested));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_HEADERS));
    response
}

/// The headers of the API and of MCP, and those argument headers that the preflight request names: their names depend on
/// the tools, so they cannot be listed in advance.
fn allowed_headers(requested: &str) -> HeaderValue {
    let arguments = requested.split(',').map(|name| name.trim().to_ascii_lowercase());
    let arguments = arguments.filter(|name| name.starts_with(ARGUMENT_HEADER)).take(ARGUMENT_HEADERS);
    let all: Vec<String> = std::iter::once(ALLOWED_HEADERS.to_owned()).chain(arguments).collect();
    HeaderValue::from_str(&all.join(", ")).unwrap_or(HeaderValue::from_static(ALLOWED_HEADERS))
}

impl AccessPolicy {
    fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
        let host = text(headers, header::HOST).and_then(|host| host.parse::<Authority>().ok());
        let Some(host) = host.filter(|host| self.is_own_host(host)) else {
            let detail = "the request has an unknown `Host` header";
            let problem = Problem::new(StatusCode::MISDIRECTED_REQUEST, "bad_host", detail);
            return Err(problem.hint("add the host name to `http.hosts` in steprail.toml"));
        };
        match text(headers, header::ORIGIN) {
            Some(origin) if self.is_allowed_origin(origin, &host) => Ok(()),
            Some(_) => Err(bad_origin()),
            None => match headers.get("sec-fetch-site").and_then(|site| site.to_str().ok()) {
                None | Some("same-origin" | "none") => Ok(()),
                // The page that contains a link cannot read the response to a navigation.
                Some(_) if method == Method::GET && is_navigation(headers) => Ok(()),
                Some(_) => Err(bad_origin()),
            },
        }
    }

    /// The `Origin` of a request from another origin that is on the list: only such a response needs CORS headers.
    fn allowed_cross_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = text(headers, header::ORIGIN)?;
        let is_listed = self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin));
        is_listed.then(|| headers.get(header::ORIGIN).cloned())?
    }

    fn is_own_host(&self, host: &Authority) -> bool {
        let matches = |listed: &String| {
            [host.host(), host.as_str()].iter().any(|name| listed.eq_ignore_ascii_case(name))
        };
        sign_in::is_loopback(host) || self.hosts.iter().any(matches)
    }

    fn is_allowed_origin(&self, origin: &str, host: &Authority) -> bool {
        let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        own.is_some_and(|own| own.eq_ignore_ascii_case(host.as_str()))
            || self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }
}

fn bad_origin() -> Problem {
    let detail = "cross-origin requests are not allowed from this origin";
    let problem = Problem::new(StatusCode::FORBIDDEN, "bad_origin", detail);
    problem.hint("add the origin to `http.origins` in steprail.toml")
}

fn is_navigation(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
