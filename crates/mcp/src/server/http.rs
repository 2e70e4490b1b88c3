//! The server over streamable HTTP: who asks, whose session it is, and which pages may not ask.

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

/// Says who sends a request, by its headers or by what was found out before. Nobody is refused with 401.
pub trait Identify: Send + Sync + 'static {
    /// The user.
    fn identify(&self, request: &Request) -> Option<Principal>;
}

impl<F: Fn(&Request) -> Option<Principal> + Send + Sync + 'static> Identify for F {
    fn identify(&self, request: &Request) -> Option<Principal> {
        self(request)
    }
}

struct Door {
    engine: Engine,
    identify: Box<dyn Identify>,
}

/// Which names and origins a request may come under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// Those that mean this machine.
    ThisMachine,
    /// Any: whatever stands before the router has looked already.
    Checked,
}

/// The route `/mcp`.
pub fn router(server: &Server, identify: impl Identify, hosts: Hosts, shutdown: CancellationToken) -> Router {
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
    tokio::spawn(async move { shutdown.run_until_cancelled(published::keep_known(&shared)).await });
    let handler = server.clone();
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(handler.for_client()), sessions, config);
    let door = Arc::new(Door { engine, identify: Box::new(identify) });
    Router::new().nest_service("/mcp", service).layer(from_fn_with_state(door, enter))
}

/// Lets a request in for a user, and to no session but their own.
async fn enter(State(door): State<Arc<Door>>, mut request: Request, next: Next) -> Response {
    let Some(user) = door.identify.identify(&request) else {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer realm=\"steprail\"")];
        return (StatusCode::UNAUTHORIZED, challenge, "a valid token is needed").into_response();
    };
    if let Some(session) = request.headers().get(SESSION).and_then(|id| id.to_str().ok()) {
        match Sessions(door.engine.registry()).owner(session).await {
            Ok(Some(owner)) if owner == user.id => {}
            Ok(_) => return (StatusCode::NOT_FOUND, "there is no such session").into_response(),
            Err(error) => {
                return (StatusCode::SERVICE_UNAVAILABLE, format!("sessions cannot be read: {error}"))
                    .into_response();
            }
        }
    }
    let requester = user.id.clone();
    request.extensions_mut().insert(user);
    REQUESTER.scope(requester, next.run(request)).await
}
