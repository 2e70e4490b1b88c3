//! Definitions: stored, checked, listed, published, deleted.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use steprail_core::diagnostic::{Diagnostic, Severity};
use steprail_core::source::Source;
use steprail_engine::{Error, Right};
use steprail_mcp::{examine, need_sound};

use crate::http::App;
use crate::http::api::{Api, delete, get, post, put};
use crate::http::extract::{Args, Asker, Body, Named, Text};
use crate::http::problem::Problem;
use crate::view::{Definition, Page};

const TAG: &str = "definitions";
const YAML: &[&str] = &["application/yaml", "text/plain"];

pub(super) fn routes(api: Api) -> Api {
    let define = post("/api/v1/definitions", "Store a definition")
        .more(
            "The same content is the same version; other content is a new one, and runs that are under way keep theirs. \
             Send `If-Match: \"3\"` to store it only if version 3 is the newest, `If-None-Match: *` only if there is none.",
        )
        .header("If-Match", "The version that it takes the place of, in quotes.")
        .header("If-None-Match", "`*`: only if there is no such definition.")
        .body::<Define>()
        .or_text(YAML)
        .gives::<Defined>(201, "It is stored.");
    let validate = post("/api/v1/definitions/validate", "Check a definition")
        .more("Every problem at once, with its place and what to do. Nothing is stored.")
        .body::<Define>()
        .or_text(YAML)
        .gives::<Checked>(200, "What was found.");
    api.route(
        TAG,
        get("/api/v1/definitions", "List definitions")
            .query::<List>()
            .gives::<Page<Definition>>(200, "The newest version of each, by name."),
        list,
    )
    .route(TAG, define, store)
    .route(TAG, validate, check)
    .route(
        TAG,
        get("/api/v1/definitions/{name}", "A definition").gives::<Definition>(200, "Its newest version."),
        show,
    )
    .route(
        TAG,
        delete("/api/v1/definitions/{name}", "Delete a definition")
            .more("Runs that are under way go on.")
            .gives_nothing(204, "It can no longer be started."),
        remove,
    )
    .route(
        TAG,
        put("/api/v1/definitions/{name}/published", "Offer a definition as a tool, or no longer")
            .body::<Publish>()
            .gives::<Defined>(200, "The version that says so."),
        publish,
    )
    .route(
        TAG,
        get("/api/v1/definitions/{name}/versions", "Versions of a definition")
            .gives::<Page<Definition>>(200, "Newest first."),
        versions,
    )
    .route(
        TAG,
        get("/api/v1/definitions/{name}/versions/{version}", "A version of a definition")
            .gives::<Definition>(200, "The version."),
        show_version,
    )
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// Where to go on: `next` of the page before.
    cursor: Option<String>,
    /// At most so many; 100 by default.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

/// A definition, as a map or as YAML or JSON text.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Define {
    /// The definition as a map.
    spec: Option<Map<String, Value>>,
    /// The definition as YAML or JSON text, instead.
    text: Option<String>,
    /// What it is called where problems are told; `definition` by default.
    #[schemars(length(max = 256))]
    source: Option<String>,
    /// Whether to offer it to agents as a tool; as it says itself by default.
    publish: Option<bool>,
}

/// A version that was stored.
#[derive(Serialize, JsonSchema)]
struct Defined {
    name: String,
    version: u32,
    hash: String,
    /// What is not wrong and could be better.
    warnings: Vec<Value>,
}

/// What is wrong with a definition.
#[derive(Serialize, JsonSchema)]
struct Checked {
    valid: bool,
    problems: Vec<Value>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Publish {
    published: bool,
}

async fn list(Asker(user): Asker, Args(list): Args<List>) -> Result<Json<Page<Definition>>, Problem> {
    let limit = limit(list.limit, 100)?;
    let after = list.cursor.unwrap_or_default();
    let all = user.definitions().await?;
    let mut rest = all.iter().filter(|definition| definition.name > after);
    let items: Vec<Definition> = rest.by_ref().take(limit).map(Definition::brief).collect();
    let next = items.last().filter(|_| rest.next().is_some()).map(|last| last.name.clone());
    Ok(Json(Page { items, next }))
}

/// A number of entries that may be asked for.
pub(super) fn limit(asked: Option<usize>, usual: usize) -> Result<usize, Problem> {
    match asked.unwrap_or(usual) {
        limit @ 1..=1000 => Ok(limit),
        _ => Err(Problem::bad("`limit` is a number from 1 to 1000")),
    }
}

/// The definition with its name in messages, and whether to offer it to agents.
fn definition(text: Text) -> Result<(Source, Option<bool>), Problem> {
    let unnamed = |text: String| Source::new("definition", text);
    if !text.is_json {
        return Ok((unnamed(text.content), None));
    }
    let read: Define = serde_json::from_str(&text.content)
        .map_err(|error| Problem::bad(format!("the body does not fit: {error}")))?;
    let source = match (read.spec, read.text, read.source) {
        (Some(spec), None, _) => unnamed(Value::Object(spec).to_string()),
        (None, Some(text), Some(name)) => Source::new(name, text),
        (None, Some(text), None) => unnamed(text),
        _ => return Err(Problem::bad("give the definition as `spec` or as `text`")),
    };
    Ok((source, read.publish))
}

async fn store(
    State(app): State<App>,
    Asker(user): Asker,
    headers: HeaderMap,
    text: Text,
) -> Result<Response, Problem> {
    let (source, publish) = definition(text)?;
    user.require(Right::Workflow)?;
    let found = examined(&app, &source).await?;
    let _writing = app.defining.lock().await;
    expect(&user, &source, &headers).await?;
    let (defined, _) = user.define(source.text(), publish).await?;
    let place = format!("/api/v1/definitions/{}/versions/{}", defined.name, defined.version);
    let tag = format!("\"{}\"", defined.version);
    let warnings = told(&found, &source);
    let body =
        Defined { name: defined.name, version: defined.version, hash: defined.hash.to_string(), warnings };
    Ok((StatusCode::CREATED, [(header::LOCATION, place), (header::ETAG, tag)], Json(body)).into_response())
}

/// What could be better about a definition, with the tools that are there. One with errors is refused.
pub(super) async fn examined(app: &App, source: &Source) -> Result<Vec<Diagnostic>, Problem> {
    let found = examine(source, app.gateway.as_ref()).await;
    need_sound(&found).map_err(|error| Problem::of_definition(error, source))?;
    Ok(found)
}

/// Whether the newest version is still the one that whoever stores another one has seen.
async fn expect(user: &steprail_engine::User, source: &Source, headers: &HeaderMap) -> Result<(), Problem> {
    let said = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (newest, none) = (said(header::IF_MATCH), said(header::IF_NONE_MATCH));
    let (None, None) = (newest, none) else {
        let Some(plan) = steprail_core::load(source).plan else { return Ok(()) };
        let known = match user.definition(&plan.name, None).await {
            Ok(known) => Some(known.version),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let tag = known.map(|version| format!("\"{version}\""));
        let fits = newest.is_none_or(|newest| tag.as_deref() == Some(newest))
            && (none != Some("*") || known.is_none());
        return if fits { Ok(()) } else { Err(changed(known)) };
    };
    Ok(())
}

fn changed(known: Option<u32>) -> Problem {
    let detail = match known {
        Some(version) => format!("somebody stored it meanwhile: the newest version is {version}"),
        None => "there is no such definition".to_owned(),
    };
    Problem::new(StatusCode::PRECONDITION_FAILED, "changed", detail).hint("read it again, and decide anew")
}

fn told(found: &[Diagnostic], source: &Source) -> Vec<Value> {
    found.iter().filter_map(|problem| serde_json::to_value(problem.finding(source)).ok()).collect()
}

async fn check(State(app): State<App>, Asker(user): Asker, text: Text) -> Result<Json<Checked>, Problem> {
    let (source, _) = definition(text)?;
    user.require(Right::Workflow)?;
    let found = examine(&source, app.gateway.as_ref()).await;
    let valid = found.iter().all(|problem| problem.code.severity() != Severity::Error);
    Ok(Json(Checked { valid, problems: told(&found, &source) }))
}

fn tagged(definition: &steprail_engine::Definition) -> Response {
    let tag = format!("\"{}\"", definition.version);
    ([(header::ETAG, tag)], Json(Definition::full(definition))).into_response()
}

async fn show(Asker(user): Asker, Named(name): Named) -> Result<Response, Problem> {
    Ok(tagged(&user.definition(&name, None).await?))
}

async fn show_version(
    Asker(user): Asker,
    path: Result<Path<(String, u32)>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let Path((name, version)) = path.map_err(|rejection| Problem::not_found(rejection.body_text()))?;
    Ok(tagged(&user.definition(&name, Some(version)).await?))
}

async fn versions(Asker(user): Asker, Named(name): Named) -> Result<Json<Page<Definition>>, Problem> {
    let items = user.versions(&name).await?.iter().map(Definition::brief).collect();
    Ok(Json(Page { items, next: None }))
}

async fn remove(Asker(user): Asker, Named(name): Named) -> Result<StatusCode, Problem> {
    user.delete_definition(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn publish(
    State(app): State<App>,
    Asker(user): Asker,
    Named(name): Named,
    Body(Publish { published }): Body<Publish>,
) -> Result<Json<Defined>, Problem> {
    let _writing = app.defining.lock().await;
    let known = user.definition(&name, None).await?;
    let (defined, _) = user.define(&known.spec_json, Some(published)).await?;
    let (version, hash) = (defined.version, defined.hash.to_string());
    Ok(Json(Defined { name: defined.name, version, hash, warnings: Vec::new() }))
}
