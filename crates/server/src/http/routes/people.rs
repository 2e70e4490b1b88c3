//! Users and groups, for those who manage them.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::accounts::{Group, Kept, Person};
use crate::http::App;
use crate::http::api::{Api, delete, get, put};
use crate::http::extract::{Asker, Body, Named};
use crate::http::problem::Problem;
use crate::http::routes::secrets::on_disk;
use crate::view::Page;

const TAG: &str = "users";

pub(super) fn routes(api: Api) -> Api {
    let concurrently =
        "Send `If-Match: \"2\"` to change it only if it is at revision 2, `\"0\"` only if there is none.";
    let revision = "The revision that it takes the place of, in quotes.";
    api.route(
        TAG,
        get("/api/v1/users", "List users")
            .gives::<Page<Entry<Person>>>(200, "By id: all for those who manage them, yourself otherwise."),
        users,
    )
    .route(
        TAG,
        put("/api/v1/users/{id}", "Store a user")
            .more(concurrently)
            .header("If-Match", revision)
            .body::<Person>()
            .gives::<Entry<Person>>(200, "The user."),
        put_user,
    )
    .route(
        TAG,
        delete("/api/v1/users/{id}", "Delete a user")
            .more("The user's tokens are revoked and their secrets deleted; what the user started stays, and fails at its next call.")
            .gives_nothing(204, "The user is gone."),
        drop_user,
    )
    .route(TAG, get("/api/v1/groups", "List groups").gives::<Page<Entry<Group>>>(200, "By name."), groups)
    .route(
        TAG,
        put("/api/v1/groups/{id}", "Store a group")
            .more(concurrently)
            .header("If-Match", revision)
            .body::<Group>()
            .gives::<Entry<Group>>(200, "The group."),
        put_group,
    )
    .route(
        TAG,
        delete("/api/v1/groups/{id}", "Delete a group")
            .more("Its users stay.")
            .gives_nothing(204, "The group is gone."),
        drop_group,
    )
}

/// A user or a group.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Entry<T> {
    /// Its id.
    pub id: String,
    /// Counts its changes.
    pub revision: u32,
    /// Whether an identity provider says what it is.
    pub external: bool,
    /// What it is.
    pub is: T,
}

impl<T> Entry<T> {
    fn of((id, kept): (String, Kept<T>)) -> Self {
        Self { id, revision: kept.revision, external: kept.external, is: kept.entry }
    }
}

/// What a change is bound to, if anything.
fn expected(headers: &HeaderMap) -> Result<Option<u32>, Problem> {
    let Some(tag) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let revision = tag.to_str().ok().and_then(|tag| tag.trim_matches('"').parse().ok());
    revision.map(Some).ok_or_else(|| Problem::bad("`If-Match` is a revision in quotes"))
}

fn tagged<T: Serialize>(id: &str, kept: Kept<T>) -> Response {
    let tag = format!("\"{}\"", kept.revision);
    ([(header::ETAG, tag)], Json(Entry::of((id.to_owned(), kept)))).into_response()
}

async fn users(State(app): State<App>, Asker(user): Asker) -> Json<Page<Entry<Person>>> {
    Json(Page { items: app.accounts.users(&user).into_iter().map(Entry::of).collect(), next: None })
}

async fn put_user(
    State(app): State<App>,
    Asker(user): Asker,
    Named(id): Named,
    headers: HeaderMap,
    Body(person): Body<Person>,
) -> Result<Response, Problem> {
    let before = expected(&headers)?;
    Ok(tagged(&id, app.accounts.put_user(&user, &id, person, before).await?))
}

async fn drop_user(
    State(app): State<App>,
    Asker(user): Asker,
    Named(id): Named,
) -> Result<StatusCode, Problem> {
    app.accounts.drop_user(&user, &id).await?;
    let vault = app.vault.clone();
    on_disk(move || vault.remove_user(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn groups(State(app): State<App>, Asker(user): Asker) -> Result<Json<Page<Entry<Group>>>, Problem> {
    let items = app.accounts.groups(&user)?.into_iter().map(Entry::of).collect();
    Ok(Json(Page { items, next: None }))
}

async fn put_group(
    State(app): State<App>,
    Asker(user): Asker,
    Named(id): Named,
    headers: HeaderMap,
    Body(group): Body<Group>,
) -> Result<Response, Problem> {
    let before = expected(&headers)?;
    Ok(tagged(&id, app.accounts.put_group(&user, &id, group, before).await?))
}

async fn drop_group(
    State(app): State<App>,
    Asker(user): Asker,
    Named(id): Named,
) -> Result<StatusCode, Problem> {
    app.accounts.drop_group(&user, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
