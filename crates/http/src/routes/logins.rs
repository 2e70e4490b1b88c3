//! OAuth logins at remote servers: started, finished with the browser's redirect, removed.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::{Right, User};
use steprail_mcp::{Health, LoginError, Logins, ServerStatus};

use crate::App;
use crate::api::{Api, delete, post};
use crate::extract::{Body, InPerson, NameParam};
use crate::problem::Problem;

const TAG: &str = "servers";

pub(super) fn routes(api: Api) -> Api {
    let proof = "Proof of presence, where it is required: `pin …`, `totp …` or `passkey …`.";
    api.route(
        TAG,
        post("/api/v1/servers/{name}/login", "Start a login at a server")
            .details("Needs `administer` where all users share the login.")
            .header("X-Steprail-Presence", proof)
            .body::<StartLoginRequest>()
            .returns::<StartedLogin>(201, "The page to open in a browser."),
        start,
    )
    .route(
        TAG,
        post("/api/v1/servers/{name}/login/finish", "Finish a login at a server")
            .body::<FinishLoginRequest>()
            .returns::<CompletedLogin>(200, "The login."),
        finish,
    )
    .route(
        TAG,
        delete("/api/v1/servers/{name}/login", "Log out at a server")
            .details("Deletes the stored tokens. The authorization server is not notified.")
            .header("X-Steprail-Presence", proof)
            .returns_empty(204, "The login is deleted."),
        log_out,
    )
}

/// A login to start.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StartLoginRequest {
    /// Redirect URI: http on a loopback address.
    #[schemars(length(max = 256))]
    redirect_uri: String,
}

/// A started login.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct StartedLogin {
    /// Page of the authorization server; open it within ten minutes.
    pub url: String,
    /// Whether all users share the login.
    pub shared: bool,
}

/// The redirect that ends a login.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FinishLoginRequest {
    /// The URL to which the browser was redirected.
    #[schemars(length(max = 16384))]
    redirect_url: String,
}

/// A completed login.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct CompletedLogin {
    /// Granted scopes.
    pub scopes: Vec<String>,
    /// Seconds until the access token expires, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<u64>,
    /// Whether the token is refreshed without another login.
    pub renews: bool,
}

impl From<LoginError> for Problem {
    fn from(error: LoginError) -> Self {
        let (status, code) = match &error {
            LoginError::Needed(_) => (StatusCode::CONFLICT, "login_needed"),
            LoginError::Refused(_) => (StatusCode::BAD_REQUEST, "login_refused"),
            LoginError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self::new(status, code, error.to_string())
    }
}

/// The logins, and the user whose login at a server the caller changes; `None` for the shared login.
fn login_owner<'a>(
    app: &'a App,
    caller: &User,
    server: &str,
) -> Result<(&'a Logins, Option<String>), Problem> {
    let unknown = || {
        Problem::not_found(format!("there is no remote server `{server}`"))
            .hint("`steprail servers` lists the servers; programs on this machine need no login")
    };
    let logins = app.logins.as_ref().ok_or_else(unknown)?;
    if logins.is_per_user(server).ok_or_else(unknown)? {
        caller.require(Right::Workflow)?;
        return Ok((logins, Some(caller.principal().id.clone())));
    }
    caller.require(Right::Administer)?;
    Ok((logins, None))
}

async fn start(
    State(app): State<App>,
    InPerson(caller): InPerson,
    NameParam(server): NameParam,
    Body(request): Body<StartLoginRequest>,
) -> Result<Response, Problem> {
    let (logins, user) = login_owner(&app, &caller, &server)?;
    // The redirect that finishes the login proves that the caller started it.
    caller.require_presence()?;
    let url = logins.begin(&server, user.as_deref(), &request.redirect_uri).await?;
    Ok((StatusCode::CREATED, Json(StartedLogin { url, shared: user.is_none() })).into_response())
}

async fn finish(
    State(app): State<App>,
    InPerson(caller): InPerson,
    NameParam(server): NameParam,
    Body(request): Body<FinishLoginRequest>,
) -> Result<Json<CompletedLogin>, Problem> {
    let (logins, user) = login_owner(&app, &caller, &server)?;
    let login = logins.finish(&server, user.as_deref(), &request.redirect_url).await?;
    tracing::info!(by = caller.principal().id, server, shared = user.is_none(), "logged in");
    if user.is_none() {
        reconnect(&app, &server).await;
    }
    Ok(Json(CompletedLogin { scopes: login.scopes, expires_in: login.expires_in, renews: login.renews }))
}

/// Reconnects a server at once that was down because it needed the login.
async fn reconnect(app: &App, server: &str) {
    let Some(gateway) = &app.gateway else { return };
    let is_down = |status: &ServerStatus| status.name == server && status.health == Health::Down;
    if gateway.status().iter().any(is_down) {
        gateway.restart(server).await;
    }
}

async fn log_out(
    State(app): State<App>,
    InPerson(caller): InPerson,
    NameParam(server): NameParam,
) -> Result<StatusCode, Problem> {
    let (logins, user) = login_owner(&app, &caller, &server)?;
    caller.require_presence()?;
    if !logins.log_out(&server, user.as_deref()).await? {
        return Err(Problem::not_found(format!("there is no login at `{server}`")));
    }
    tracing::info!(by = caller.principal().id, server, shared = user.is_none(), "logged out");
    Ok(StatusCode::NO_CONTENT)
}
