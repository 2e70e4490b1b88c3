//! What is done to a run that was started: cancelled, paused, resumed, changed, run again, told of an event.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_engine::{InterventionRequest, Resume, RunId, User};

use crate::http::api::{Api, post};
use crate::http::extract::{Asker, Body, OfRun, OptionalBody};
use crate::http::problem::Problem;
use crate::view::Run;

const TAG: &str = "runs";

pub(super) fn routes(api: Api) -> Api {
    let changed = "The run as it stands then.";
    api.route(TAG, post("/api/v1/runs/{run_id}/cancel", "Cancel a run").more("It and everything in it stops; that is final.").optional_body::<Why>().gives::<Run>(200, changed), cancel)
        .route(TAG, post("/api/v1/runs/{run_id}/pause", "Pause a run").more("No further step begins; what runs may end.").gives::<Run>(200, changed), pause)
        .route(TAG, post("/api/v1/runs/{run_id}/resume", "Resume a run that was paused or interrupted").optional_body::<GoOn>().gives::<Run>(200, changed), resume)
        .route(TAG, post("/api/v1/runs/{run_id}/intervene", "InterventionRequest a run that is under way").more("For humans: sets arguments, outputs or inputs, leaves a step out, supplies its result, or says what became of a call whose outcome is unknown.").body::<InterventionRequest>().gives::<Run>(200, changed), intervene)
        .route(TAG, post("/api/v1/runs/{run_id}/rerun", "Run again what an ended run ran").optional_body::<Again>().gives::<Run>(201, "The new run."), rerun)
        .route(TAG, post("/api/v1/runs/{run_id}/signal", "Bring an event to a run").more("It is kept until a step waits for it.").body::<Signal>().gives::<Reached>(200, "It was brought."), signal)
        .route(TAG, post("/api/v1/signals", "Bring an event to every run that waits for it").body::<Signal>().gives::<Reached>(200, "How many runs it reached."), broadcast)
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
struct Why {
    /// Why.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct GoOn {
    /// Steps whose calls are made again although their outcome is unknown, by path.
    force_steps: Vec<String>,
    /// Refuse if the run's definition has another hash.
    expected_hash: Option<String>,
    /// Refuse if the outcome of a call is unknown and it is not forced.
    strict: bool,
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
struct Again {
    /// Whether calls that succeeded with the same arguments are taken over instead of made again.
    reuse: bool,
    /// With `reuse`: steps that run anew all the same, by path.
    run_anew: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Signal {
    /// The event's name.
    #[schemars(length(min = 1, max = 256))]
    event: String,
    /// What it carries.
    #[serde(default)]
    payload: Value,
}

impl Signal {
    fn checked(self) -> Result<Self, Problem> {
        match self.event.chars().count() {
            1..=256 => Ok(self),
            _ => Err(Problem::bad("the name of an event has 1 to 256 characters")),
        }
    }
}

/// Whom an event reached.
#[derive(Serialize, JsonSchema)]
struct Reached {
    /// How many runs.
    runs: usize,
}

async fn cancel(
    Asker(user): Asker,
    OfRun(run): OfRun,
    OptionalBody(why): OptionalBody<Why>,
) -> Result<Json<Run>, Problem> {
    user.cancel(run, why.reason.as_deref().unwrap_or("cancelled by its user")).await?;
    shown(&user, run).await
}

pub(super) async fn pause(Asker(user): Asker, OfRun(run): OfRun) -> Result<Json<Run>, Problem> {
    user.pause(run).await?;
    shown(&user, run).await
}

pub(super) async fn resume(
    Asker(user): Asker,
    OfRun(run): OfRun,
    OptionalBody(go_on): OptionalBody<GoOn>,
) -> Result<Json<Run>, Problem> {
    let GoOn { force_steps, expected_hash, strict } = go_on;
    let hash =
        |text: &String| Hash::from_hex(text).ok_or_else(|| Problem::bad("`expected_hash` is not a hash"));
    let expected_hash = expected_hash.as_ref().map(hash).transpose()?;
    user.resume(run, Resume { force_steps, expected_hash, strict }).await?;
    shown(&user, run).await
}

pub(super) async fn intervene(
    Asker(user): Asker,
    OfRun(run): OfRun,
    Body(change): Body<InterventionRequest>,
) -> Result<Json<Run>, Problem> {
    user.intervene(run, change).await?;
    shown(&user, run).await
}

async fn rerun(
    Asker(user): Asker,
    OfRun(run): OfRun,
    OptionalBody(again): OptionalBody<Again>,
) -> Result<Response, Problem> {
    let reuse = again.reuse.then_some(again.run_anew);
    let started = user.via("rest").rerun(run, reuse).await?.id();
    Ok((StatusCode::CREATED, shown(&user, started).await?).into_response())
}

async fn signal(
    Asker(user): Asker,
    OfRun(run): OfRun,
    Body(signal): Body<Signal>,
) -> Result<Json<Reached>, Problem> {
    let signal = signal.checked()?;
    let runs = user.signal(&signal.event, signal.payload, Some(run)).await?;
    Ok(Json(Reached { runs }))
}

async fn broadcast(Asker(user): Asker, Body(signal): Body<Signal>) -> Result<Json<Reached>, Problem> {
    let signal = signal.checked()?;
    let runs = user.signal(&signal.event, signal.payload, None).await?;
    Ok(Json(Reached { runs }))
}

/// The run as it stands then: whoever may change it may see it.
async fn shown(user: &User, run: RunId) -> Result<Json<Run>, Problem> {
    Ok(Json(Run::full(user.status(run).await?)))
}
