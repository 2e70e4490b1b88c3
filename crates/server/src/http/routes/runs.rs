//! Runs: started, listed, looked at, followed.

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
use steprail_mcp::{fitting, need_sound};

use super::definitions::limit;
use crate::http::App;
use crate::http::api::{Api, get, post};
use crate::http::extract::{Args, Asker, Body, OfRun};
use crate::http::problem::Problem;
use crate::http::stream;
use crate::view::{Event, Page, Run};

const TAG: &str = "runs";
/// Seconds that a request waits for a run at most.
const WAIT_SECS: f64 = 60.0;

pub(super) fn routes(api: Api) -> Api {
    let start = post("/api/v1/runs", "Start a run")
        .more("The run is durable when this answers, with little more than its id. With `wait_s` the answer waits for its end, or until it needs somebody, and tells all.")
        .header("Idempotency-Key", "A second start with the same key is the first run.")
        .body::<Start>()
        .gives::<Run>(201, "The run.");
    let stream_of_run = get("/api/v1/runs/{run_id}/stream", "Follow a run")
        .more("Server-sent events, from the first event or after `Last-Event-ID`; it ends with the run.")
        .query::<stream::From>()
        .gives_nothing(200, "Events, as `text/event-stream`.")
        .gives_nothing(204, "The run has ended, and its last event is known.");
    let stream_of_all = get("/api/v1/stream", "Follow everything")
        .more("Server-sent events of every run that you may see, from now on or after `Last-Event-ID`.")
        .query::<stream::From>()
        .gives_nothing(200, "Events, as `text/event-stream`.");
    api.route(
        TAG,
        get("/api/v1/runs", "List runs")
            .query::<List>()
            .gives::<Page<Run>>(200, "Newest first: your own, or everybody's if you may see them."),
        list,
    )
    .route(TAG, start, begin)
    .route(
        TAG,
        get("/api/v1/runs/{run_id}", "A run")
            .query::<Wait>()
            .gives::<Run>(200, "The run, with every attempt of its steps."),
        show,
    )
    .route(
        TAG,
        get("/api/v1/runs/{run_id}/events", "Events of a run")
            .query::<After>()
            .gives::<Page<Event>>(200, "In order."),
        events,
    )
    .route(TAG, stream_of_run, stream::run)
    .route(TAG, stream_of_all, stream::everything)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// Only those with this status.
    status: Option<RunStatus>,
    /// Only those of this definition.
    name: Option<String>,
    /// Only those of this user.
    user: Option<String>,
    /// Where to go on: `next` of the page before.
    #[schemars(extend("format" = "uuid"))]
    cursor: Option<String>,
    /// At most so many; 100 by default.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

/// What to start: a stored definition by its name, or one that comes along.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Start {
    /// The name of a stored definition.
    pub name: Option<String>,
    /// A version of it; the newest by default.
    pub version: Option<u32>,
    /// A definition as a map, instead of a name.
    pub spec: Option<Map<String, Value>>,
    /// A definition as YAML or JSON text, instead of a name.
    pub text: Option<String>,
    /// What it is called if it has no name: that of its file.
    pub source: Option<String>,
    /// The inputs.
    pub input: Map<String, Value>,
    /// A second start with the same key is the first run.
    #[schemars(length(max = 256))]
    pub idempotency_key: Option<String>,
    /// Seconds to wait for its end, up to 60; none by default.
    #[schemars(range(min = 0, max = 60))]
    pub wait_s: Option<f64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wait {
    /// Seconds to wait for its end, or until it needs somebody, up to 60; none by default.
    #[schemars(range(min = 0, max = 60))]
    wait_s: Option<f64>,
    /// With `wait_s`: until there is an event after this one.
    since: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct After {
    /// Events after this number; all by default.
    pub after: Option<u64>,
    /// At most so many; 100 by default.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<usize>,
}

async fn list(Asker(user): Asker, Args(list): Args<List>) -> Result<Json<Page<Run>>, Problem> {
    let limit = limit(list.limit, 100)?;
    let before = match &list.cursor {
        None => None,
        Some(cursor) => {
            let bad = || Problem::bad("the cursor is not one of ours");
            let run: RunId = cursor.parse().map_err(|_| bad())?;
            Some(user.row(run).await.map_err(|_| bad())?.key)
        }
    };
    let wanted = ListRuns {
        status: list.status,
        created_by: list.user,
        name: list.name,
        before,
        limit: limit + 1,
        brief: true,
    };
    let mut rows = user.list(wanted).await?;
    let is_last = rows.len() <= limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| !is_last).map(|last| last.run_id.to_string());
    Ok(Json(Page { items: rows.into_iter().map(Run::brief).collect(), next }))
}

async fn begin(
    State(app): State<App>,
    Asker(user): Asker,
    headers: HeaderMap,
    Body(start): Body<Start>,
) -> Result<Response, Problem> {
    let key = headers.get("idempotency-key").map(|key| key.to_str().unwrap_or_default().to_owned());
    let wait = start.wait_s;
    let traced = user.traced(headers.get("traceparent").and_then(|parent| parent.to_str().ok()));
    let run = self::start(&app, &traced, start, key).await?;
    let run = match wait {
        None => Run::brief(user.row(run).await?),
        wait => look(&user, run, wait, None).await?,
    };
    let place = format!("/api/v1/runs/{}", run.run_id);
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], Json(run)).into_response())
}

/// Starts what is asked for.
pub(super) async fn start(
    app: &App,
    user: &User,
    start: Start,
    key: Option<String>,
) -> Result<RunId, Problem> {
    let text = match (start.spec, start.text) {
        (Some(_), Some(_)) => return Err(Problem::bad("give `spec` or `text`, not both")),
        (Some(spec), None) => Some(Value::Object(spec).to_string()),
        (None, text) => text,
    };
    let source = start.source.unwrap_or_else(|| "definition".to_owned());
    let (workflow, source) = match (start.name, text) {
        (Some(name), None) => (Workflow::Named(name, start.version), None),
        (None, Some(text)) => {
            let shown = Source::new(&*source, &*text);
            user.require(Right::Workflow)?;
            // Before the first call, and not when a later one fails.
            if let Some(gateway) = &app.gateway {
                need_sound(&fitting(&shown, gateway).await)
                    .map_err(|error| Problem::of_definition(error, &shown))?;
            }
            (Workflow::Inline { text, source }, Some(shown))
        }
        _ => {
            return Err(Problem::bad("give the name of a definition, or one definition as `spec` or `text`"));
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

async fn show(Asker(user): Asker, OfRun(run): OfRun, Args(wait): Args<Wait>) -> Result<Json<Run>, Problem> {
    look(&user, run, wait.wait_s, wait.since).await.map(Json)
}

/// A run, perhaps after waiting for news of it.
async fn look(user: &User, run: RunId, wait_s: Option<f64>, since: Option<u64>) -> Result<Run, Problem> {
    if let Some(wait_s) = wait_s {
        if !(0.0..=WAIT_SECS).contains(&wait_s) {
            return Err(Problem::bad(format!("`wait_s` is a number from 0 to {WAIT_SECS}")));
        }
        user.wait(run, since, Duration::from_secs_f64(wait_s)).await?;
    }
    let mut found = Run::full(user.status(run).await?);
    for open in found.approvals.iter_mut().flatten() {
        open.may_decide = Some(user.may_decide(open.run_id, &open.step).await);
    }
    Ok(found)
}

async fn events(
    Asker(user): Asker,
    OfRun(run): OfRun,
    Args(args): Args<After>,
) -> Result<Json<Page<Event>>, Problem> {
    let limit = limit(args.limit, 100)?;
    let page = user.events(run, args.after.unwrap_or_default(), limit).await?;
    Ok(Json(Page::of_events(page, |last| last.seq.to_string())))
}
