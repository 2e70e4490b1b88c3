//! Browser sign-in: single-use links, session cookies and page secrets.

use axum::Json;
use axum::extract::{ConnectInfo, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::Principal;

use crate::accounts::{AuthError, NewSession};
use crate::authentication::rejected;
use crate::extract::Body as JsonBody;
use crate::peer::Peer;
use crate::problem::Problem;
use crate::{App, audit, passkey_page};

/// Name of the session cookie. It contains the port, because browsers share cookies between the ports of a host.
fn cookie_name(headers: &HeaderMap) -> String {
    let port = host(headers).and_then(|host| host.port_u16());
    format!("steprail_session{}", port.map(|port| format!("_{port}")).unwrap_or_default())
}

fn host(headers: &HeaderMap) -> Option<Authority> {
    headers.get(header::HOST)?.to_str().ok()?.parse().ok()
}

/// The host of a request, in lower case. A session belongs to the host at which it was started.
pub(super) fn host_name(headers: &HeaderMap) -> Option<String> {
    host(headers).map(|host| host.as_str().to_ascii_lowercase())
}

/// Creates a sign-in link for the owner, for one user of the operating system. Fails if the server does not listen on a
/// port. The key is in the fragment of the link, which browsers do not send: it reaches no log, and a link preview that
/// opens the link does not use the key up.
///
/// A link to a page for passkeys has the host name that passkeys need, because a session belongs to one host name.
pub(crate) fn create_link(app: &App, os_user: Option<u32>, page: Option<&str>) -> Result<String, Problem> {
    let none = || Problem::new(StatusCode::CONFLICT, "no_address", "this server does not listen on a port");
    let (url, next) = match page {
        Some(page) if !passkey_page::is_page(page) => {
            return Err(Problem::bad("a sign-in link leads to `/passkeys` or to no page"));
        }
        Some(page) => {
            let next = form_urlencoded::byte_serialize(page.as_bytes()).collect::<String>();
            (app.accounts.passkey_origin()?, format!("&next={next}"))
        }
        None => (app.url.get().ok_or_else(none)?.clone(), String::new()),
    };
    Ok(format!("{url}/sign-in#key={}{next}", app.accounts.create_link(os_user)?))
}

/// The page that a sign-in link opens. Its script sends the key of the link.
pub(super) async fn page() -> Html<&'static str> {
    Html(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Steprail</title>\
         <noscript>Signing in needs JavaScript.</noscript><p id=state>Signing in…</p>\
         <script type=module src=/sign-in.js></script></html>",
    )
}

/// The script of the page. It keeps the page secret where only pages of this origin can read it.
pub(super) async fn script() -> impl IntoResponse {
    const SCRIPT: &str = r#"const link = new URLSearchParams(location.hash.slice(1));
const key = link.get("key") ?? "";
const next = link.get("next") ?? "/";
history.replaceState(null, "", "/sign-in");
const response = await fetch("/sign-in", {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ key }),
});
const reply = await response.json();
if (response.ok) {
  sessionStorage.setItem("steprail.page", reply.page_secret);
  location.replace(/^\/passkeys([?#]|$)/.test(next) ? next : "/");
} else {
  document.getElementById("state").textContent = `${reply.detail}. ${reply.hint ?? ""}`;
}
"#;
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], SCRIPT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkKey {
    key: String,
}

/// Exchanges the key of a link for a session.
pub(super) async fn sign_in(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    JsonBody(LinkKey { key }): JsonBody<LinkKey>,
) -> Result<Response, Problem> {
    let owner = app.accounts.by_link(&key, peer.os_user).map_err(|error| {
        if error == AuthError::OtherOsUser {
            tracing::warn!(
                target: audit::TARGET,
                action = "sign_in_link_rejected",
                ip = %peer.ip,
                os_user = peer.os_user,
                "a sign-in link was used by another user of the operating system"
            );
        }
        rejected(&app, peer.ip, error).hint("`steprail open` prints a new link")
    })?;
    start_session(&app, &owner, &peer, &headers).await
}

/// A browser that signed in.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SignedIn {
    /// Id of the user.
    pub id: String,
    /// The secret of the page. It is returned once. The page keeps it in `sessionStorage`, sends it in the header
    /// `X-Steprail-Page` of every request, and gives it to no other origin: the cookie alone authenticates nothing.
    pub page_secret: String,
}

/// Starts a session: the cookie is not readable by scripts and not sent by other sites, and the page secret is in the body.
pub(super) async fn start_session(
    app: &App,
    user: &Principal,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let host = host_name(headers);
    let NewSession { cookie, page_secret, max_age } =
        app.accounts.start_session(user, peer.os_user, host).await?;
    let secure = if is_local(headers) { "" } else { "; Secure" };
    let name = cookie_name(headers);
    let cookie = format!("{name}={cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age}{secure}");
    let signed_in = SignedIn { id: user.id.clone(), page_secret };
    Ok((StatusCode::CREATED, [(header::SET_COOKIE, cookie)], Json(signed_in)).into_response())
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
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| host.host().eq_ignore_ascii_case(name))
}
