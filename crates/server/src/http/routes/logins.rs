//! OAuth logins at remote servers: begun, finished with the browser's redirect, removed.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::{Right, User};
use steprail_mcp::{Health, LoginError, Logins, ServerStatus};

use crate::http::App;
use crate::http::api::{Api, delete, post};
use crate::http::extract::{Body, InPerson, Named};
use crate::http::problem::Problem;

const TAG: &str = "servers";

pub(super) fn routes(api: Api) -> Api {
    api.route(
        TAG,
        post("/api/v1/servers/{name}/login", "Begin a login at a server")
            .more("Where all users share the login, it needs `administer`.")
            .body::<Wanted>()
            .gives::<Begun>(201, "The page to open."),
        begin,
    )
    .route(
        TAG,
        post("/api/v1/servers/{name}/login/finish", "Finish a login at a server")
            .body::<Redirected>()
            .gives::<Finished>(200, "The login."),
        finish,
    )
    .route(
        TAG,
        delete("/api/v1/servers/{name}/login", "Log out at a server")
            .more("The authorization server is not told; its tokens are deleted here.")
            .gives_nothing(204, "The login is deleted."),
        log_out,
    )
}

/// A login to begin.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// Where the browser is sent afterwards: http on a loopback address.
    #[schemars(length(max = 256))]
    redirect_uri: String,
}

/// A login that has begun.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Begun {
    /// The page of the authorization server, to be opened in a browser within ten minutes.
    pub url: String,
    /// Whether all users share the login.
    pub shared: bool,
}

/// The end of a login.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Redirected {
    /// The URL that the browser was sent to.
    #[schemars(length(max = 16384))]
    redirect_url: String,
}

/// A login that ended well.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Finished {
    /// The scopes that were granted.
    pub scopes: Vec<String>,
    /// Seconds until the access token expires, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<u64>,
    /// Whether tokens are renewed without another login.
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

/// The logins at a server, and whose login there somebody may change: their own, or the shared one.
fn whose<'a>(app: &'a App, asker: &User, server: &str) -> Result<(&'a Logins, Option<String>), Problem> {
    let unknown = || {
        Problem::not_found(format!("there is no remote server `{server}`"))
            .hint("`steprail servers` lists the servers; programs on this machine need no login")
    };
    let logins = app.logins.as_ref().ok_or_else(unknown)?;
    if logins.is_per_user(server).ok_or_else(unknown)? {
        asker.require(Right::Workflow)?;
        return Ok((logins, Some(asker.principal().id.clone())));
    }
    asker.require(Right::Administer)?;
    Ok((logins, None))
}

async fn begin(
    State(app): State<App>,
    InPerson(asker): InPerson,
    Named(server): Named,
    Body(wanted): Body<Wanted>,
) -> Result<Response, Problem> {
    let (logins, user) = whose(&app, &asker, &server)?;
    let url = logins.begin(&server, user.as_deref(), &wanted.redirect_uri).await?;
    Ok((StatusCode::CREATED, Json(Begun { url, shared: user.is_none() })).into_response())
}

async fn finish(
    State(app): State<App>,
    InPerson(asker): InPerson,
    Named(server): Named,
    Body(redirected): Body<Redirected>,
) -> Result<Json<Finished>, Problem> {
    let (logins, user) = whose(&app, &asker, &server)?;
    let done = logins.finish(&server, user.as_deref(), &redirected.redirect_url).await?;
    tracing::info!(by = asker.principal().id, server, shared = user.is_none(), "logged in");
    if user.is_none() {
        try_again(&app, &server).await;
    }
    Ok(Json(Finished { scopes: done.scopes, expires_in: done.expires_in, renews: done.renews }))
}

/// A server that was down for want of a login is tried again at once.
async fn try_again(app: &App, server: &str) {
    let Some(gateway) = &app.gateway else { return };
    let is_down = |status: &ServerStatus| status.name == server && status.health == Health::Down;
    if gateway.status().iter().any(is_down) {
        gateway.restart(server).await;
    }
}

async fn log_out(
    State(app): State<App>,
    InPerson(asker): InPerson,
    Named(server): Named,
) -> Result<StatusCode, Problem> {
    let (logins, user) = whose(&app, &asker, &server)?;
    if !logins.log_out(&server, user.as_deref()).await? {
        return Err(Problem::not_found(format!("nobody is logged in at `{server}`")));
    }
    tracing::info!(by = asker.principal().id, server, shared = user.is_none(), "logged out");
    Ok(StatusCode::NO_CONTENT)
}
