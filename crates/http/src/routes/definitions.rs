//! Definitions: stored, checked, listed, published, deleted.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use steprail_core::diagnostic::{Code, Diagnostic, Severity};
use steprail_core::source::Source;
use steprail_engine::kernel::DefinitionVersion;
use steprail_engine::{Expected, NameCursor, Right};
use steprail_mcp::{examine, require_valid};

use crate::App;
use crate::api::{Api, delete, get, post, put};
use crate::extract::{Body, Caller, DefinitionBody, NameParam, QueryParams};
use crate::page::{self, Page};
use crate::problem::Problem;
use crate::timestamp;

const TAG: &str = "definitions";
const YAML: &[&str] = &["application/yaml", "text/plain"];

pub(super) fn routes(api: Api) -> Api {
    let proof = "Proof of presence of a person, where it is required: `pin …` or `totp …`.";
    let define = post("/api/v1/definitions", "Store a definition")
        .details(
            "Equal content is the same version; other content is a new version. Runs keep the version that they started with. \
             `If-Match: \"3\"` stores it only if version 3 is the newest, `If-None-Match: *` only if the name is new.",
        )
        .header("If-Match", "The newest version that the caller has seen, in quotes.")
        .header("If-None-Match", "`*`: only if the name is new.")
        .header("X-Steprail-Presence", proof)
        .body::<DefineRequest>()
        .or_text(YAML)
        .returns::<StoredVersion>(201, "The stored version.")
        .returns::<StoredVersion>(202, "A proposal, which a person has to accept: the policy requires it.");
    let validate = post("/api/v1/definitions/validate", "Check a definition")
        .details("Reports every problem with its position and a hint. Stores nothing.")
        .body::<DefineRequest>()
        .or_text(YAML)
        .returns::<CheckResult>(200, "The problems.");
    api.route(
        TAG,
        get("/api/v1/definitions", "List definitions")
            .query::<ListQuery>()
            .returns::<Page<Definition>>(200, "The newest version of each, by name."),
        list,
    )
    .route(TAG, define, store)
    .route(TAG, validate, check)
    .route(
        TAG,
        get("/api/v1/definitions/{name}", "Get a definition")
            .returns::<Definition>(200, "The newest version."),
        show,
    )
    .route(
        TAG,
        delete("/api/v1/definitions/{name}", "Delete a definition")
            .details("Unfinished runs continue.")
            .header("X-Steprail-Presence", proof)
            .returns_empty(204, "The definition cannot be started any more."),
        remove,
    )
    .route(
        TAG,
        put("/api/v1/definitions/{name}/published", "Publish or unpublish a definition as a tool")
            .header("X-Steprail-Presence", proof)
            .body::<PublishRequest>()
            .returns::<StoredVersion>(200, "The new version."),
        publish,
    )
    .route(
        TAG,
        post("/api/v1/definitions/{name}/adopt", "Adopt a definition")
            .details(
                "The caller becomes the owner and author of all versions, and runs use the caller's rights instead of those of \
                 the author before. Needs the right `administer` for the definition of another user.",
            )
            .header("If-Match", "The newest version that the caller has seen, in quotes.")
            .returns::<Definition>(200, "The newest version."),
        adopt,
    )
    .route(
        TAG,
        get("/api/v1/definitions/{name}/versions", "Versions of a definition")
            .returns::<Page<Definition>>(200, "Newest first."),
        versions,
    )
    .route(
        TAG,
        get("/api/v1/definitions/{name}/versions/{version}", "A version of a definition")
            .returns::<Definition>(200, "The version."),
        show_version,
    )
}

/// A version of a definition.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Definition {
    /// Name of the definition.
    pub name: String,
    /// Number of the version, from 1.
    pub version: u32,
    /// Hash of its content.
    pub hash: String,
    /// Description by its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Names of its inputs.
    pub inputs: Vec<String>,
    /// Whether it is published to agents as a tool.
    pub published: bool,
    /// Its owner and author, whose rights restrict its runs.
    pub created_by: String,
    /// Whether an agent stored it for the user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_agent: bool,
    /// When it was stored.
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    /// The definition itself; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Value>,
}

impl Definition {
    /// A definition in a list: without its content.
    fn summary(definition: &steprail_engine::Definition) -> Self {
        let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
        Self::new(definition, &spec)
    }

    fn full(definition: &steprail_engine::Definition) -> Self {
        let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
        let summary = Self::new(definition, &spec);
        Self { spec: Some(spec), ..summary }
    }

    fn new(definition: &steprail_engine::Definition, spec: &Value) -> Self {
        let inputs = spec["inputs"].as_object().map(|inputs| inputs.keys().cloned().collect());
        Self {
            name: definition.name.clone(),
            version: definition.version,
            hash: definition.hash.to_string(),
            description: spec["description"].as_str().map(str::to_owned),
            inputs: inputs.unwrap_or_default(),
            published: !matches!(spec["publish"], Value::Null | Value::Bool(false)),
            created_by: definition.created_by.clone(),
            by_agent: definition.by_agent,
            created_at: timestamp::format(definition.created_at),
            spec: None,
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// `next` of the previous page.
    cursor: Option<String>,
    /// Maximum number of definitions; 100 by default.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

/// A definition, as a map or as YAML or JSON text.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DefineRequest {
    /// The definition as a map.
    spec: Option<Map<String, Value>>,
    /// The definition as YAML or JSON text, instead of `spec`.
    text: Option<String>,
    /// Name of the text in problems; `definition` by default.
    #[schemars(length(max = 256))]
    source: Option<String>,
    /// Whether to publish it to agents as a tool; by default as the definition says.
    publish: Option<bool>,
}

/// A stored version.
#[derive(Serialize, JsonSchema)]
pub(super) struct StoredVersion {
    name: String,
    /// The version; 0 for a proposal.
    version: u32,
    hash: String,
    /// Whether it is a proposal: a person has to accept it before it can be started.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    proposed: bool,
    /// Findings that are not errors.
    warnings: Vec<Value>,
}

impl StoredVersion {
    pub(super) fn new(defined: DefinitionVersion, warnings: Vec<Value>) -> Self {
        let DefinitionVersion { name, version, hash, proposed, .. } = defined;
        Self { name, version, hash: hash.to_string(), proposed, warnings }
    }
}

/// The findings of a check.
#[derive(Serialize, JsonSchema)]
struct CheckResult {
    valid: bool,
    problems: Vec<Value>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PublishRequest {
    published: bool,
}

async fn list(
    Caller(user): Caller,
    QueryParams(list): QueryParams<ListQuery>,
) -> Result<Json<Page<Definition>>, Problem> {
    let limit = page::limit(list.limit, 100)?;
    let after: Option<NameCursor> = page::cursor(list.cursor.as_deref())?;
    let all = user.definitions().await?;
    let is_after = |name: &str| after.as_ref().is_none_or(|after| after.is_before(name));
    let mut rest = all.iter().filter(|definition| is_after(&definition.name));
    let items: Vec<Definition> = rest.by_ref().take(limit).map(Definition::summary).collect();
    let next =
        items.last().filter(|_| rest.next().is_some()).map(|last| NameCursor::after(&last.name).to_string());
    Ok(Json(Page { items, next }))
}

/// The source of a definition, and whether to publish it.
fn definition(text: DefinitionBody) -> Result<(Source, Option<bool>), Problem> {
    let unnamed = |text: String| Source::new("definition", text);
    if !text.is_json {
        return Ok((unnamed(text.content), None));
    }
    let read: DefineRequest = serde_json::from_str(&text.content)
        .map_err(|error| Problem::bad(format!("invalid body: {error}")))?;
    let source = match (read.spec, read.text, read.source) {
        (Some(spec), None, _) => unnamed(Value::Object(spec).to_string()),
        (None, Some(text), Some(name)) => Source::new(name, text),
        (None, Some(text), None) => unnamed(text),
        _ => return Err(Problem::bad("send the definition as either `spec` or `text`")),
    };
    Ok((source, read.publish))
}

async fn store(
    State(app): State<App>,
    Caller(user): Caller,
    headers: HeaderMap,
    text: DefinitionBody,
) -> Result<Response, Problem> {
    let (source, publish) = definition(text)?;
    user.require(Right::Workflow)?;
    let mut found = checked(&app, &source).await?;
    let stored = user.define(source.text(), publish, expected(&headers)?).await;
    let (defined, warnings) = stored.map_err(|error| Problem::of_definition(error, &source))?;
    // The other warnings were found above.
    found.extend(warnings.into_iter().filter(|warning| warning.code == Code::UnlistedPrincipal));
    let warnings = findings(&found, &source);
    if defined.proposed {
        let location = format!("/api/v1/proposals/{}", defined.name);
        let body = Json(StoredVersion::new(defined, warnings));
        return Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], body).into_response());
    }
    let location = format!("/api/v1/definitions/{}/versions/{}", defined.name, defined.version);
    let tag = format!("\"{}\"", defined.version);
    let body = StoredVersion::new(defined, warnings);
    Ok((StatusCode::CREATED, [(header::LOCATION, location), (header::ETAG, tag)], Json(body)).into_response())
}

/// Checks a definition against the known tools. Returns its warnings, or fails if it has errors.
pub(super) async fn checked(app: &App, source: &Source) -> Result<Vec<Diagnostic>, Problem> {
    let found = examine(source, app.gateway.as_ref()).await;
    require_valid(&found).map_err(|error| Problem::of_definition(error, source))?;
    Ok(found)
}

/// The precondition in `If-Match` or `If-None-Match`, which the commit checks.
fn expected(headers: &HeaderMap) -> Result<Expected, Problem> {
    let value = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if value(header::IF_NONE_MATCH) == Some("*") {
        return Ok(Expected::Absent);
    }
    let Some(tag) = value(header::IF_MATCH) else { return Ok(Expected::Any) };
    let version =
        tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).and_then(|tag| tag.parse().ok());
    version.map(Expected::Version).ok_or_else(|| Problem::bad("`If-Match` must be a version in quotes"))
}

fn findings(found: &[Diagnostic], source: &Source) -> Vec<Value> {
    found.iter().filter_map(|problem| serde_json::to_value(problem.finding(source)).ok()).collect()
}

async fn check(
    State(app): State<App>,
    Caller(user): Caller,
    text: DefinitionBody,
) -> Result<Json<CheckResult>, Problem> {
    let (source, _) = definition(text)?;
    user.require(Right::Workflow)?;
    let found = examine(&source, app.gateway.as_ref()).await;
    let valid = found.iter().all(|problem| problem.code.severity() != Severity::Error);
    Ok(Json(CheckResult { valid, problems: findings(&found, &source) }))
}

fn tagged(definition: &steprail_engine::Definition) -> Response {
    let tag = format!("\"{}\"", definition.version);
    ([(header::ETAG, tag)], Json(Definition::full(definition))).into_response()
}

async fn show(Caller(user): Caller, NameParam(name): NameParam) -> Result<Response, Problem> {
    Ok(tagged(&user.definition(&name, None).await?))
}

async fn show_version(
    Caller(user): Caller,
    path: Result<Path<(String, u32)>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let Path((name, version)) = path.map_err(|rejection| Problem::not_found(rejection.body_text()))?;
    Ok(tagged(&user.definition(&name, Some(version)).await?))
}

async fn versions(
    Caller(user): Caller,
    NameParam(name): NameParam,
) -> Result<Json<Page<Definition>>, Problem> {
    let items = user.versions(&name).await?.iter().map(Definition::summary).collect();
    Ok(Json(Page::single(items)))
}

async fn remove(
    Caller(user): Caller,
    NameParam(name): NameParam,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    user.delete_definition(&name, expected(&headers)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn publish(
    Caller(user): Caller,
    NameParam(name): NameParam,
    Body(PublishRequest { published }): Body<PublishRequest>,
) -> Result<Json<StoredVersion>, Problem> {
    let known = user.definition(&name, None).await?;
    let expected = Expected::Version(known.version);
    let (defined, _) = user.define(&known.spec_json, Some(published), expected).await?;
    Ok(Json(StoredVersion::new(defined, Vec::new())))
}

async fn adopt(
    Caller(user): Caller,
    NameParam(name): NameParam,
    headers: HeaderMap,
) -> Result<Json<Definition>, Problem> {
    Ok(Json(Definition::summary(&user.adopt_definition(&name, expected(&headers)?).await?)))
}
