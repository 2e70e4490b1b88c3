//! Schedules: definitions that are started again and again.

use axum::Json;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use steprail_engine::{Overlap, Principal};

use crate::http::api::{Api, delete, get, put};
use crate::http::extract::{Asker, Body, Named};
use crate::http::problem::Problem;
use crate::view::{Page, Schedule};

const TAG: &str = "schedules";

pub(super) fn routes(api: Api) -> Api {
    let store = put("/api/v1/schedules/{name}", "Store a schedule")
        .more("Its runs act as whoever stores it. Times that pass while the server is down count once.")
        .body::<Planned>()
        .gives::<Schedule>(200, "The schedule, with when it is first due.");
    api.route(TAG, get("/api/v1/schedules", "List schedules").gives::<Page<Schedule>>(200, "By name."), list)
        .route(TAG, store, self::store)
        .route(
            TAG,
            delete("/api/v1/schedules/{name}", "Delete a schedule")
                .gives_nothing(204, "It starts nothing any more."),
            remove,
        )
}

/// When to start what.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Planned {
    /// The definition to start, in its newest version.
    pub definition: String,
    /// When: a cron pattern such as `0 8 * * 1-5`.
    pub cron: String,
    /// The time zone of the pattern, such as `Europe/Berlin`; UTC by default.
    pub zone: Option<String>,
    /// The inputs of each run.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// Whether a run may start before the last one has ended.
    #[serde(default)]
    pub overlap: bool,
    /// Whether it is to start nothing for now.
    #[serde(default)]
    pub paused: bool,
}

impl Planned {
    /// The schedule of this name.
    pub(super) fn named(self, name: &str) -> steprail_engine::Schedule {
        let schedule =
            steprail_engine::Schedule::new(name, &self.definition, &self.cron, Principal::default());
        steprail_engine::Schedule {
            zone: self.zone.unwrap_or(schedule.zone),
            inputs: Value::Object(self.input),
            overlap: if self.overlap { Overlap::Allow } else { Overlap::Skip },
            due: (!self.paused).then_some(0),
            ..schedule
        }
    }
}

async fn list(Asker(user): Asker) -> Result<Json<Page<Schedule>>, Problem> {
    let items = user.schedules().await?.into_iter().map(Schedule::from).collect();
    Ok(Json(Page { items, next: None }))
}

async fn store(
    Asker(user): Asker,
    Named(name): Named,
    Body(planned): Body<Planned>,
) -> Result<Json<Schedule>, Problem> {
    Ok(Json(user.schedule(planned.named(&name)).await?.into()))
}

async fn remove(Asker(user): Asker, Named(name): Named) -> Result<StatusCode, Problem> {
    user.unschedule(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
