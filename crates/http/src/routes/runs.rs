//! Runs: started, listed, shown.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use steprail_core::source::Source;
use steprail_engine::{ListRuns, Right, RunId, RunStatus, User, Workflow};
use steprail_mcp::{check_tools, require_valid};

use super::run_view::Run;
use crate::App;
use crate::api::{Api, get, post};
use crate::extract::{Body, Caller, QueryParams, RunParam};
use crate::page::{self, Page};
use crate::problem::Problem;

const TAG: &str = "runs";
/// The maximum of `wait_s`.
const WAIT_SECS: f64 = 60.0;

pub(super) fn routes(api: Api) -> Api {
    let start = post("/api/v1/runs", "Start a run")
        .details("The run is durable when the response is sent. With `wait_s`, the response is sent when the run ends or needs a person, and contains its first steps.")
        .header("Idempotency-Key", "A repeated start with the same key returns the first run.")
        .body::<StartRequest>()
        .returns::<Run>(201, "The run.");
    api.route(
        TAG,
        get("/api/v1/runs", "List runs")
            .query::<ListQuery>()
            .returns::<Page<Run>>(200, "Newest first: your own, or those of all users if you may view them."),
        list,
    )
    .route(TAG, start, start_run)
    .route(
        TAG,
        get("/api/v1/runs/{run_id}", "Get a run")
            .query::<WaitQuery>()
            .returns::<Run>(200, "The run with the first page of its steps."),
        show,
    )
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// Only runs with this status.
    status: Option<RunStatus>,
    /// Only runs of this definition.
    name: Option<String>,
    /// Only runs of this user.
    user: Option<String>,
    /// `next` of the previous page.
    cursor: Option<String>,
    /// Maximum number of runs; 100 by default.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

/// A run to start, of a stored definition or of the definition in the request.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StartRequest {
    /// Name of a stored definition.
    pub name: Option<String>,
    /// Version of the stored definition; the newest by default.
    pub version: Option<u32>,
    /// Definition as a map, instead of a name.
    pub spec: Option<Map<String, Value>>,
    /// Definition as YAML or JSON text, instead of a name.
    pub text: Option<String>,
    /// File name of `text`; names the definition if it has no `name`.
    pub source: Option<String>,
    /// Inputs of the run.
    pub input: Map<String, Value>,
    /// A repeated start with the same key returns the first run.
    #[schemars(length(max = 256))]
    pub idempotency_key: Option<String>,
    /// Seconds to wait until the run ends or needs a person, up to 60; 0 by default.
    #[schemars(range(min = 0, max = 60))]
    pub wait_s: Option<f64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WaitQuery {
    /// Seconds to wait until the run ends or needs a person, up to 60; 0 by default.
    #[schemars(range(min = 0, max = 60))]
    wait_s: Option<f64>,
    /// With `wait_s`: wait for an event after this number instead.
    since: Option<u64>,
}

async fn list(
    Caller(user): Caller,
    QueryParams(list): QueryParams<ListQuery>,
) -> Result<Json<Page<Run>>, Problem> {
    let limit = page::limit(list.limit, 100)?;
    let filter = ListRuns {
        status: list.status,
        created_by: list.user,
        name: list.name,
        before: page::cursor(list.cursor.as_deref())?,
        limit: limit + 1,
        brief: true,
        ..ListRuns::default()
    };
    let mut rows = user.list(filter).await?;
    let is_last = rows.len() <= limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| !is_last).map(|last| last.cursor.to_string());
    Ok(Json(Page { items: Run::summaries(&user, rows).await?, next }))
}

async fn start_run(
    State(app): State<App>,
    Caller(user): Caller,
    headers: HeaderMap,
    Body(start): Body<StartRequest>,
) -> Result<Response, Problem> {
    let key = headers.get("idempotency-key").map(|key| key.to_str().unwrap_or_default().to_owned());
    let wait = start.wait_s;
    let traced = user.traced(headers.get("traceparent").and_then(|parent| parent.to_str().ok()));
    let run = self::start(&app, &traced, start, key).await?;
    let run = match wait {
        None => Run::summary(user.row(run).await?),
        wait => run_after_wait(&user, run, wait, None).await?,
    };
    let location = format!("/api/v1/runs/{}", run.run_id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(run)).into_response())
}

pub(super) async fn start(
    app: &App,
    user: &User,
    start: StartRequest,
    key: Option<String>,
) -> Result<RunId, Problem> {
    let text = match (start.spec, start.text) {
        (Some(_), Some(_)) => return Err(Problem::bad("`spec` and `text` cannot be used together")),
        (Some(spec), None) => Some(Value::Object(spec).to_string()),
        (None, text) => text,
    };
    let source = start.source.unwrap_or_else(|| "definition".to_owned());
    let (workflow, source) = match (start.name, text) {
        (Some(name), None) => (Workflow::Named(name, start.version), None),
        (None, Some(text)) => {
            let source_text = Source::new(&*source, &*text);
            user.require(Right::Workflow)?;
            // A mismatch with the tools must fail the start, not a later call.
            if let Some(gateway) = &app.gateway {
                require_valid(&check_tools(&source_text, gateway).await)
                    .map_err(|error| Problem::of_definition(error, &source_text))?;
            }
            (Workflow::Inline { text, source }, Some(source_text))
        }
        _ => {
            return Err(Problem::bad(
                "send either the `name` of a definition, or a definition as `spec` or `text`",
            ));
        }
    };
    let key = key.or(start.idempotency_key);
    if key.as_ref().is_some_and(|key| key.is_empty() || key.len() > 256) {
        return Err(Problem::bad("an idempotency key has 1 to 256 bytes"));
    }
    let started = user.via("rest").start(workflow, Value::Object(start.input), key).await;
    let run = started.map_err(|error| match &source {
        Some(source) => Problem::of_definition(error, source),
        None => error.into(),
    })?;
    Ok(run.id())
}

async fn show(
    Caller(user): Caller,
    RunParam(run): RunParam,
    QueryParams(wait): QueryParams<WaitQuery>,
) -> Result<Json<Run>, Problem> {
    run_after_wait(&user, run, wait.wait_s, wait.since).await.map(Json)
}

/// The run, after waiting as requested.
async fn run_after_wait(
    user: &User,
    run: RunId,
    wait_s: Option<f64>,
    since: Option<u64>,
) -> Result<Run, Problem> {
    if let Some(wait_s) = wait_s {
        if !(0.0..=WAIT_SECS).contains(&wait_s) {
            return Err(Problem::bad(format!("`wait_s` must be a number from 0 to {WAIT_SECS}")));
        }
        user.wait(run, since, Duration::from_secs_f64(wait_s)).await?;
    }
    let mut view = Run::load(user, run).await?;
    for approval in view.approvals.iter_mut().flatten() {
        approval.may_decide = Some(user.may_decide(approval.run_id, &approval.step).await);
    }
    Ok(view)
}
