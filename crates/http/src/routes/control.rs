//! Control of runs: cancel, pause, resume, intervene, rerun, signal.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_engine::{InterventionRequest, Resume, RunId, User};

use super::run_view::Run;
use crate::api::{Api, post};
use crate::extract::{Body, Caller, OptionalBody, RunParam};
use crate::problem::Problem;

const TAG: &str = "runs";

pub(super) fn routes(api: Api) -> Api {
    let changed = "The run after the change.";
    api.route(TAG, post("/api/v1/runs/{run_id}/cancel", "Cancel a run").details("Stops the run and everything in it. This is final.").optional_body::<CancelRequest>().returns::<Run>(200, changed), cancel)
        .route(TAG, post("/api/v1/runs/{run_id}/pause", "Pause a run").details("No further step starts; calls in flight finish.").returns::<Run>(200, changed), pause)
        .route(TAG, post("/api/v1/runs/{run_id}/resume", "Resume a paused or interrupted run").optional_body::<ResumeRequest>().returns::<Run>(200, changed), resume)
        .route(TAG, post("/api/v1/runs/{run_id}/intervene", "Intervene in a run").details("For people: sets arguments, outputs or inputs, skips a step, supplies its result, or resolves a call with an unknown outcome.").body::<InterventionRequest>().returns::<Run>(200, changed), intervene)
        .route(TAG, post("/api/v1/runs/{run_id}/rerun", "Rerun an ended run").optional_body::<RerunRequest>().returns::<Run>(201, "The new run."), rerun)
        .route(TAG, post("/api/v1/runs/{run_id}/signal", "Signal a run").details("The signal is stored until a step waits for it.").body::<SignalRequest>().returns::<SignalResult>(200, "The event was delivered."), signal)
        .route(TAG, post("/api/v1/signals", "Signal every run that waits for it").body::<SignalRequest>().returns::<SignalResult>(200, "The number of runs that received it."), broadcast)
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
struct CancelRequest {
    /// Reason, for the log.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ResumeRequest {
    /// Paths of steps whose calls are repeated although their outcome is unknown.
    force_steps: Vec<String>,
    /// Fails unless the definition of the run has this hash.
    expected_hash: Option<String>,
    /// Fails if a call has an unknown outcome and is not in `force_steps`.
    strict: bool,
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
struct RerunRequest {
    /// Reuses the results of calls that succeeded with the same arguments.
    reuse: bool,
    /// With `reuse`: paths of steps that are executed again.
    run_anew: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SignalRequest {
    /// Name of the signal.
    #[schemars(length(min = 1, max = 256))]
    event: String,
    /// Payload of the signal.
    #[serde(default)]
    payload: Value,
}

impl SignalRequest {
    fn checked(self) -> Result<Self, Problem> {
        match self.event.chars().count() {
            1..=256 => Ok(self),
            _ => Err(Problem::bad("the name of a signal has 1 to 256 characters")),
        }
    }
}

/// The number of runs that received a signal.
#[derive(Serialize, JsonSchema)]
struct SignalResult {
    /// Number of runs.
    runs: usize,
}

async fn cancel(
    Caller(user): Caller,
    RunParam(run): RunParam,
    OptionalBody(request): OptionalBody<CancelRequest>,
) -> Result<Json<Run>, Problem> {
    user.cancel(run, request.reason.as_deref().unwrap_or("cancelled by its user")).await?;
    current(&user, run).await
}

pub(super) async fn pause(Caller(user): Caller, RunParam(run): RunParam) -> Result<Json<Run>, Problem> {
    user.pause(run).await?;
    current(&user, run).await
}

pub(super) async fn resume(
    Caller(user): Caller,
    RunParam(run): RunParam,
    OptionalBody(request): OptionalBody<ResumeRequest>,
) -> Result<Json<Run>, Problem> {
    let ResumeRequest { force_steps, expected_hash, strict } = request;
    let hash = |text: &String| {
        Hash::from_hex(text).ok_or_else(|| Problem::bad("`expected_hash` is not a SHA-256 hash"))
    };
    let expected_hash = expected_hash.as_ref().map(hash).transpose()?;
    user.resume(run, Resume { force_steps, expected_hash, strict }).await?;
    current(&user, run).await
}

pub(super) async fn intervene(
    Caller(user): Caller,
    RunParam(run): RunParam,
    Body(request): Body<InterventionRequest>,
) -> Result<Json<Run>, Problem> {
    user.intervene(run, request).await?;
    current(&user, run).await
}

async fn rerun(
    Caller(user): Caller,
    RunParam(run): RunParam,
    OptionalBody(request): OptionalBody<RerunRequest>,
) -> Result<Response, Problem> {
    let reuse = request.reuse.then_some(request.run_anew);
    let started = user.via("rest").rerun(run, reuse).await?.id();
    Ok((StatusCode::CREATED, current(&user, started).await?).into_response())
}

async fn signal(
    Caller(user): Caller,
    RunParam(run): RunParam,
    Body(signal): Body<SignalRequest>,
) -> Result<Json<SignalResult>, Problem> {
    let signal = signal.checked()?;
    let runs = user.signal(&signal.event, signal.payload, Some(run)).await?;
    Ok(Json(SignalResult { runs }))
}

async fn broadcast(
    Caller(user): Caller,
    Body(signal): Body<SignalRequest>,
) -> Result<Json<SignalResult>, Problem> {
    let signal = signal.checked()?;
    let runs = user.signal(&signal.event, signal.payload, None).await?;
    Ok(Json(SignalResult { runs }))
}

async fn current(user: &User, run: RunId) -> Result<Json<Run>, Problem> {
    Ok(Json(Run::load(user, run).await?))
}
