//! How a browser of the owner's signs in: with a link that works once.

use axum::extract::{ConnectInfo, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use steprail_engine::Principal;

use super::App;
use super::door::refuse;
use super::extract::Args;
use super::listen::Place;
use super::problem::Problem;

/// The cookie of a browser that has signed in: one for each port, as browsers do not tell the ports of a host apart.
fn name(headers: &HeaderMap) -> String {
    let port = host(headers).and_then(|host| host.port_u16());
    format!("steprail_session{}", port.map(|port| format!("_{port}")).unwrap_or_default())
}

fn host(headers: &HeaderMap) -> Option<Authority> {
    headers.get(header::HOST)?.to_str().ok()?.parse().ok()
}

/// A link for the owner. There is none without an address.
pub(crate) fn link(app: &App) -> Result<String, Problem> {
    let none =
        || Problem::new(StatusCode::CONFLICT, "no_address", "this server does not listen on an address");
    let url = app.url.get().ok_or_else(none)?;
    Ok(format!("{url}/sign-in?key={}", app.accounts.link()?))
}

#[derive(Deserialize)]
pub(super) struct Key {
    key: String,
}

/// Takes a link's key, and gives a cookie for it.
pub(super) async fn sign_in(
    State(app): State<App>,
    ConnectInfo(place): ConnectInfo<Place>,
    Args(Key { key }): Args<Key>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // Programs that look into links before people do must not use them up.
    if method != Method::GET {
        return Err(Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "a link is opened, not looked into",
        ));
    }
    let owner = app
        .accounts
        .by_link(&key)
        .map_err(|refused| refuse(&app, place.ip, refused).hint("`steprail open` prints a new link"))?;
    let cookie = cookie(&app, &owner, &headers).await?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response())
}

/// A cookie that no script reads and no other site sends, as a header has it.
pub(super) async fn cookie(app: &App, user: &Principal, headers: &HeaderMap) -> Result<String, Problem> {
    let (text, seconds) = app.accounts.sign_in(user).await?;
    let secure = if is_local(headers) { "" } else { "; Secure" };
    let name = name(headers);
    Ok(format!("{name}={text}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"))
}

/// The cookie that takes the place of one that counts no longer.
pub(super) fn no_cookie(headers: &HeaderMap) -> String {
    format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", name(headers))
}

/// The cookie that a request has.
pub(super) fn sent(headers: &HeaderMap) -> Option<&str> {
    let name = name(headers);
    let all = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    all.flat_map(|cookies| cookies.split(';'))
        .find_map(|cookie| cookie.trim().strip_prefix(&*name)?.strip_prefix('='))
}

/// A browser on the same machine needs no TLS, and would not send a secure cookie without it.
fn is_local(headers: &HeaderMap) -> bool {
    host(headers).is_none_or(|host| is_here(&host))
}

/// Whether a name always means this machine.
pub(super) fn is_here(host: &Authority) -> bool {
    matches!(host.host(), "localhost" | "127.0.0.1" | "[::1]")
}
