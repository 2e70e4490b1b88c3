//! Definitions, runs and open approvals as resources.

use rmcp::model::{
    CacheScope, CompleteRequestParams, CompleteResult, CompletionInfo, ErrorData, ReadResourceResult,
    Reference, Resource, ResourceContents, ResourceTemplate,
};
use serde_json::{Value, json};
use steprail_engine::{After, Error, ListRuns, RunId, User};

use super::error::protocol_error;
use super::tools::event_fields;
use crate::limits::{PAGE, RESOURCE_EVENTS};

const JSON: &str = "application/json";
pub(super) const SCHEMA: &str = "workflow://schema";
pub(super) const APPROVALS: &str = "workflow://approvals";
const DEFINITIONS: &str = "workflow://definitions/";
const RUNS: &str = "workflow://runs/";

/// A parsed URI of a resource.
enum Uri<'u> {
    Schema,
    Approvals,
    Definition(&'u str, Option<u32>),
    Run(RunId),
    Events(RunId),
}

impl<'u> Uri<'u> {
    fn parse(uri: &'u str) -> Option<Self> {
        if let Some(rest) = uri.strip_prefix(DEFINITIONS) {
            return Some(match rest.rsplit_once('@').map(|(name, version)| (name, version.parse())) {
                Some((name, Ok(version))) => Self::Definition(name, Some(version)),
                _ => Self::Definition(rest, None),
            });
        }
        if let Some(rest) = uri.strip_prefix(RUNS) {
            return match rest.strip_suffix("/events") {
                Some(id) => id.parse().ok().map(Self::Events),
                None => rest.parse().ok().map(Self::Run),
            };
        }
        match uri {
            SCHEMA => Some(Self::Schema),
            APPROVALS => Some(Self::Approvals),
            _ => None,
        }
    }
}

/// The run that a URI names.
pub(super) fn run_of(uri: &str) -> Option<RunId> {
    match Uri::parse(uri)? {
        Uri::Run(run) | Uri::Events(run) => Some(run),
        _ => None,
    }
}

/// The version of the definition that a URI names; empty for other resources.
pub(super) async fn version_of(user: &User, uri: &str) -> Option<String> {
    match Uri::parse(uri)? {
        Uri::Definition(name, version) => {
            let definition = user.definition(&decoded(name), version).await.ok()?;
            Some(definition.version.to_string())
        }
        _ => Some(String::new()),
    }
}

/// Lists the schema, the open approvals, the definitions and the newest runs.
pub(super) async fn list(user: &User) -> Result<Vec<Resource>, ErrorData> {
    let failed = |error: Error| protocol_error(&error);
    let resource = |uri: &str, name: &str, description: &str| {
        Resource::new(uri, name).with_description(description).with_mime_type(JSON)
    };
    let mut resources = vec![
        resource(SCHEMA, "schema", "The JSON Schema of workflow definitions."),
        resource(APPROVALS, "approvals", "Open approvals."),
    ];
    // A user without the right sees the other resources.
    for definition in user.definitions().await.unwrap_or_default().into_iter().take(4 * PAGE) {
        let uri = format!("{DEFINITIONS}{}", encoded(&definition.name));
        resources.push(resource(&uri, &definition.name, "A workflow definition, its newest version."));
    }
    for run in user.list(ListRuns { limit: PAGE, ..ListRuns::default() }).await.map_err(failed)? {
        let description = format!("A run of {}, {}.", run.name, run.status.name());
        resources.push(resource(
            &format!("{RUNS}{}", run.run_id),
            &format!("run {}", run.run_id),
            &description,
        ));
    }
    Ok(resources)
}

/// A name in a URI.
fn encoded(name: &str) -> String {
    name.replace('%', "%25").replace(' ', "%20")
}

fn decoded(name: &str) -> String {
    name.replace("%20", " ").replace("%25", "%")
}

pub(super) fn templates() -> Vec<ResourceTemplate> {
    let template = |uri: String, name: &str, description: &str| {
        ResourceTemplate::new(uri, name).with_description(description).with_mime_type(JSON)
    };
    vec![
        template(
            format!("{DEFINITIONS}{{name}}"),
            "definition",
            "A workflow definition; name@2 is its second version.",
        ),
        template(format!("{RUNS}{{run_id}}"), "run", "The state of a run, with every step."),
        template(format!("{RUNS}{{run_id}}/events"), "events", "The log of a run."),
    ]
}

/// Reads a resource.
pub(super) async fn read(user: &User, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let value = value(user, uri).await?;
    let contents = ResourceContents::text(format!("{value:#}"), uri).with_mime_type(JSON);
    let mut result = ReadResourceResult::new(vec![contents]);
    result.ttl_ms = Some(0);
    result.cache_scope = Some(CacheScope::Private);
    Ok(result)
}

/// Checks that a resource exists.
pub(super) async fn check(user: &User, uri: &str) -> Result<(), ErrorData> {
    value(user, uri).await.map(drop)
}

/// Whether a URI is reserved for Steprail's own resources.
pub(super) fn is_own(uri: &str) -> bool {
    uri.starts_with("workflow:")
}

pub(super) fn not_found(uri: &str) -> ErrorData {
    ErrorData::resource_not_found(format!("unknown resource `{uri}`"), Some(json!({ "uri": uri })))
}

async fn value(user: &User, uri: &str) -> Result<Value, ErrorData> {
    let value = match Uri::parse(uri).ok_or_else(|| not_found(uri))? {
        Uri::Schema => Ok(steprail_core::spec::schema::definition_schema()),
        Uri::Approvals => user.approvals(PAGE).await.map(|open| json!({ "approvals": open })),
        Uri::Definition(name, version) => user.definition(&decoded(name), version).await.map(|definition| {
            let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
            json!({ "name": definition.name, "version": definition.version, "hash": definition.hash, "spec": spec })
        }),
        Uri::Run(run) => user.status(run).await.map(|view| json!(view)),
        Uri::Events(run) => user.events(run, After::Seq(0), RESOURCE_EVENTS).await.map(|page| {
            json!({ "run_id": run, "events": page.events.iter().map(event_fields).collect::<Vec<_>>() })
        }),
    };
    value.map_err(|error| match error {
        Error::NotFound(_) => not_found(uri),
        other => protocol_error(&other),
    })
}

/// Completes names of definitions and ids of runs.
pub(super) async fn complete(
    user: &User,
    request: CompleteRequestParams,
) -> Result<CompleteResult, ErrorData> {
    let prefix = &request.argument.value;
    let of_runs = match &request.r#ref {
        Reference::Resource(resource) => resource.uri.starts_with(RUNS),
        Reference::Prompt(prompt) => prompt.name == super::prompts::EXPLAIN,
        _ => false,
    };
    let of_definitions =
        matches!(&request.r#ref, Reference::Resource(resource) if resource.uri.starts_with(DEFINITIONS));
    let candidates: Vec<String> = if of_runs {
        let rows = user.list(ListRuns::default()).await.map_err(|error| protocol_error(&error))?;
        rows.iter().map(|row| row.run_id.to_string()).collect()
    } else if of_definitions {
        let all = user.definitions().await.map_err(|error| protocol_error(&error))?;
        all.into_iter().map(|definition| definition.name).collect()
    } else {
        Vec::new()
    };
    let matching = candidates.into_iter().filter(|name| name.starts_with(prefix.as_str()));
    let values = matching.take(CompletionInfo::MAX_VALUES).collect();
    CompletionInfo::new(values)
        .map(CompleteResult::new)
        .map_err(|problem| ErrorData::internal_error(problem, None))
}
