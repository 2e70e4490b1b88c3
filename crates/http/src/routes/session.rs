//! The caller, and browser sessions.

use std::collections::BTreeSet;

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::Right;

use crate::App;
use crate::accounts::TICKET_SECS;
use crate::api::{Api, delete, get, post};
use crate::authentication::Credential;
use crate::extract::{Caller, OptionalBody};
use crate::peer::Peer;
use crate::problem::Problem;
use crate::sign_in::{self, SignedIn};

const TAG: &str = "session";

pub(super) fn routes(api: Api) -> Api {
    api.route(TAG, get("/api/v1/me", "Get the caller").returns::<Me>(200, "The caller."), me)
        .route(
            TAG,
            post("/api/v1/session", "Sign this browser in")
                .details(
                    "Exchanges a token that is not an agent's for a session cookie and a page secret. Every request with \
                     the cookie needs the secret in `X-Steprail-Page`.",
                )
                .returns::<SignedIn>(201, "The page secret, once."),
            begin,
        )
        .route(
            TAG,
            delete("/api/v1/session", "Sign this browser out").returns_empty(204, "The session has ended."),
            end,
        )
        .route(
            TAG,
            post("/api/v1/tickets", "Create a ticket for a stream")
                .details(
                    "For pages, which cannot send headers with an `EventSource` or a WebSocket. The ticket is sent as \
                     `?ticket=…` to `/api/v1/stream`, `/api/v1/runs/{run_id}/stream` or `/api/v1/socket`. It works once, \
                     within 30 seconds, together with the cookie of the session.",
                )
                .returns::<StreamTicket>(201, "The ticket."),
            ticket,
        )
        .route(
            TAG,
            post("/api/v1/links", "Create a sign-in link")
                .details("For the owner in person. The link works once, within ten minutes.")
                .optional_body::<LinkRequest>()
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
}

/// A ticket that opens one stream of a browser session.
#[derive(Serialize, JsonSchema)]
struct StreamTicket {
    /// The ticket; it works once.
    ticket: String,
    /// Seconds until it expires.
    expires_in: u32,
}

/// Where a sign-in link leads.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct LinkRequest {
    /// The page to open after signing in: `/passkeys`, with its query or fragment. By default the start page.
    #[schemars(length(max = 16384))]
    page: Option<String>,
}

/// A link to open in a browser.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct SignInLink {
    /// The link; it works once.
    pub url: String,
}

async fn me(Caller(user): Caller) -> Json<Me> {
    let principal = user.principal();
    let may: BTreeSet<Right> = Right::ALL.into_iter().filter(|right| user.may(*right)).collect();
    Json(Me { id: principal.id.clone(), name: principal.name.clone(), agent: principal.agent, may })
}

async fn ticket(
    State(app): State<App>,
    Extension(credential): Extension<Credential>,
) -> Result<Response, Problem> {
    let Credential::Cookie(_, session) = &credential else {
        let problem = Problem::bad("tickets are for browser sessions");
        return Err(problem.hint("send the token in the header `Authorization` of the stream"));
    };
    let ticket = StreamTicket { ticket: app.accounts.create_ticket(session)?, expires_in: TICKET_SECS };
    Ok((StatusCode::CREATED, Json(ticket)).into_response())
}

async fn begin(
    State(app): State<App>,
    Caller(user): Caller,
    Extension(credential): Extension<Credential>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let principal = user.principal();
    if principal.agent || principal.scope.is_some() || !matches!(credential, Credential::Token(_)) {
        let detail = "a browser session needs a token of a user in person without a scope";
        return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail));
    }
    sign_in::start_session(&app, principal, &peer, &headers).await
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

async fn link(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Caller(user): Caller,
    OptionalBody(LinkRequest { page }): OptionalBody<LinkRequest>,
) -> Result<Response, Problem> {
    let principal = user.principal();
    if principal.agent || principal.scope.is_some() || principal.id != app.accounts.owner().id {
        let detail = "only the owner of this server can create a sign-in link, in person";
        return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail).hint("use `steprail open`"));
    }
    let url = sign_in::create_link(&app, peer.os_user, page.as_deref())?;
    Ok((StatusCode::CREATED, Json(SignInLink { url })).into_response())
}
