//! Routes in the words of older systems, so that what was written for those goes on working. Each does what one of
//! `/api/v1` does, with the same rights.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use steprail_engine::{InterventionRequest, KindName, ListRuns, RunId, StepRow, StepStatus, User};

use super::control;
use super::runs::{self, Start};
use super::schedules::Planned;
use crate::http::App;
use crate::http::api::{Api, delete, get, post};
use crate::http::extract::{Args, Asker, Body, Named, OfRun, OptionalBody};
use crate::http::problem::Problem;
use crate::view::{Page, Run, Schedule};

const TAG: &str = "older words";

pub(super) fn routes(api: Api) -> Api {
    let run = "The run.";
    api.route(TAG, get("/api/workflows", "List runs").query::<Newest>().gives::<Page<Run>>(200, "Newest first."), list)
        .route(TAG, post("/api/workflows", "Start a run").body::<Create>().gives::<Started>(201, "It was started."), create)
        .route(TAG, get("/api/workflows/{run_id}", "A run").gives::<Run>(200, run), show)
        .route(TAG, delete("/api/workflows/{run_id}", "Cancel a run").gives::<Run>(200, run), cancel)
        .route(TAG, post("/api/workflows/{run_id}/interrupt", "Pause a run").gives::<Run>(200, run), control::pause)
        .route(TAG, post("/api/workflows/{run_id}/resume", "Resume a run").optional_body::<control::GoOn>().gives::<Run>(200, run), control::resume)
        .route(TAG, post("/api/workflows/{run_id}/intervene", "InterventionRequest a run that is under way").body::<InterventionRequest>().gives::<Run>(200, run), control::intervene)
        .route(TAG, get("/api/workflows/recurring", "List schedules").gives::<Page<Schedule>>(200, "By name."), recurring)
        .route(TAG, post("/api/workflows/recurring", "Store a schedule").body::<Recurring>().gives::<Schedule>(201, "The schedule."), recur)
        .route(TAG, delete("/api/workflows/recurring/{name}", "Delete a schedule").gives_nothing(204, "It starts nothing any more."), recur_no_more)
        .route(TAG, get("/api/workflow", "List runs").query::<Newest>().gives::<Page<Run>>(200, "Newest first."), list)
        .route(TAG, post("/api/workflow", "Start a run").body::<Create>().gives::<Started>(201, "It was started."), create)
        .route(TAG, get("/api/workflow/{id}", "A run").gives::<Run>(200, run), show)
        .route(TAG, post("/api/workflow/{id}/ready", "Something that a step waits for has happened").more("The id is a step's `step_id`. A gate is approved by it, which takes the right to decide; a step that waits for an event gets it, with the body as what it carries.").optional_body::<Map<String, Value>>().gives::<Run>(200, run), ready)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Newest {
    /// At most so many; 50 by default.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

/// A definition and its inputs.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    /// What it is called; without `flow`, the stored definition to run.
    name: Option<String>,
    /// The definition: a map, or a list of steps.
    flow: Option<Value>,
    /// The same.
    steps: Option<Vec<Value>>,
    /// The inputs.
    #[serde(default)]
    input: Map<String, Value>,
}

/// A run that was started.
#[derive(Serialize, JsonSchema)]
struct Started {
    #[schemars(with = "String", extend("format" = "uuid"))]
    id: RunId,
    /// `started`.
    status: &'static str,
}

#[derive(Deserialize, JsonSchema)]
struct Recurring {
    /// What it is called.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    #[serde(flatten)]
    planned: Planned,
}

async fn list(Asker(user): Asker, Args(newest): Args<Newest>) -> Result<Json<Page<Run>>, Problem> {
    let limit = super::definitions::limit(newest.limit, 50)?;
    let rows = user.list(ListRuns { limit, brief: true, ..ListRuns::default() }).await?;
    Ok(Json(Page { items: rows.into_iter().map(Run::brief).collect(), next: None }))
}

async fn create(
    State(app): State<App>,
    Asker(user): Asker,
    Body(create): Body<Create>,
) -> Result<Response, Problem> {
    let Create { name, flow, steps, input } = create;
    let text = flow.or_else(|| steps.map(Value::from)).map(|flow| flow.to_string());
    let (name, source) = if text.is_some() { (None, name) } else { (name, None) };
    let start = Start { name, text, source, input, ..Start::default() };
    let id = runs::start(&app, &user, start, None).await?;
    Ok((StatusCode::CREATED, Json(Started { id, status: "started" })).into_response())
}

async fn show(Asker(user): Asker, OfRun(run): OfRun) -> Result<Json<Run>, Problem> {
    Ok(Json(Run::full(user.status(run).await?)))
}

async fn cancel(Asker(user): Asker, OfRun(run): OfRun) -> Result<Json<Run>, Problem> {
    user.cancel(run, "cancelled by its user").await?;
    Ok(Json(Run::full(user.status(run).await?)))
}

async fn recurring(Asker(user): Asker) -> Result<Json<Page<Schedule>>, Problem> {
    let items = user.schedules().await?.into_iter().map(Schedule::from).collect();
    Ok(Json(Page { items, next: None }))
}

async fn recur(Asker(user): Asker, Body(recurring): Body<Recurring>) -> Result<Response, Problem> {
    let schedule = user.schedule(recurring.planned.named(&recurring.name)).await?;
    Ok((StatusCode::CREATED, Json(Schedule::from(schedule))).into_response())
}

async fn recur_no_more(Asker(user): Asker, Named(name): Named) -> Result<StatusCode, Problem> {
    user.unschedule(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn ready(
    Asker(user): Asker,
    Named(id): Named,
    OptionalBody(carried): OptionalBody<Map<String, Value>>,
) -> Result<Json<Run>, Problem> {
    let (run, step) = find(&user, &id).await?;
    match (step.kind, step.status) {
        (KindName::Wait, StepStatus::Waiting) => {
            let event = event_of(&user, run, &step).await?;
            user.signal(&event, Value::Object(carried), Some(run)).await?;
        }
        (KindName::Approve, StepStatus::Waiting) => user.decide(run, &step.path, true, None, None).await?,
        (kind, status) => {
            let detail = format!(
                "`{}` is a {} step that is {}: it waits for nothing from outside",
                step.path,
                kind.word(),
                status.word()
            );
            return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
        }
    }
    Ok(Json(Run::full(user.status(run).await?)))
}

/// The step attempt that an id names: `run:n:attempt`.
async fn find(user: &User, id: &str) -> Result<(RunId, StepRow), Problem> {
    let none = || Problem::not_found(format!("there is no step `{id}`"));
    let mut parts = id.split(':');
    let run: RunId = parts.next().and_then(|run| run.parse().ok()).ok_or_else(none)?;
    let (n, attempt) = (parts.next(), parts.next());
    let is_it = |step: &StepRow| {
        n == Some(&*step.n.to_string()) && attempt.is_none_or(|attempt| *attempt == step.attempt.to_string())
    };
    let steps = user.status(run).await?.steps;
    steps.into_iter().find(is_it).map(|step| (run, step)).ok_or_else(none)
}

/// The event that a step waits for.
async fn event_of(user: &User, run: RunId, step: &StepRow) -> Result<String, Problem> {
    let mut after = 0;
    loop {
        let page = user.events(run, after, 1_000).await?.events;
        let waited = page.iter().find_map(|stored| match &stored.event {
            steprail_engine::Event::StepStarted {
                step: it,
                what: steprail_core::run::Started::Wait { event, .. },
                ..
            } if it.n == step.n => Some(event.to_string()),
            _ => None,
        });
        match (waited, page.last()) {
            (Some(event), _) => return Ok(event),
            (None, Some(last)) => after = last.seq,
            (None, None) => return Err(Problem::not_found(format!("`{}` waits for no event", step.path))),
        }
    }
}
