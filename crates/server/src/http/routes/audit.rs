//! The audit: everything that happened, in order.

use axum::Json;

use super::definitions::limit;
use super::runs::After;
use crate::http::api::{Api, get};
use crate::http::extract::{Args, Asker};
use crate::http::problem::Problem;
use crate::view::{Event, Page, RawEvent};

pub(super) fn routes(api: Api) -> Api {
    let all = get("/api/v1/audit", "What happened in every run that you may see")
        .more(
            "Each event has the hash that links it to the one before; `steprail audit verify` compares them.",
        )
        .query::<After>()
        .gives::<Page<Event>>(200, "In order.");
    api.route("audit", all, list)
}

async fn list(Asker(user): Asker, Args(args): Args<After>) -> Result<Json<Page<RawEvent>>, Problem> {
    let limit = limit(args.limit, 100)?;
    let page = user.feed(i64::try_from(args.after.unwrap_or_default()).unwrap_or(i64::MAX), limit).await?;
    Ok(Json(Page::of_events(page.map(|(stored, _)| stored), |last| last.id.to_string())))
}
