//! The audit log: events of all runs in commit order.

use axum::Json;

use super::events::{Event, EventsQuery, RawEvent};
use crate::api::{Api, get};
use crate::extract::{Caller, QueryParams};
use crate::page::{self, Page};
use crate::problem::Problem;

pub(super) fn routes(api: Api) -> Api {
    let all = get("/api/v1/audit", "List events of all runs")
        .details("Every run that you may view. Each event carries a link of its run's hash chain; `steprail audit verify` checks them.")
        .query::<EventsQuery>()
        .returns::<Page<Event>>(200, "Events in order.");
    api.route("audit", all, list)
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
