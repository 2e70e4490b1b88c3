//! Secrets: set, listed by name, removed. Their values cannot be read.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::{Right, User};
use steprail_mcp::{Secret, SecretEntry, SecretError, SecretScope, is_secret_name};

use crate::App;
use crate::api::{Api, delete, get, put};
use crate::extract::{Body, InPerson, NameParam, QueryParams};
use crate::page::Page;
use crate::problem::Problem;
use crate::timestamp;

const TAG: &str = "secrets";

pub(super) fn routes(api: Api) -> Api {
    let proof = "Proof of presence, where it is required: `pin …`, `totp …` or `passkey …`.";
    api.route(
        TAG,
        get("/api/v1/secrets", "List secrets")
            .query::<OwnerQuery>()
            .returns::<Page<SecretInfo>>(200, "By name, without values."),
        list,
    )
    .route(
        TAG,
        put("/api/v1/secrets/{name}", "Set a secret")
            .details(
                "Replaces `${user:NAME}` or `${secret:NAME}` in servers.json when a server is connected.",
            )
            .header("X-Steprail-Presence", proof)
            .body::<SetSecretRequest>()
            .returns_empty(204, "The secret is stored, encrypted."),
        set,
    )
    .route(
        TAG,
        delete("/api/v1/secrets/{name}", "Remove a secret")
            .header("X-Steprail-Presence", proof)
            .query::<OwnerQuery>()
            .returns_empty(204, "The secret is deleted."),
        remove,
    )
}

/// Owner of the secrets; the caller by default.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OwnerQuery {
    /// Secrets that all users share; needs `administer`.
    #[serde(default)]
    shared: bool,
    /// Secrets of another user; needs `manage`.
    user: Option<String>,
}

/// A secret to set.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SetSecretRequest {
    /// Value of the secret.
    #[schemars(length(min = 6, max = 65536))]
    value: String,
    /// Shared by all users; needs `administer`.
    #[serde(default)]
    shared: bool,
    /// Owned by another user; needs `manage`.
    user: Option<String>,
}

/// A secret, without its value.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct SecretInfo {
    /// Name of the secret.
    pub name: String,
    /// The user who owns it; absent if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When it was set.
    #[schemars(extend("format" = "date-time"))]
    pub set_at: String,
}

impl From<SecretError> for Problem {
    fn from(error: SecretError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "secrets_unavailable", error.0)
    }
}

/// Runs a blocking operation on secrets.
pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SecretError> + Send + 'static,
) -> Result<T, Problem> {
    let failed = || SecretError("the secret store failed".to_owned());
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(failed())).map_err(Problem::from)
}

/// The scope that a request names, if the caller may change it.
fn scope(app: &App, caller: &User, shared: bool, user: Option<String>) -> Result<SecretScope, Problem> {
    match user {
        Some(_) if shared => Err(Problem::bad("`shared` and `user` cannot be used together")),
        None if shared => {
            caller.require(Right::Administer)?;
            Ok(SecretScope::Shared)
        }
        Some(user) if user != caller.principal().id => {
            caller.require(Right::Manage)?;
            let known = app.accounts.principal(&user);
            known.ok_or_else(|| Problem::not_found(format!("there is no user `{user}`")))?;
            Ok(SecretScope::User(user))
        }
        _ => Ok(SecretScope::User(caller.principal().id.clone())),
    }
}

async fn list(
    State(app): State<App>,
    InPerson(caller): InPerson,
    QueryParams(owner): QueryParams<OwnerQuery>,
) -> Result<Json<Page<SecretInfo>>, Problem> {
    let scope = scope(&app, &caller, owner.shared, owner.user)?;
    let user = match &scope {
        SecretScope::Shared => None,
        SecretScope::User(user) => Some(user.clone()),
    };
    let store = app.secrets.clone();
    let entries = on_disk(move || store.list(&scope)).await?;
    let info = |SecretEntry { name, set_at }| SecretInfo {
        name,
        user: user.clone(),
        set_at: timestamp::format(set_at),
    };
    Ok(Json(Page::single(entries.into_iter().map(info).collect())))
}

async fn set(
    State(app): State<App>,
    InPerson(caller): InPerson,
    NameParam(name): NameParam,
    Body(request): Body<SetSecretRequest>,
) -> Result<StatusCode, Problem> {
    let scope = scope(&app, &caller, request.shared, request.user)?;
    caller.require_presence()?;
    if !is_secret_name(&name) {
        let problem = Problem::bad(format!("`{name}` is not a valid name of a secret"));
        return Err(problem.hint("use up to 128 letters, digits, `_`, `-` and `.`"));
    }
    let (min, max) = (steprail_mcp::limits::SECRET_MIN_BYTES, steprail_mcp::limits::SECRET_BYTES);
    if !(min..=max).contains(&request.value.len()) {
        return Err(Problem::bad(format!("a secret has {min} to {max} bytes")));
    }
    let (store, value) = (app.secrets.clone(), Secret::new(request.value));
    tracing::info!(by = caller.principal().id, ?scope, name, "secret set");
    on_disk(move || store.set(&scope, &name, &value)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove(
    State(app): State<App>,
    InPerson(caller): InPerson,
    NameParam(name): NameParam,
    QueryParams(owner): QueryParams<OwnerQuery>,
) -> Result<StatusCode, Problem> {
    let scope = scope(&app, &caller, owner.shared, owner.user)?;
    caller.require_presence()?;
    let none = Problem::not_found(format!("there is no secret `{name}`"));
    // Stored logins have reserved names; `steprail logout` removes them.
    if !is_secret_name(&name) {
        return Err(none);
    }
    tracing::info!(by = caller.principal().id, ?scope, name, "secret removed");
    let store = app.secrets.clone();
    let was_there = on_disk(move || store.remove(&scope, &name)).await?;
    if was_there { Ok(StatusCode::NO_CONTENT) } else { Err(none) }
}
