//! The listener on loopback that a browser is redirected to at the end of a login.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use reqwest::Url;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Redirects that may wait to be read.
const WAITING: usize = 4;

/// How long the browser has to read its page.
const LINGER: Duration = Duration::from_secs(1);

/// What the browser shows afterwards.
const PAGE: &str = "<!doctype html><meta charset=\"utf-8\"><title>Steprail</title>\
                    <p>Steprail has the answer. You can close this page and return to the terminal.";

/// A listener that is bound.
pub(super) struct Callback {
    listener: TcpListener,
    port: u16,
}

/// What the route needs: the login that it waits for, and where redirects go.
#[derive(Clone)]
struct Expected {
    state: String,
    port: u16,
    found: mpsc::Sender<String>,
}

impl Callback {
    /// Listens at a port; at any that is free if it is 0.
    pub(super) async fn listen(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    pub(super) fn redirect_uri(&self) -> String {
        format!("http://127.0.0.1:{}/callback", self.port)
    }

    /// Waits for the redirect of a login. Other requests, such as those of other local users, change nothing.
    pub(super) async fn wait(self, state: String) -> io::Result<String> {
        let (found, mut redirects) = mpsc::channel(WAITING);
        let expected = Expected { state, port: self.port, found };
        let router = Router::new().route("/callback", get(redirected)).with_state(expected);
        let stop = tokio_util::sync::CancellationToken::new();
        let serving =
            axum::serve(self.listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        let serving = tokio::spawn(async move { serving.await });
        let redirect = redirects.recv().await;
        // The browser gets its page before the listener closes.
        stop.cancel();
        let _ = tokio::time::timeout(LINGER, serving).await;
        redirect.ok_or_else(|| io::Error::other("the listener ended"))
    }
}

async fn redirected(State(expected): State<Expected>, RawQuery(query): RawQuery) -> Response {
    let redirect = format!("http://127.0.0.1:{}/callback?{}", expected.port, query.unwrap_or_default());
    let is_ours = Url::parse(&redirect).is_ok_and(|url| {
        url.query_pairs().any(|(key, value)| key == "state" && value == expected.state.as_str())
    });
    if !is_ours || expected.found.try_send(redirect).is_err() {
        return StatusCode::NOT_FOUND.into_response();
    }
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONNECTION, "close"),
    ];
    (headers, PAGE).into_response()
}
