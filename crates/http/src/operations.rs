//! Health checks, metrics, and the description of the API.

use std::sync::OnceLock;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use serde_json::Value;
use steprail_engine::{Error, Right};

use crate::App;
use crate::accounts::oidc;
use crate::extract::Caller;
use crate::problem::Problem;

/// Liveness: the process answers.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Time that the engine thread has to respond to a health check.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Readiness: the engine thread responds and the store accepts writes.
pub(crate) async fn readyz(State(app): State<App>) -> Response {
    let fault = match app.engine.probe(PROBE_TIMEOUT).await {
        Ok(()) => app.engine.fault().map(Error::Storage),
        Err(error) => Some(error),
    };
    if let Some(fault) = fault {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, fault.code(), fault.to_string());
        return problem.hint("run `steprail doctor`").into_response();
    }
    let mut text = "ready\n".to_owned();
    match app.engine.damaged_runs() {
        0 => {}
        runs => text.push_str(&format!("damaged or quarantined runs: {runs}\n")),
    }
    let policy = app.engine.policy();
    // Without the problem itself: the caller is not authenticated.
    if policy.problem().is_some() {
        text.push_str("the policy file cannot be loaded; the last policy stays in force\n");
    }
    if policy.freeze().is_some() {
        text.push_str("all calls are frozen\n");
    }
    text.into_response()
}

/// Metrics in the text format of Prometheus.
pub(crate) async fn metrics(State(app): State<App>, Caller(user): Caller) -> Result<Response, Problem> {
    user.require(Right::View)?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((kind, app.metrics.as_ref().map(|render| render()).unwrap_or_default()).into_response())
}

fn document() -> &'static (Value, String) {
    static DOCUMENT: OnceLock<(Value, String)> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let document = crate::openapi();
        let page = crate::api_page::render(&document);
        (document, page)
    })
}

pub(crate) async fn openapi() -> Json<&'static Value> {
    Json(&document().0)
}

/// The description of the API as a web page.
pub(crate) async fn api_page() -> Html<&'static str> {
    Html(&document().1)
}

/// The style sheet of that page.
pub(crate) async fn api_style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], crate::api_page::STYLE)
}

/// OAuth protected resource metadata (RFC 9728): leads MCP clients to the identity provider.
pub(crate) async fn protected_resource(State(app): State<App>) -> Result<Json<Value>, Problem> {
    let none = || Problem::not_found("no identity provider is configured");
    let oidc = app.oidc.as_ref().ok_or_else(none)?;
    let url = app.url.get().map(String::as_str).unwrap_or_default();
    Ok(Json(oidc::protected_resource(&format!("{url}/mcp"), oidc.settings())))
}
