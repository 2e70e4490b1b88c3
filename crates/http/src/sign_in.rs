//! Browser sign-in: single-use links and session cookies.

use axum::extract::{ConnectInfo, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use steprail_engine::Principal;

use crate::App;
use crate::authentication::rejected;
use crate::extract::QueryParams;
use crate::peer::Peer;
use crate::problem::Problem;

/// Name of the session cookie. It contains the port, because browsers share cookies between the ports of a host.
fn cookie_name(headers: &HeaderMap) -> String {
    let port = host(headers).and_then(|host| host.port_u16());
    format!("steprail_session{}", port.map(|port| format!("_{port}")).unwrap_or_default())
}

fn host(headers: &HeaderMap) -> Option<Authority> {
    headers.get(header::HOST)?.to_str().ok()?.parse().ok()
}

/// Creates a sign-in link for the owner. Fails if the server does not listen on a port.
pub(crate) fn create_link(app: &App) -> Result<String, Problem> {
    let none = || Problem::new(StatusCode::CONFLICT, "no_address", "this server does not listen on a port");
    let url = app.url.get().ok_or_else(none)?;
    Ok(format!("{url}/sign-in?key={}", app.accounts.create_link()?))
}

#[derive(Deserialize)]
pub(super) struct LinkQuery {
    key: String,
}

/// Exchanges the key of a link for a session cookie.
pub(super) async fn sign_in(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    QueryParams(LinkQuery { key }): QueryParams<LinkQuery>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // Link previews send HEAD; they must not use the key up.
    if method != Method::GET {
        return Err(Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "a sign-in link must be opened with GET",
        ));
    }
    let owner = app
        .accounts
        .by_link(&key)
        .map_err(|error| rejected(&app, peer.ip, error).hint("`steprail open` prints a new link"))?;
    let cookie = start_session(&app, &owner, &headers).await?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response())
}

/// Starts a session. Returns the `Set-Cookie` header: not readable by scripts, not sent by other sites.
pub(super) async fn start_session(
    app: &App,
    user: &Principal,
    headers: &HeaderMap,
) -> Result<String, Problem> {
    let (text, seconds) = app.accounts.start_session(user).await?;
    let secure = if is_local(headers) { "" } else { "; Secure" };
    let name = cookie_name(headers);
    Ok(format!("{name}={text}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"))
}

/// The `Set-Cookie` header that deletes the session cookie.
pub(super) fn clear_cookie(headers: &HeaderMap) -> String {
    format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", cookie_name(headers))
}

/// The session cookie of a request.
pub(super) fn cookie_of(headers: &HeaderMap) -> Option<&str> {
    let name = cookie_name(headers);
    let all = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    all.flat_map(|cookies| cookies.split(';'))
        .find_map(|cookie| cookie.trim().strip_prefix(&*name)?.strip_prefix('='))
}

/// Loopback needs no TLS, and browsers would not send a `Secure` cookie without it.
fn is_local(headers: &HeaderMap) -> bool {
    host(headers).is_none_or(|host| is_loopback(&host))
}

/// Whether a host name always means this machine.
pub(super) fn is_loopback(host: &Authority) -> bool {
    matches!(host.host(), "localhost" | "127.0.0.1" | "[::1]")
}
