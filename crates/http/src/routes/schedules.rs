//! Cron schedules that start runs.

use axum::Json;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use steprail_engine::{Overlap, Principal, RunId, ScheduledVersion};

use crate::api::{Api, delete, get, put};
use crate::extract::{Body, Caller, NameParam};
use crate::page::Page;
use crate::problem::Problem;
use crate::timestamp;

const TAG: &str = "schedules";

pub(super) fn routes(api: Api) -> Api {
    let store = put("/api/v1/schedules/{name}", "Store a schedule")
        .details(
            "Its runs act as the user who stores it. Times that pass while the server is down fire once.",
        )
        .body::<ScheduleRequest>()
        .returns::<Schedule>(200, "The schedule with its first due time.");
    api.route(
        TAG,
        get("/api/v1/schedules", "List schedules").returns::<Page<Schedule>>(200, "By name."),
        list,
    )
    .route(TAG, store, self::store)
    .route(
        TAG,
        delete("/api/v1/schedules/{name}", "Delete a schedule")
            .returns_empty(204, "The schedule is deleted."),
        remove,
    )
}

/// A schedule.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    /// Name of the schedule.
    pub name: String,
    /// The definition that it starts.
    pub definition: String,
    /// The version of the definition that it starts; absent: the newest one at each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Cron expression.
    pub cron: String,
    /// Time zone of the cron expression.
    pub zone: String,
    /// Inputs of each run.
    pub input: Value,
    /// The user whom its runs act as.
    pub created_by: String,
    /// Whether a run may start before the previous one has ended.
    pub overlap: bool,
    /// When the next run is due; absent while the schedule is paused.
    pub due_at: Option<String>,
    /// The last time that was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Firing>,
}

/// A time at which a schedule was due.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Firing {
    /// The time.
    pub at: String,
    /// The run that was started.
    #[schemars(with = "Option<String>")]
    pub run_id: Option<RunId>,
    /// Why no run was started.
    pub error: Option<String>,
}

impl From<steprail_engine::Schedule> for Schedule {
    fn from(schedule: steprail_engine::Schedule) -> Self {
        let firing = |fired: steprail_engine::Fired| Firing {
            at: timestamp::format(fired.at),
            run_id: fired.run,
            error: fired.error,
        };
        Self {
            name: schedule.name,
            definition: schedule.definition,
            version: match schedule.version {
                Some(ScheduledVersion::Number(version)) => Some(version),
                Some(ScheduledVersion::Pinned(pin)) => Some(pin.version),
                None | Some(ScheduledVersion::Latest) => None,
            },
            cron: schedule.cron,
            zone: schedule.zone,
            input: schedule.inputs,
            created_by: schedule.principal.id,
            overlap: schedule.overlap == Overlap::Allow,
            due_at: schedule.due.map(timestamp::format),
            last: schedule.last.map(firing),
        }
    }
}

/// A schedule to store.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScheduleRequest {
    /// The definition to start.
    pub definition: String,
    /// The version to start: a number, or `latest` for the newest one at each time, which needs a definition of the same owner.
    /// By default, the version that is the newest one now.
    #[serde(default)]
    pub version: Option<VersionChoice>,
    /// Cron expression, such as `0 8 * * 1-5`.
    pub cron: String,
    /// Time zone of the cron expression, such as `Europe/Berlin`; UTC by default.
    pub zone: Option<String>,
    /// Inputs of each run.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// Whether a run may start before the previous one has ended.
    #[serde(default)]
    pub overlap: bool,
    /// Whether the schedule is paused.
    #[serde(default)]
    pub paused: bool,
}

/// The number of a version, or `latest`.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum VersionChoice {
    /// This version.
    Number(#[schemars(range(min = 1))] u32),
    /// The newest version at each time.
    Word(Latest),
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Latest {
    Latest,
}

impl From<VersionChoice> for ScheduledVersion {
    fn from(choice: VersionChoice) -> Self {
        match choice {
            VersionChoice::Number(version) => Self::Number(version),
            VersionChoice::Word(Latest::Latest) => Self::Latest,
        }
    }
}

impl ScheduleRequest {
    pub(super) fn named(self, name: &str) -> steprail_engine::Schedule {
        let schedule =
            steprail_engine::Schedule::new(name, &self.definition, &self.cron, Principal::default());
        steprail_engine::Schedule {
            version: self.version.map(ScheduledVersion::from),
            zone: self.zone.unwrap_or(schedule.zone),
            inputs: Value::Object(self.input),
            overlap: if self.overlap { Overlap::Allow } else { Overlap::Skip },
            due: (!self.paused).then_some(0),
            ..schedule
        }
    }
}

async fn list(Caller(user): Caller) -> Result<Json<Page<Schedule>>, Problem> {
    let items = user.schedules().await?.into_iter().map(Schedule::from).collect();
    Ok(Json(Page::single(items)))
}

async fn store(
    Caller(user): Caller,
    NameParam(name): NameParam,
    Body(request): Body<ScheduleRequest>,
) -> Result<Json<Schedule>, Problem> {
    Ok(Json(user.schedule(request.named(&name)).await?.into()))
}

async fn remove(Caller(user): Caller, NameParam(name): NameParam) -> Result<StatusCode, Problem> {
    user.unschedule(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
