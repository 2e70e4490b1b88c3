//! The loopback listener for the OAuth redirect at the end of a login.

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
use tokio_util::sync::CancellationToken;

/// The maximum number of redirects in the queue.
const QUEUE: usize = 4;

/// How long the listener stays open for the browser to load its page.
const LINGER: Duration = Duration::from_secs(1);

/// The page that the browser shows after the redirect.
const PAGE: &str = "<!doctype html><meta charset=\"utf-8\"><title>Steprail</title>\
                    <p>Login received. You can close this page and return to the terminal.";

/// A bound listener.
pub(crate) struct OauthCallback {
    listener: TcpListener,
    port: u16,
}

#[derive(Clone)]
struct RouteState {
    /// The OAuth `state` of the login.
    expected: String,
    port: u16,
    redirects: mpsc::Sender<String>,
}

impl OauthCallback {
    /// Binds a port of the loopback interface; 0 selects a free one.
    pub(crate) async fn listen(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    pub(crate) fn redirect_uri(&self) -> String {
        format!("http://127.0.0.1:{}/callback", self.port)
    }

    /// Waits for the redirect with this OAuth `state`. Requests without it, such as those of other local users, are ignored.
    pub(crate) async fn wait(self, expected: String) -> io::Result<String> {
        let (sender, mut redirects) = mpsc::channel(QUEUE);
        let state = RouteState { expected, port: self.port, redirects: sender };
        let router = Router::new().route("/callback", get(receive)).with_state(state);
        let stop = CancellationToken::new();
        let server =
            axum::serve(self.listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        let server = tokio::spawn(async move { server.await });
        let redirect = redirects.recv().await;
        stop.cancel();
        let _ = tokio::time::timeout(LINGER, server).await;
        redirect.ok_or_else(|| io::Error::other("the listener stopped"))
    }
}

async fn receive(State(state): State<RouteState>, RawQuery(query): RawQuery) -> Response {
    let redirect = format!("http://127.0.0.1:{}/callback?{}", state.port, query.unwrap_or_default());
    let is_expected = Url::parse(&redirect).is_ok_and(|url| {
        url.query_pairs().any(|(key, value)| key == "state" && value == state.expected.as_str())
    });
    if !is_expected || state.redirects.try_send(redirect).is_err() {
        return StatusCode::NOT_FOUND.into_response();
    }
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONNECTION, "close"),
    ];
    (headers, PAGE).into_response()
}
