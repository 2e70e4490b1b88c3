//! Secrets: set, listed by name, removed. Values are never given back.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::{Right, User};
use steprail_mcp::{Secret, SecretError, SecretScope, SecretStore, is_secret_name};

use crate::http::App;
use crate::http::api::{Api, delete, get, put};
use crate::http::extract::{Args, Body, InPerson, Named};
use crate::http::problem::Problem;
use crate::secrets::Listed;
use crate::view::{Page, time};

const TAG: &str = "secrets";

pub(super) fn routes(api: Api) -> Api {
    api.route(
        TAG,
        get("/api/v1/secrets", "List secrets")
            .query::<Whose>()
            .gives::<Page<Shown>>(200, "By name, without their values."),
        list,
    )
    .route(
        TAG,
        put("/api/v1/secrets/{name}", "Set a secret")
            .more("`${user:NAME}` and `${secret:NAME}` in servers.json stand for it when a server is connected to.")
            .body::<Wanted>()
            .gives_nothing(204, "It is stored, encrypted."),
        set,
    )
    .route(
        TAG,
        delete("/api/v1/secrets/{name}", "Remove a secret")
            .query::<Whose>()
            .gives_nothing(204, "It is deleted."),
        remove,
    )
}

/// Whose secrets; your own by default.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Whose {
    /// Those that all users share; needs `administer`.
    #[serde(default)]
    shared: bool,
    /// Those of another user; needs `manage`.
    user: Option<String>,
}

/// A secret to set.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// The value.
    #[schemars(length(min = 1, max = 65536))]
    value: String,
    /// All users share it; needs `administer`.
    #[serde(default)]
    shared: bool,
    /// Another user whose it is; needs `manage`.
    user: Option<String>,
}

/// A secret, without its value.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Shown {
    pub name: String,
    /// The user whose it is; none if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
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

/// The scope that somebody means, if they may change it.
fn scope(app: &App, asker: &User, shared: bool, user: Option<String>) -> Result<SecretScope, Problem> {
    match user {
        Some(_) if shared => Err(Problem::bad("a secret is shared or a user's, and not both")),
        None if shared => {
            asker.require(Right::Administer)?;
            Ok(SecretScope::Shared)
        }
        Some(user) if user != asker.principal().id => {
            asker.require(Right::Manage)?;
            let known = app.accounts.principal(&user);
            known.ok_or_else(|| Problem::not_found(format!("there is no user `{user}`")))?;
            Ok(SecretScope::User(user))
        }
        _ => Ok(SecretScope::User(asker.principal().id.clone())),
    }
}

async fn list(
    State(app): State<App>,
    InPerson(asker): InPerson,
    Args(whose): Args<Whose>,
) -> Result<Json<Page<Shown>>, Problem> {
    let scope = scope(&app, &asker, whose.shared, whose.user)?;
    let user = match &scope {
        SecretScope::Shared => None,
        SecretScope::User(user) => Some(user.clone()),
    };
    let vault = app.vault.clone();
    let listed = on_disk(move || vault.list(&scope)).await?;
    let shown = |Listed { name, set_at }| Shown { name, user: user.clone(), set_at: time(set_at) };
    Ok(Json(Page { items: listed.into_iter().map(shown).collect(), next: None }))
}

async fn set(
    State(app): State<App>,
    InPerson(asker): InPerson,
    Named(name): Named,
    Body(wanted): Body<Wanted>,
) -> Result<StatusCode, Problem> {
    let scope = scope(&app, &asker, wanted.shared, wanted.user)?;
    if !is_secret_name(&name) {
        let problem = Problem::bad(format!("`{name}` cannot be the name of a secret"));
        return Err(problem.hint("letters, digits, `_`, `-` and `.`, at most 128"));
    }
    if wanted.value.is_empty() || wanted.value.len() > steprail_mcp::limits::SECRET_BYTES {
        let most = steprail_mcp::limits::SECRET_BYTES;
        return Err(Problem::bad(format!("a secret has 1 to {most} bytes")));
    }
    let (vault, value) = (app.vault.clone(), Secret::new(wanted.value));
    tracing::info!(by = asker.principal().id, ?scope, name, "a secret is set");
    on_disk(move || vault.set(&scope, &name, &value)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove(
    State(app): State<App>,
    InPerson(asker): InPerson,
    Named(name): Named,
    Args(whose): Args<Whose>,
) -> Result<StatusCode, Problem> {
    let scope = scope(&app, &asker, whose.shared, whose.user)?;
    let none = Problem::not_found(format!("there is no secret `{name}`"));
    // Logins are not secrets that users named: `steprail logout` removes them.
    if !is_secret_name(&name) {
        return Err(none);
    }
    tracing::info!(by = asker.principal().id, ?scope, name, "a secret is removed");
    let vault = app.vault.clone();
    let was_there = on_disk(move || vault.remove(&scope, &name)).await?;
    if was_there { Ok(StatusCode::NO_CONTENT) } else { Err(none) }
}
