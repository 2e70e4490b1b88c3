//! The caller, and browser sessions.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::Right;

use crate::App;
use crate::api::{Api, delete, get, post};
use crate::authentication::Credential;
use crate::extract::Caller;
use crate::problem::Problem;
use crate::sign_in;

const TAG: &str = "session";

pub(super) fn routes(api: Api) -> Api {
    api.route(TAG, get("/api/v1/me", "Get the caller").returns::<Me>(200, "The caller."), me)
        .route(
            TAG,
            post("/api/v1/session", "Sign this browser in")
                .details("Exchanges a token that is not an agent's for a session cookie.")
                .returns::<Me>(201, "The caller."),
            begin,
        )
        .route(
            TAG,
            delete("/api/v1/session", "Sign this browser out").returns_empty(204, "The session has ended."),
            end,
        )
        .route(
            TAG,
            post("/api/v1/links", "Create a sign-in link")
                .details("For the owner in person. The link works once, within ten minutes.")
                .returns::<SignInLink>(201, "The link."),
            link,
        )
}

/// The caller.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Me {
    /// Id of the user.
    pub id: String,
    /// Display name of the user.
    pub name: String,
    /// Whether an agent acts for the user.
    pub agent: bool,
    /// Rights of the caller.
    pub may: BTreeSet<Right>,
    /// CSRF token of a browser session, to be sent in the header `X-Steprail-Csrf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf: Option<String>,
}

/// A link to open in a browser.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct SignInLink {
    /// The link; it works once.
    pub url: String,
}

async fn me(Caller(user): Caller, Extension(credential): Extension<Credential>) -> Json<Me> {
    Json(me_of(&user, &credential))
}

fn me_of(user: &steprail_engine::User, credential: &Credential) -> Me {
    let principal = user.principal();
    let may: BTreeSet<Right> = Right::ALL.into_iter().filter(|right| user.may(*right)).collect();
    let csrf = match credential {
        Credential::Cookie(_, csrf) => Some(csrf.clone()),
        _ => None,
    };
    Me { id: principal.id.clone(), name: principal.name.clone(), agent: principal.agent, may, csrf }
}

async fn begin(
    State(app): State<App>,
    Caller(user): Caller,
    Extension(credential): Extension<Credential>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let principal = user.principal();
    if principal.agent || principal.scope.is_some() || !matches!(credential, Credential::Token(_)) {
        let detail = "a browser session needs a token of a user in person without a scope";
        return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail));
    }
    let cookie = sign_in::start_session(&app, principal, &headers).await?;
    Ok((StatusCode::CREATED, [(header::SET_COOKIE, cookie)], Json(me_of(&user, &credential))).into_response())
}

async fn end(
    State(app): State<App>,
    Extension(credential): Extension<Credential>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if let Credential::Cookie(text, _) = &credential {
        app.accounts.end_session(text).await?;
    }
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, sign_in::clear_cookie(&headers))]).into_response())
}

async fn link(State(app): State<App>, Caller(user): Caller) -> Result<Response, Problem> {
    let principal = user.principal();
    if principal.agent || principal.scope.is_some() || principal.id != app.accounts.owner().id {
        let detail = "only the owner of this server can create a sign-in link, in person";
        return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail).hint("use `steprail open`"));
    }
    let url = sign_in::create_link(&app)?;
    Ok((StatusCode::CREATED, Json(SignInLink { url })).into_response())
}
