//! Tokens: made, listed, revoked. The text of one is shown once, to whoever makes it.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::{Right, TokenScope};

use crate::accounts::{NewToken, TOKEN_DAYS, Token};
use crate::http::App;
use crate::http::api::{Api, delete, get, post};
use crate::http::extract::{Asker, Body, Named};
use crate::http::problem::Problem;
use crate::view::{Page, time};

const TAG: &str = "tokens";

pub(super) fn routes(api: Api) -> Api {
    let make = post("/api/v1/tokens", "Make a token")
        .more("Its text is given this once. A token for an agent never decides at a gate; `may` and `tools` hold it to less.")
        .body::<Wanted>()
        .gives::<Made>(201, "The token.");
    api.route(
        TAG,
        get("/api/v1/tokens", "List tokens")
            .gives::<Page<Shown>>(200, "Your own, or everybody's if you manage users. Without their texts."),
        list,
    )
    .route(TAG, make, self::make)
    .route(
        TAG,
        delete("/api/v1/tokens/{id}", "Revoke a token")
            .gives_nothing(204, "It counts for nothing from now on."),
        revoke,
    )
}

/// The token that is wanted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// What it is for, in words.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// Whose; your own by default.
    user: Option<String>,
    /// Whether an agent gets it; yes by default.
    #[serde(default = "yes")]
    agent: bool,
    /// Days that it is valid; 90 by default.
    #[schemars(range(min = 1, max = 366))]
    days: Option<u32>,
    /// The rights that it is for; all that the user has by default.
    #[schemars(with = "Option<Vec<Right>>")]
    may: Option<BTreeSet<Right>>,
    /// The tools that it is for, as patterns; all that the user may call by default.
    #[schemars(length(max = 100), inner(length(max = 256)))]
    tools: Option<Vec<String>>,
}

fn yes() -> bool {
    true
}

/// A token, without its text.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Shown {
    pub id: String,
    pub name: String,
    /// Whose it is.
    pub user: String,
    /// Whether an agent has it.
    pub agent: bool,
    /// The rights that it is for; all that the user has if there are none here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may: Option<BTreeSet<Right>>,
    /// The tools that it is for; all that the user may call if there are none here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: String,
}

/// A token that was made.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Made {
    /// Its text: keep it, it is not shown again.
    pub token: String,
    /// What is known of it.
    pub made: Shown,
}

fn shown((id, token): (String, Token)) -> Shown {
    let TokenScope { may, tools } = token.scope.unwrap_or_default();
    Shown {
        id,
        name: token.name,
        user: token.user,
        agent: token.agent,
        may,
        tools,
        created_at: time(token.created_at),
        expires_at: time(token.expires_at),
    }
}

async fn list(State(app): State<App>, Asker(user): Asker) -> Json<Page<Shown>> {
    Json(Page { items: app.accounts.tokens(&user).into_iter().map(shown).collect(), next: None })
}

async fn make(
    State(app): State<App>,
    Asker(user): Asker,
    Body(wanted): Body<Wanted>,
) -> Result<Response, Problem> {
    let Wanted { name, user: whose, agent, days, may, tools } = wanted;
    let is_text = |text: &String| !text.is_empty() && text.len() <= 256 && !text.contains(char::is_control);
    if !is_text(&name) || tools.as_ref().is_some_and(|tools| tools.len() > 100 || !tools.iter().all(is_text))
    {
        return Err(Problem::bad("a name or a tool has 1 to 256 bytes, and there are at most 100 tools"));
    }
    let scope = (may.is_some() || tools.is_some()).then_some(TokenScope { may, tools });
    let whose = whose.unwrap_or_else(|| user.principal().id.clone());
    let new = NewToken { user: whose, name, days: days.unwrap_or(TOKEN_DAYS.0), agent, scope };
    let (id, token, text) = app.accounts.mint(&user, new).await?;
    Ok((StatusCode::CREATED, Json(Made { token: text, made: shown((id, token)) })).into_response())
}

async fn revoke(State(app): State<App>, Asker(user): Asker, Named(id): Named) -> Result<StatusCode, Problem> {
    app.accounts.revoke(&user, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
