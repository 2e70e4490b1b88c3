//! The HTTP surface of an engine: REST, server-sent events, WebSocket, MCP, browser sessions and accounts.

// No panic is reachable from input.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access_policy;
pub mod accounts;
mod api;
mod api_page;
mod approval_links;
mod audit;
mod authentication;
mod body_deadline;
mod connections;
mod extract;
mod limits;
mod listen;
mod metrics;
mod operations;
mod page;
mod peer;
mod problem;
mod routes;
mod security_headers;
mod sign_in;
mod state;
mod stream;
#[cfg(test)]
mod tests;
pub mod timestamp;
pub mod views;

use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get};
use axum::{Router, http::StatusCode};
use serde_json::Value;
use steprail_engine::Principal;
use steprail_mcp::{Hosts, Server};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

pub use access_policy::AccessPolicy;
pub use approval_links::LinkSigner;
pub use connections::ConnectionLimits;
pub use metrics::describe as describe_metrics;
use peer::Peer;
pub use peer::process::ConnectedAgent;
pub use problem::Problem;
pub use state::{App, Options};

impl App {
    /// The owner of the data directory, in person.
    pub fn owner(&self) -> &Principal {
        self.accounts.owner()
    }

    /// Creates a link that signs one browser in as the owner.
    pub fn sign_in_link(&self) -> Result<String, Problem> {
        sign_in::create_link(self, None)
    }

    /// Serves a port for all clients. Returns the base URL.
    pub fn serve_port(
        &self,
        server: &Server,
        listener: TcpListener,
        stop: &CancellationToken,
    ) -> std::io::Result<String> {
        let url = format!("http://{}", listener.local_addr()?);
        let url = self.url.get_or_init(|| url).clone();
        let router = public_router(self, server, stop);
        tokio::spawn(listen::serve(listener, router, self.connections, stop.clone()));
        Ok(url)
    }

    /// Notes an MCP client that connected to another socket, by its process. As long as the value lives, programs that the client
    /// started cannot act as people.
    pub fn connected_agent(&self, pid: Option<i32>) -> ConnectedAgent {
        self.agent_processes.connect(pid.filter(|pid| *pid > 0))
    }

    /// Serves a socket that only the owner can open. Its requests act as the owner in person.
    pub fn serve_owner(&self, listener: UnixListener, stop: &CancellationToken) {
        let router = owner_router(self).into_make_service_with_connect_info::<Peer>();
        let stop = stop.clone();
        tokio::spawn(async move {
            axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
        });
    }
}

/// The `OpenAPI` description of the REST API.
pub fn openapi() -> Value {
    routes::all().finish().1
}

fn authenticated_routes(app: &App) -> Router<App> {
    let (router, _) = routes::all().finish();
    router
        .route("/api/v1/socket", get(stream::socket))
        .route("/metrics", get(operations::metrics))
        .layer(DefaultBodyLimit::max(app.max_body_bytes))
}

/// Routes that need no authentication.
fn open_routes() -> Router<App> {
    Router::new()
        .route("/healthz", get(operations::healthz))
        .route("/readyz", get(operations::readyz))
        .route("/api/openapi.json", get(operations::openapi))
        .route("/api", get(operations::api_page))
        .route("/api/style.css", get(operations::api_style))
        .route("/", get(async || Redirect::to("/api")))
        .route("/sign-in", get(sign_in::page).post(sign_in::sign_in))
        .route("/sign-in.js", get(sign_in::script))
        .route("/.well-known/oauth-protected-resource", get(operations::protected_resource))
        .route("/.well-known/{*rest}", any(not_found))
}

/// The router of the owner's socket: every peer that is not a program of an agent is the owner in person.
fn owner_router(app: &App) -> Router {
    authenticated_routes(app)
        .merge(open_routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), authentication::as_owner))
        .layer(from_fn(body_deadline::enforce))
        .layer(from_fn(security_headers::add))
        .with_state(app.clone())
}

/// The router of a port: hosts, origins and credentials are checked.
fn public_router(app: &App, server: &Server, stop: &CancellationToken) -> Router {
    let as_agent =
        |request: &Request| request.extensions().get::<Principal>().cloned().map(Principal::through_agent);
    let mcp = steprail_mcp::router(server, as_agent, Hosts::Checked, stop.child_token());
    let authenticated = authenticated_routes(app).with_state(app.clone()).merge(mcp).fallback(not_found);
    authenticated
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), authentication::authenticate))
        .merge(open_routes().method_not_allowed_fallback(method_not_allowed).with_state(app.clone()))
        .merge(
            approval_links::routes().method_not_allowed_fallback(method_not_allowed).with_state(app.clone()),
        )
        .layer(from_fn_with_state(app.clone(), access_policy::enforce))
        .layer(from_fn(body_deadline::enforce))
        .layer(from_fn(metrics::record_request))
        .layer(from_fn(security_headers::add))
}

async fn not_found(request: Request) -> Response {
    let detail = format!("there is no route {}", request.uri().path());
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail).hint("/api lists the routes").into_response()
}

async fn method_not_allowed(request: Request) -> Response {
    let detail = format!("method {} is not allowed for {}", request.method(), request.uri().path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
        .hint("/api lists the methods of each route")
        .into_response()
}
