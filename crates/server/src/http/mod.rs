//! HTTP: REST, live streams and MCP behind one door.

mod api;
mod door;
mod extract;
mod listen;
mod operations;
mod page;
mod peer;
pub(crate) mod problem;
pub(crate) mod routes;
pub(crate) mod sign_in;
pub(crate) mod stream;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get};
use axum::{Router, http::StatusCode};
use serde_json::Value;
use steprail_engine::{Engine, Principal};
use steprail_mcp::{Gateway, Hosts, Logins, Server};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::accounts::Accounts;
use crate::accounts::oidc::Oidc;
use crate::observe::Metrics;
use crate::secrets::Vault;
use crate::tools::Tools;
use crate::view::Tool;
pub(crate) use door::Doors;
use problem::Problem;
use stream::Hub;

/// Everything that a handler may need. A clone is another handle to the same.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

/// What an [`App`] is made of.
pub(crate) struct Parts {
    pub engine: Engine,
    pub accounts: Accounts,
    pub gateway: Option<Gateway>,
    pub tools: Tools,
    /// OAuth logins at the servers.
    pub logins: Option<Logins>,
    pub vault: Vault,
    pub hub: Arc<Hub>,
    pub doors: Doors,
    pub oidc: Option<Oidc>,
    pub metrics: Option<Metrics>,
    /// Where it is reached, once it is.
    pub url: OnceLock<String>,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// One definition is stored at a time, so that what was expected still holds.
    pub defining: tokio::sync::Mutex<()>,
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Tools that steps can call.
    pub(crate) fn tools(&self) -> Vec<Tool> {
        self.tools.list()
    }
}

/// The document that describes the routes.
pub(crate) fn openapi() -> Value {
    routes::all().finish().1
}

/// Routes that need somebody who asks.
fn inner(app: &App) -> Router<App> {
    let (router, _) = routes::all().finish();
    router
        .route("/api/v1/socket", get(stream::socket))
        .route("/metrics", get(operations::metrics))
        .layer(DefaultBodyLimit::max(app.body_bytes))
}

/// Routes that anybody may ask.
fn outer() -> Router<App> {
    Router::new()
        .route("/healthz", get(operations::healthz))
        .route("/readyz", get(operations::readyz))
        .route("/api/openapi.json", get(operations::openapi))
        .route("/api", get(operations::page))
        .route("/", get(async || Redirect::to("/api")))
        .route("/sign-in", get(sign_in::sign_in))
        .route("/.well-known/oauth-protected-resource", get(operations::protected_resource))
        .route("/.well-known/{*rest}", any(nowhere))
}

/// What is asked of a port: names, origins and users are checked.
fn public(app: &App, server: &Server, stop: &CancellationToken) -> Router {
    let as_agent =
        |request: &Request| request.extensions().get::<Principal>().cloned().map(Principal::through_agent);
    let mcp = steprail_mcp::router(server, as_agent, Hosts::Checked, stop.child_token());
    let known = inner(app).with_state(app.clone()).merge(mcp).fallback(nowhere);
    known
        .method_not_allowed_fallback(otherwise)
        .layer(from_fn_with_state(app.clone(), door::enter))
        .merge(outer().method_not_allowed_fallback(otherwise).with_state(app.clone()))
        .layer(from_fn_with_state(app.clone(), door::check_place))
        .layer(from_fn(operations::count))
}

async fn nowhere(request: Request) -> Response {
    let detail = format!("there is nothing at {}", request.uri().path());
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
        .hint("/api describes what there is")
        .into_response()
}

async fn otherwise(request: Request) -> Response {
    let detail = format!("{} is not done here", request.method());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
        .hint("/api describes what is")
        .into_response()
}

/// Serves a port.
pub(crate) fn serve_port(app: &App, server: &Server, listener: TcpListener, stop: &CancellationToken) {
    tokio::spawn(listen::serve(listener, public(app, server, stop), stop.clone()));
}

/// Serves the socket of the owner, in person.
pub(crate) fn serve_owner(app: &App, listener: UnixListener, stop: &CancellationToken) {
    let known = inner(app).merge(outer()).fallback(nowhere).method_not_allowed_fallback(otherwise);
    let router = known.layer(from_fn_with_state(app.clone(), door::enter_as_owner)).with_state(app.clone());
    let stop = stop.clone();
    tokio::spawn(async move {
        axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
    });
}
