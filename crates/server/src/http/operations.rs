//! What operators and programs ask about the server itself.

use std::sync::OnceLock;
use std::time::Instant;

use axum::Json;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use serde_json::Value;
use steprail_engine::Right;

use super::App;
use super::extract::Asker;
use super::problem::Problem;
use crate::accounts::oidc;
use crate::observe::Metrics;

/// Whether the process is there.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether it can be asked for something: the store takes what is written.
pub(super) async fn readyz(State(app): State<App>) -> Response {
    match app.engine.fault() {
        None => (StatusCode::OK, "ready\n").into_response(),
        Some(fault) => {
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, fault.code(), fault.to_string());
            problem.hint("`steprail doctor` looks into it").into_response()
        }
    }
}

/// Figures for Prometheus, for those who may see everything.
pub(super) async fn metrics(State(app): State<App>, Asker(user): Asker) -> Result<Response, Problem> {
    user.require(Right::View)?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((kind, app.metrics.as_ref().map(Metrics::render).unwrap_or_default()).into_response())
}

/// Counts requests, by route and status, and measures them.
pub(super) async fn count(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let method = request.method().to_string();
    let response = next.run(request).await;
    crate::observe::http_request(route.as_deref(), &method, response.status().as_u16(), began.elapsed());
    response
}

fn document() -> &'static (Value, String) {
    static DOCUMENT: OnceLock<(Value, String)> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let document = super::openapi();
        let page = super::page::render(&document);
        (document, page)
    })
}

/// The description of the routes.
pub(super) async fn openapi() -> Json<&'static Value> {
    Json(&document().0)
}

/// The same for people.
pub(super) async fn page() -> Html<&'static str> {
    Html(&document().1)
}

/// Who gives the tokens that are taken here, if an identity provider does.
pub(super) async fn protected_resource(State(app): State<App>) -> Result<Json<Value>, Problem> {
    let none = || Problem::not_found("no identity provider is configured");
    let oidc = app.oidc.as_ref().ok_or_else(none)?;
    let url = app.url.get().map(String::as_str).unwrap_or_default();
    Ok(Json(oidc::protected_resource(&format!("{url}/mcp"), oidc.settings())))
}
