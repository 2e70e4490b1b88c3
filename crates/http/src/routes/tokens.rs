//! API tokens: created, listed, revoked. The text of a token is in the response that creates it, and nowhere else.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::{Right, TokenScope};

use crate::App;
use crate::accounts::{NewToken, TOKEN_DAYS, Token};
use crate::api::{Api, delete, get, post};
use crate::extract::{Body, Caller, NameParam};
use crate::page::Page;
use crate::problem::Problem;
use crate::timestamp;

const TAG: &str = "tokens";

pub(super) fn routes(api: Api) -> Api {
    let create = post("/api/v1/tokens", "Create a token")
        .details("The text of the token is in this response only. An agent's token cannot decide at gates; `may` and `tools` restrict its scope.")
        .body::<CreateTokenRequest>()
        .returns::<CreatedToken>(201, "The token.");
    api.route(
        TAG,
        get("/api/v1/tokens", "List tokens").returns::<Page<TokenInfo>>(
            200,
            "Your own, or those of all users if you manage users; without their texts.",
        ),
        list,
    )
    .route(TAG, create, self::create)
    .route(
        TAG,
        delete("/api/v1/tokens/{id}", "Revoke a token").returns_empty(204, "The token is revoked."),
        revoke,
    )
}

/// A token to create.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateTokenRequest {
    /// Purpose of the token, for people.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// The user whom it authenticates; the caller by default.
    user: Option<String>,
    /// Whether its holder is an agent; true by default.
    #[serde(default = "default_true")]
    agent: bool,
    /// Validity in days; 90 by default.
    #[schemars(range(min = 1, max = 366))]
    days: Option<u32>,
    /// Rights in its scope; all rights of the user by default.
    #[schemars(with = "Option<Vec<Right>>")]
    may: Option<BTreeSet<Right>>,
    /// Tools in its scope, as patterns; all tools of the user by default.
    #[schemars(length(max = 100), inner(length(max = 256)))]
    tools: Option<Vec<String>>,
}

fn default_true() -> bool {
    true
}

/// A token, without its text.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct TokenInfo {
    /// Id of the token.
    pub id: String,
    /// Purpose of the token, for people.
    pub name: String,
    /// The user whom it authenticates.
    pub user: String,
    /// Whether its holder is an agent.
    pub agent: bool,
    /// Rights in its scope; absent if it has all rights of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may: Option<BTreeSet<Right>>,
    /// Tools in its scope; absent if it has all tools of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// When it was created.
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    /// When it expires.
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: String,
}

/// A created token.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct CreatedToken {
    /// Text of the token. It cannot be read again.
    pub token: String,
    /// The stored token.
    pub made: TokenInfo,
}

fn token_info((id, token): (String, Token)) -> TokenInfo {
    let TokenScope { may, tools } = token.scope.unwrap_or_default();
    TokenInfo {
        id,
        name: token.name,
        user: token.user,
        agent: token.agent,
        may,
        tools,
        created_at: timestamp::format(token.created_at),
        expires_at: timestamp::format(token.expires_at),
    }
}

async fn list(State(app): State<App>, Caller(user): Caller) -> Json<Page<TokenInfo>> {
    Json(Page::single(app.accounts.tokens(&user).into_iter().map(token_info).collect()))
}

async fn create(
    State(app): State<App>,
    Caller(user): Caller,
    Body(request): Body<CreateTokenRequest>,
) -> Result<Response, Problem> {
    let CreateTokenRequest { name, user: owner, agent, days, may, tools } = request;
    let is_text = |text: &String| !text.is_empty() && text.len() <= 256 && !text.contains(char::is_control);
    if !is_text(&name) || tools.as_ref().is_some_and(|tools| tools.len() > 100 || !tools.iter().all(is_text))
    {
        return Err(Problem::bad(
            "`name` and each of `tools` have 1 to 256 bytes, and there are at most 100 tools",
        ));
    }
    let scope = (may.is_some() || tools.is_some()).then_some(TokenScope { may, tools });
    let owner = owner.unwrap_or_else(|| user.principal().id.clone());
    let new = NewToken { user: owner, name, days: days.unwrap_or(TOKEN_DAYS.0), agent, scope };
    let (id, token, text) = app.accounts.create_token(&user, new).await?;
    Ok((StatusCode::CREATED, Json(CreatedToken { token: text, made: token_info((id, token)) }))
        .into_response())
}

async fn revoke(
    State(app): State<App>,
    Caller(user): Caller,
    NameParam(id): NameParam,
) -> Result<StatusCode, Problem> {
    app.accounts.revoke_token(&user, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
