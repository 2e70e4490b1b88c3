//! Events of runs: listed, and followed as server-sent events.

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use steprail_engine::{After, Cursor, RunId, StoredEvent};

use crate::api::{Api, get};
use crate::extract::{Caller, QueryParams, RunParam};
use crate::page::{self, Page};
use crate::problem::Problem;
use crate::{stream, timestamp};

const TAG: &str = "runs";

pub(super) fn routes(api: Api) -> Api {
    let list = get("/api/v1/runs/{run_id}/events", "List events of a run")
        .query::<EventsQuery>()
        .returns::<Page<Event>>(200, "Events in order.");
    let follow_run = get("/api/v1/runs/{run_id}/stream", "Follow a run")
        .details("Server-sent events from the first event, or after `Last-Event-ID`. The stream ends with the run.")
        .query::<stream::StreamQuery>()
        .returns_empty(200, "Events, as `text/event-stream`.")
        .returns_empty(204, "The run has ended and `Last-Event-ID` is its last event.");
    let follow_all = get("/api/v1/stream", "Follow all runs")
        .details("Server-sent events of every run that you may view, from now on, or after `Last-Event-ID`.")
        .query::<stream::StreamQuery>()
        .returns_empty(200, "Events, as `text/event-stream`.");
    api.route(TAG, list, self::list).route(TAG, follow_run, stream::run).route(TAG, follow_all, stream::all)
}

/// An event of a run. `E` is the typed event, or its JSON as stored.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Event<E = steprail_engine::Event> {
    /// Cursor of the event, for `after` and `Last-Event-ID`.
    pub id: String,
    /// Id of the run.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub run_id: RunId,
    /// Number of the event in its run, from 1 without gaps.
    pub seq: u64,
    /// When it was committed.
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    /// Link of the run's hash chain.
    pub hash: String,
    /// The event: a map with a `type`.
    #[schemars(with = "Value")]
    pub event: E,
}

/// An event with its JSON as stored.
pub type RawEvent = Event<Box<RawValue>>;

impl<E> From<StoredEvent<E>> for Event<E> {
    fn from(stored: StoredEvent<E>) -> Self {
        Self {
            id: stored.cursor.to_string(),
            run_id: stored.run,
            seq: stored.seq,
            at: timestamp::format(stored.at),
            hash: stored.hash.to_string(),
            event: stored.event,
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    /// Only events after this cursor: `next` of the previous page, the `id` of an event, or `start`, which is the default.
    pub after: Option<String>,
    /// Maximum number of events; 100 by default.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<usize>,
}

impl EventsQuery {
    /// The cursor after which the list begins.
    pub(super) fn after(&self) -> Result<Cursor, Problem> {
        Ok(page::cursor(self.after.as_deref())?.unwrap_or(Cursor::START))
    }
}

async fn list(
    Caller(user): Caller,
    RunParam(run): RunParam,
    QueryParams(query): QueryParams<EventsQuery>,
) -> Result<Json<Page<Event>>, Problem> {
    let limit = page::limit(query.limit, 100)?;
    let page = user.events(run, After::Cursor(query.after()?), limit).await?;
    let next = page.next.map(|next| next.to_string());
    Ok(Json(Page { items: page.map(Event::from).events, next }))
}
