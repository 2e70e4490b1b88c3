//! The audit log: events of all runs in commit order, and administrative actions.

use axum::Json;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use steprail_engine::{AdminEvent, StoredAdminEvent};

use super::events::{Event, EventsQuery, RawEvent};
use crate::api::{Api, get};
use crate::extract::{Caller, QueryParams};
use crate::page::{self, Page};
use crate::problem::Problem;
use crate::timestamp;

pub(super) fn routes(api: Api) -> Api {
    let all = get("/api/v1/audit", "List events of all runs")
        .details("Every run that you may view. Each event carries a link of its run's hash chain; `steprail audit verify` checks them.")
        .query::<EventsQuery>()
        .returns::<Page<Event>>(200, "Events in order.");
    let actions = get("/api/v1/audit/actions", "List administrative actions")
        .details("Changes of accounts, definitions, schedules and the policy, sign-ins, restores and purges. Needs the right `administer` or `manage`.")
        .query::<EventsQuery>()
        .returns::<Page<Action>>(200, "Actions in order.");
    api.route("audit", all, list).route("audit", actions, list_actions)
}

/// An administrative action.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Action {
    /// Cursor of the action, for `after`.
    pub id: String,
    /// Its number among the actions, from 1 without gaps.
    pub seq: u64,
    /// When it was committed.
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    /// Hash of its row in the hash chain.
    pub hash: String,
    /// The action: a map with a `type`, `by`, and the rows that it established with their hashes.
    #[schemars(with = "Value")]
    pub action: AdminEvent,
}

impl From<StoredAdminEvent> for Action {
    fn from(stored: StoredAdminEvent) -> Self {
        let StoredAdminEvent { cursor, seq, at, event, hash } = stored;
        Self { id: cursor.to_string(), seq, at: timestamp::format(at), hash: hash.to_string(), action: event }
    }
}

async fn list_actions(
    Caller(user): Caller,
    QueryParams(query): QueryParams<EventsQuery>,
) -> Result<Json<Page<Action>>, Problem> {
    let limit = page::limit(query.limit, 100)?;
    let page = user.actions(query.after()?, limit).await?;
    let next = page.next.map(|next| next.to_string());
    Ok(Json(Page { items: page.map(Action::from).events, next }))
}

async fn list(
    Caller(user): Caller,
    QueryParams(query): QueryParams<EventsQuery>,
) -> Result<Json<Page<RawEvent>>, Problem> {
    let limit = page::limit(query.limit, 100)?;
    let page = user.feed(query.after()?, limit).await?;
    let next = page.next.map(|next| next.to_string());
    Ok(Json(Page { items: page.map(|(event, _)| Event::from(event)).events, next }))
}
