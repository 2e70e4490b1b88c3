//! Users and groups, for managers.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::App;
use crate::accounts::{GroupRecord, Stored, UserRecord};
use crate::api::{Api, delete, get, put};
use crate::extract::{Body, Caller, NameParam};
use crate::page::Page;
use crate::problem::Problem;
use crate::routes::secrets::on_disk;

const TAG: &str = "users";

pub(super) fn routes(api: Api) -> Api {
    let concurrently =
        "`If-Match: \"2\"` changes it only if its revision is 2, `\"0\"` only if it does not exist.";
    let revision = "The expected revision, in quotes.";
    api.route(
        TAG,
        get("/api/v1/users", "List users")
            .returns::<Page<AccountEntry<UserRecord>>>(200, "By id: all users for managers, otherwise only the caller."),
        users,
    )
    .route(
        TAG,
        put("/api/v1/users/{id}", "Store a user")
            .details(concurrently)
            .header("If-Match", revision)
            .body::<UserRecord>()
            .returns::<AccountEntry<UserRecord>>(200, "The user."),
        put_user,
    )
    .route(
        TAG,
        delete("/api/v1/users/{id}", "Delete a user")
            .details("Revokes the user's tokens and deletes their secrets. Runs that the user started stay and fail at their next call.")
            .returns_empty(204, "The user is deleted."),
        delete_user,
    )
    .route(TAG, get("/api/v1/groups", "List groups").returns::<Page<AccountEntry<GroupRecord>>>(200, "By name."), groups)
    .route(
        TAG,
        put("/api/v1/groups/{id}", "Store a group")
            .details(concurrently)
            .header("If-Match", revision)
            .body::<GroupRecord>()
            .returns::<AccountEntry<GroupRecord>>(200, "The group."),
        put_group,
    )
    .route(
        TAG,
        delete("/api/v1/groups/{id}", "Delete a group")
            .details("Its users stay.")
            .returns_empty(204, "The group is deleted."),
        delete_group,
    )
}

/// A user or a group with its revision.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct AccountEntry<T> {
    /// Id of the user or group.
    pub id: String,
    /// Incremented by every change.
    pub revision: u32,
    /// Whether an identity provider owns it.
    pub external: bool,
    /// The record.
    pub is: T,
}

impl<T> AccountEntry<T> {
    fn of((id, stored): (String, Stored<T>)) -> Self {
        Self { id, revision: stored.revision, external: stored.external, is: stored.record }
    }
}

/// The revision in `If-Match`.
fn expected(headers: &HeaderMap) -> Result<Option<u32>, Problem> {
    let Some(tag) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let revision = tag.to_str().ok().and_then(|tag| tag.trim_matches('"').parse().ok());
    revision.map(Some).ok_or_else(|| Problem::bad("`If-Match` must be a revision in quotes"))
}

fn tagged<T: Serialize>(id: &str, stored: Stored<T>) -> Response {
    let tag = format!("\"{}\"", stored.revision);
    ([(header::ETAG, tag)], Json(AccountEntry::of((id.to_owned(), stored)))).into_response()
}

async fn users(State(app): State<App>, Caller(user): Caller) -> Json<Page<AccountEntry<UserRecord>>> {
    Json(Page::single(app.accounts.users(&user).into_iter().map(AccountEntry::of).collect()))
}

async fn put_user(
    State(app): State<App>,
    Caller(user): Caller,
    NameParam(id): NameParam,
    headers: HeaderMap,
    Body(person): Body<UserRecord>,
) -> Result<Response, Problem> {
    let before = expected(&headers)?;
    Ok(tagged(&id, app.accounts.put_user(&user, &id, person, before).await?))
}

async fn delete_user(
    State(app): State<App>,
    Caller(user): Caller,
    NameParam(id): NameParam,
) -> Result<StatusCode, Problem> {
    app.accounts.delete_user(&user, &id).await?;
    let secrets = app.secrets.clone();
    on_disk(move || secrets.remove_user(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn groups(
    State(app): State<App>,
    Caller(user): Caller,
) -> Result<Json<Page<AccountEntry<GroupRecord>>>, Problem> {
    let items = app.accounts.groups(&user)?.into_iter().map(AccountEntry::of).collect();
    Ok(Json(Page::single(items)))
}

async fn put_group(
    State(app): State<App>,
    Caller(user): Caller,
    NameParam(id): NameParam,
    headers: HeaderMap,
    Body(group): Body<GroupRecord>,
) -> Result<Response, Problem> {
    let before = expected(&headers)?;
    Ok(tagged(&id, app.accounts.put_group(&user, &id, group, before).await?))
}

async fn delete_group(
    State(app): State<App>,
    Caller(user): Caller,
    NameParam(id): NameParam,
) -> Result<StatusCode, Problem> {
    app.accounts.delete_group(&user, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
