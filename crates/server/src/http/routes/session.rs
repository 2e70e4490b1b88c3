//! Who asks, and how a browser signs in and out.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::Right;

use crate::http::App;
use crate::http::api::{Api, delete, get, post};
use crate::http::door::Credential;
use crate::http::extract::Asker;
use crate::http::problem::Problem;
use crate::http::sign_in;
use crate::view::Me;

const TAG: &str = "session";

pub(super) fn routes(api: Api) -> Api {
    api.route(TAG, get("/api/v1/me", "Who you are").gives::<Me>(200, "You."), me)
        .route(
            TAG,
            post("/api/v1/session", "Sign this browser in")
                .more("For whoever has a token that is not an agent's: gives a cookie.")
                .gives::<Me>(201, "You."),
            begin,
        )
        .route(
            TAG,
            delete("/api/v1/session", "Sign this browser out")
                .gives_nothing(204, "The cookie counts for nothing from now on."),
            end,
        )
        .route(
            TAG,
            post("/api/v1/links", "A link that signs a browser in, once")
                .more("For the owner in person; it can be used for ten minutes.")
                .gives::<Link>(201, "The link."),
            link,
        )
}

/// A link to open in a browser.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Link {
    pub url: String,
}

async fn me(Asker(user): Asker, Extension(credential): Extension<Credential>) -> Json<Me> {
    Json(shown(&user, &credential))
}

fn shown(user: &steprail_engine::User, credential: &Credential) -> Me {
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
    Asker(user): Asker,
    Extension(credential): Extension<Credential>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let principal = user.principal();
    if principal.agent || principal.scope.is_some() || !matches!(credential, Credential::Token(_)) {
        let detail = "a browser is signed in by a user in person, with a token that is held to nothing less";
        return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail));
    }
    let cookie = sign_in::cookie(&app, principal, &headers).await?;
    Ok((StatusCode::CREATED, [(header::SET_COOKIE, cookie)], Json(shown(&user, &credential))).into_response())
}

async fn end(
    State(app): State<App>,
    Extension(credential): Extension<Credential>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if let Credential::Cookie(text, _) = &credential {
        app.accounts.sign_out(text).await?;
    }
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, sign_in::no_cookie(&headers))]).into_response())
}

async fn link(State(app): State<App>, Asker(user): Asker) -> Result<Response, Problem> {
    let principal = user.principal();
    if principal.agent || principal.scope.is_some() || principal.id != app.accounts.owner().id {
        let detail = "only the owner of this server, in person, gets such a link";
        return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail).hint("`steprail open` prints one"));
    }
    let url = sign_in::link(&app)?;
    Ok((StatusCode::CREATED, Json(Link { url })).into_response())
}
