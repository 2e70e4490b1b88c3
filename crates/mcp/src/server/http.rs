//! The server over streamable HTTP: authentication, ownership of sessions, allowed origins.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use steprail_engine::{Engine, Principal};
use tokio_util::sync::CancellationToken;

use super::sessions::{REQUESTER, SESSION, Sessions};
use super::{Server, published};

/// Identifies the sender of a request. Requests without a principal are rejected with status 401.
pub trait Identify: Send + Sync + 'static {
    /// Returns the principal of a request, by its headers or extensions.
    fn identify(&self, request: &Request) -> Option<Principal>;
}

impl<F: Fn(&Request) -> Option<Principal> + Send + Sync + 'static> Identify for F {
    fn identify(&self, request: &Request) -> Option<Principal> {
        self(request)
    }
}

struct Authentication {
    engine: Engine,
    identify: Box<dyn Identify>,
}

/// Which `Host` and `Origin` headers are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// Loopback names and addresses.
    ThisMachine,
    /// Any: an outer layer has checked them.
    Checked,
}

/// The route `/mcp`.
pub fn router(server: &Server, identify: impl Identify, hosts: Hosts, shutdown: CancellationToken) -> Router {
    routes(server, Box::new(identify), hosts, shutdown)
}

/// Not generic, so that the protocol's code is compiled in this crate and not again in each of its users.
fn routes(server: &Server, identify: Box<dyn Identify>, hosts: Hosts, shutdown: CancellationToken) -> Router {
    let engine = server.shared.engine.clone();
    let mut config = StreamableHttpServerConfig::default().with_cancellation_token(shutdown.clone());
    config = match hosts {
        Hosts::ThisMachine => config
            .with_allowed_origins(["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"])
            .enforce_origin_validation(),
        Hosts::Checked => config.disable_allowed_hosts().disable_allowed_origins(),
    };
    config.session_store = Some(Arc::new(Sessions(engine.registry())));
    let shared = server.shared.clone();
    tokio::spawn(async move { shutdown.run_until_cancelled(published::refresh_on_change(&shared)).await });
    let handler = server.clone();
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(handler.for_client()), sessions, config);
    let authentication = Arc::new(Authentication { engine, identify });
    Router::new().nest_service("/mcp", service).layer(from_fn_with_state(authentication, authenticate))
}

/// Rejects requests without a principal, and requests for sessions of other users.
async fn authenticate(
    State(authentication): State<Arc<Authentication>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(user) = authentication.identify.identify(&request) else {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer realm=\"steprail\"")];
        return (StatusCode::UNAUTHORIZED, challenge, "a valid token is required").into_response();
    };
    if let Some(session) = request.headers().get(SESSION).and_then(|id| id.to_str().ok()) {
        match Sessions(authentication.engine.registry()).owner(session).await {
            Ok(Some(owner)) if owner == owner_of(&user) => {}
            Ok(_) => return (StatusCode::NOT_FOUND, "unknown session").into_response(),
            Err(error) => {
                return (StatusCode::SERVICE_UNAVAILABLE, format!("cannot read the session: {error}"))
                    .into_response();
            }
        }
    }
    let requester = owner_of(&user);
    request.extensions_mut().insert(user);
    REQUESTER.scope(requester, next.run(request)).await
}

/// The owner of a session: the user and the token that opened it. Another token of the user, which may have another scope,
/// cannot use the session, and it ends when its token is revoked.
fn owner_of(user: &Principal) -> String {
    match &user.token {
        // A user id contains no `/`.
        Some(token) => format!("{}/{token}", user.id),
        None => user.id.clone(),
    }
}
