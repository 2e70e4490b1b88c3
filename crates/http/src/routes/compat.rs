//! Compatibility routes under `/api/workflow(s)`. Each does the same as a route of `/api/v1`, with the same rights.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use steprail_engine::{
    After, InterventionRequest, KindName, ListRuns, ListSteps, RunId, StepCursor, StepRow, StepStatus, User,
};

use super::control;
use super::run_view::Run;
use super::runs::{self, StartRequest};
use super::schedules::{Schedule, ScheduleRequest};
use crate::App;
use crate::api::{Api, delete, get, post};
use crate::extract::{Body, Caller, NameParam, OptionalBody, QueryParams, RunParam};
use crate::page::{self, Page};
use crate::problem::Problem;

const TAG: &str = "compatibility";

pub(super) fn routes(api: Api) -> Api {
    let run = "The run.";
    api.route(TAG, get("/api/workflows", "List runs").query::<ListQuery>().returns::<Page<Run>>(200, "Newest first."), list)
        .route(TAG, post("/api/workflows", "Start a run").body::<CreateRequest>().returns::<StartedRun>(201, "The run was started."), create)
        .route(TAG, get("/api/workflows/{run_id}", "Get a run").returns::<Run>(200, run), show)
        .route(TAG, delete("/api/workflows/{run_id}", "Cancel a run").returns::<Run>(200, run), cancel)
        .route(TAG, post("/api/workflows/{run_id}/interrupt", "Pause a run").returns::<Run>(200, run), control::pause)
        .route(TAG, post("/api/workflows/{run_id}/resume", "Resume a run").optional_body::<control::ResumeRequest>().returns::<Run>(200, run), control::resume)
        .route(TAG, post("/api/workflows/{run_id}/intervene", "Intervene in a run").body::<InterventionRequest>().returns::<Run>(200, run), control::intervene)
        .route(TAG, get("/api/workflows/recurring", "List schedules").returns::<Page<Schedule>>(200, "By name."), recurring)
        .route(TAG, post("/api/workflows/recurring", "Store a schedule").body::<RecurringRequest>().returns::<Schedule>(201, "The schedule."), put_recurring)
        .route(TAG, delete("/api/workflows/recurring/{name}", "Delete a schedule").returns_empty(204, "The schedule is deleted."), delete_recurring)
        .route(TAG, get("/api/workflow", "List runs").query::<ListQuery>().returns::<Page<Run>>(200, "Newest first."), list)
        .route(TAG, post("/api/workflow", "Start a run").body::<CreateRequest>().returns::<StartedRun>(201, "The run was started."), create)
        .route(TAG, get("/api/workflow/{id}", "Get a run").returns::<Run>(200, run), show)
        .route(TAG, post("/api/workflow/{id}/ready", "Complete a waiting step").details("The id is the `step_id` of a step. Approves a gate, which needs the right to decide, or sends the signal that the step waits for, with the body as its payload.").optional_body::<Map<String, Value>>().returns::<Run>(200, run), ready)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// Maximum number of runs; 50 by default.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

/// A run to start.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateRequest {
    /// Name of the definition in `flow`, or of a stored definition.
    name: Option<String>,
    /// Definition: a map, or a list of steps.
    flow: Option<Value>,
    /// Alias of `flow`.
    steps: Option<Vec<Value>>,
    /// Inputs of the run.
    #[serde(default)]
    input: Map<String, Value>,
}

/// A started run.
#[derive(Serialize, JsonSchema)]
struct StartedRun {
    #[schemars(with = "String", extend("format" = "uuid"))]
    id: RunId,
    /// Always `started`.
    status: &'static str,
}

#[derive(Deserialize, JsonSchema)]
struct RecurringRequest {
    /// Name of the schedule.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    #[serde(flatten)]
    schedule: ScheduleRequest,
}

async fn list(
    Caller(user): Caller,
    QueryParams(query): QueryParams<ListQuery>,
) -> Result<Json<Page<Run>>, Problem> {
    let limit = page::limit(query.limit, 50)?;
    let rows = user.list(ListRuns { limit, brief: true, ..ListRuns::default() }).await?;
    Ok(Json(Page::single(Run::summaries(&user, rows).await?)))
}

async fn create(
    State(app): State<App>,
    Caller(user): Caller,
    Body(create): Body<CreateRequest>,
) -> Result<Response, Problem> {
    let CreateRequest { name, flow, steps, input } = create;
    let text = flow.or_else(|| steps.map(Value::from)).map(|flow| flow.to_string());
    let (name, source) = if text.is_some() { (None, name) } else { (name, None) };
    let start = StartRequest { name, text, source, input, ..StartRequest::default() };
    let id = runs::start(&app, &user, start, None).await?;
    Ok((StatusCode::CREATED, Json(StartedRun { id, status: "started" })).into_response())
}

async fn show(Caller(user): Caller, RunParam(run): RunParam) -> Result<Json<Run>, Problem> {
    Ok(Json(Run::load(&user, run).await?))
}

async fn cancel(Caller(user): Caller, RunParam(run): RunParam) -> Result<Json<Run>, Problem> {
    user.cancel(run, "cancelled by its user").await?;
    Ok(Json(Run::load(&user, run).await?))
}

async fn recurring(Caller(user): Caller) -> Result<Json<Page<Schedule>>, Problem> {
    let items = user.schedules().await?.into_iter().map(Schedule::from).collect();
    Ok(Json(Page::single(items)))
}

async fn put_recurring(
    Caller(user): Caller,
    Body(recurring): Body<RecurringRequest>,
) -> Result<Response, Problem> {
    let schedule = user.schedule(recurring.schedule.named(&recurring.name)).await?;
    Ok((StatusCode::CREATED, Json(Schedule::from(schedule))).into_response())
}

async fn delete_recurring(Caller(user): Caller, NameParam(name): NameParam) -> Result<StatusCode, Problem> {
    user.unschedule(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn ready(
    Caller(user): Caller,
    NameParam(id): NameParam,
    OptionalBody(payload): OptionalBody<Map<String, Value>>,
) -> Result<Json<Run>, Problem> {
    let (run, step) = find(&user, &id).await?;
    match (step.kind, step.status) {
        (KindName::Wait, StepStatus::Waiting) => {
            let event = event_of(&user, run, &step).await?;
            user.signal(&event, Value::Object(payload), Some(run)).await?;
        }
        (KindName::Approve, StepStatus::Waiting) => user.decide(run, &step.path, true, None, None).await?,
        (kind, status) => {
            let detail = format!(
                "step `{}` ({}) is {} and does not wait for an approval or a signal",
                step.path,
                kind.name(),
                status.name()
            );
            return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
        }
    }
    Ok(Json(Run::load(&user, run).await?))
}

/// The step attempt with the id `run:execution:attempt`.
async fn find(user: &User, id: &str) -> Result<(RunId, StepRow), Problem> {
    let none = || Problem::not_found(format!("there is no step `{id}`"));
    let mut parts = id.split(':');
    let run: RunId = parts.next().and_then(|run| run.parse().ok()).ok_or_else(none)?;
    let (n, attempt) = (parts.next(), parts.next());
    let number = |text: &str| text.parse::<u32>().map_err(|_| none());
    let first = n.map(number).transpose()?.ok_or_else(none)?;
    let before = attempt.map(number).transpose()?.unwrap_or(1).saturating_sub(1);
    let matches = |step: &StepRow| {
        n == Some(&*step.n.to_string()) && attempt.is_none_or(|attempt| *attempt == step.attempt.to_string())
    };
    let after = Some(StepCursor::new(first, before));
    let page = user.steps(run, ListSteps { after, limit: 1, ..ListSteps::default() }).await?;
    page.steps.into_iter().find(matches).map(|step| (run, step)).ok_or_else(none)
}

/// Name of the signal that a step waits for.
async fn event_of(user: &User, run: RunId, step: &StepRow) -> Result<String, Problem> {
    let mut after = After::Seq(0);
    loop {
        let page = user.events(run, after, 1_000).await?.events;
        let event = page.iter().find_map(|stored| {
            let change = stored.event.changes().step.filter(|change| change.step.n == step.n)?;
            change.wait.map(str::to_owned)
        });
        match (event, page.last()) {
            (Some(event), _) => return Ok(event),
            (None, Some(last)) => after = After::Seq(last.seq),
            (None, None) => {
                return Err(Problem::not_found(format!("step `{}` does not wait for a signal", step.path)));
            }
        }
    }
}
