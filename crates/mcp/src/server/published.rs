//! Published workflows: each is a tool.

use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    ElicitRequest, ErrorData, InputRequest, InputRequiredResult, JsonObject, Tool, ToolAnnotations,
};
use serde_json::{Map, Value, json};
use steprail_core::load;
use steprail_core::plan::{Kind, Plan};
use steprail_core::source::Source;
use steprail_core::spec::publish::{Publish, TaskMode};
use steprail_engine::{Annotations, Definition, Right, ToolCaller, User, Workflow};

use super::Shared;
use super::error::{ToolError, ToolResult, protocol_error};
use super::request::ToolRequest;
use super::tasks::{self, ResultForm, VIA_PUBLISHED, WaitOptions};
use crate::headers;
use crate::limits::WAIT_SECS;
use crate::names::workflow_name;

/// Key of the input request for missing inputs.
const INPUTS: &str = "inputs";

/// A workflow that is offered as a tool.
pub(super) struct PublishedTool {
    tool: Tool,
    workflow: String,
    version: u32,
    pub task_mode: TaskMode,
    /// Names of the tools that its steps call.
    calls: Vec<Box<str>>,
    /// Whether it runs sub-workflows, whose tools are not known here.
    has_sub_workflows: bool,
}

type Tools = Arc<Vec<Arc<PublishedTool>>>;

/// Cache of the published workflows, with the count of definition changes at which it was filled.
#[derive(Default)]
pub(super) struct PublishedTools(Mutex<Option<(u64, Tools)>>);

impl PublishedTools {
    fn get(&self, changes: u64) -> Option<Tools> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cached.filter(|(at, _)| *at == changes).map(|(_, tools)| tools)
    }

    fn set(&self, changes: u64, tools: Tools) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((changes, tools));
    }
}

/// The published workflows that a user may run.
async fn visible(shared: &Shared, user: &User) -> Result<Tools, ErrorData> {
    if user.may(Right::Workflow) { current(shared).await } else { Ok(Arc::default()) }
}

/// Refreshes the cache after each change, for [`cached`], which cannot read the database.
pub(super) async fn refresh_on_change(shared: &Shared) {
    let mut changes = shared.engine.definition_changes();
    loop {
        let _ = current(shared).await;
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn current(shared: &Shared) -> Result<Tools, ErrorData> {
    let changes = *shared.engine.definition_changes().borrow();
    if let Some(tools) = shared.published.get(changes) {
        return Ok(tools);
    }
    let definitions = shared.engine.published().await.map_err(|error| protocol_error(&error))?;
    let mut tools: Vec<Arc<PublishedTool>> = Vec::new();
    for published in definitions.iter().filter_map(PublishedTool::new) {
        let (tool, workflow) = (&published.tool.name, &published.workflow);
        let is_taken = super::tools::find(tool).is_some()
            || super::tools::exposed_tool(shared, tool).is_some()
            || tools.iter().any(|other| other.tool.name == *tool);
        if is_taken {
            tracing::warn!(%tool, workflow, "a published workflow is not offered: its tool name is taken");
        } else if let Some(problem) = headers::problem(&published.tool.input_schema) {
            tracing::warn!(%tool, workflow, problem, "a published workflow is not offered: invalid x-mcp-header");
        } else {
            tools.push(Arc::new(published));
        }
    }
    let tools = Arc::new(tools);
    shared.published.set(changes, tools.clone());
    Ok(tools)
}

/// The published workflows that a user may run, as tools.
pub(super) async fn tools(shared: &Shared, user: &User) -> Result<Vec<Tool>, ErrorData> {
    let tools = visible(shared, user).await?;
    let with_hints = |published: &Arc<PublishedTool>| {
        published.tool.clone().with_annotations(published.annotations(shared))
    };
    Ok(tools.iter().map(with_hints).collect())
}

/// A published workflow from the cache, by the name of its tool.
pub(super) fn cached(shared: &Shared, name: &str) -> Option<Tool> {
    let tools = shared.published.get(*shared.engine.definition_changes().borrow())?;
    tools.iter().find(|published| published.tool.name == name).map(|published| published.tool.clone())
}

/// A published workflow by the name of its tool.
pub(super) async fn find(
    shared: &Shared,
    user: &User,
    name: &str,
) -> Result<Option<Arc<PublishedTool>>, ErrorData> {
    let tools = visible(shared, user).await?;
    Ok(tools.iter().find(|published| published.tool.name == name).cloned())
}

/// The name of the tool as which a workflow is published.
pub(super) async fn tool_name(request: &ToolRequest, workflow: &str) -> Option<String> {
    let tools = visible(&request.shared, &request.user).await.ok()?;
    let published = tools.iter().find(|published| published.workflow == workflow)?;
    Some(published.tool.name.to_string())
}

/// Runs a published workflow and returns its output as the result of the tool.
pub(super) async fn call(request: &ToolRequest, published: &PublishedTool) -> ToolResult {
    if published.task_mode == TaskMode::Required && !request.supports_tasks() {
        return Err(ToolError::Protocol(tasks::tasks_required()));
    }
    let mut inputs = request.params.arguments.clone().unwrap_or_default();
    inputs.extend(elicited_inputs(request));
    let missing = published.missing(&inputs);
    // Inputs are requested once. If they are still missing, the engine rejects the start and names them.
    if !missing.is_empty()
        && request.params.input_responses.is_none()
        && request.is_sessionless()
        && request.supports_elicitation()
        && let Some(required) = request_inputs(&missing, published)
    {
        return Ok(required.into());
    }
    let workflow = Workflow::Named(published.workflow.clone(), Some(published.version));
    let user = request.client_user().via(format!("{VIA_PUBLISHED}{}", published.tool.name));
    let run = user.start(workflow, Value::Object(inputs), None).await?.id();
    let options = WaitOptions { task_mode: published.task_mode, ..WaitOptions::new(WAIT_SECS) };
    tasks::respond(request, run, ResultForm::Output, options).await
}

/// Inputs that the client's user supplied to [`request_inputs`].
fn elicited_inputs(request: &ToolRequest) -> JsonObject {
    let answer = request.params.input_responses.as_ref().and_then(|answers| answers.get(INPUTS));
    match answer.filter(|answer| answer["action"] == "accept").map(|answer| &answer["content"]) {
        Some(Value::Object(content)) => content.clone(),
        _ => JsonObject::new(),
    }
}

/// A form for missing inputs; `None` if the protocol does not allow one of their schemas in a form.
fn request_inputs(missing: &[&str], published: &PublishedTool) -> Option<InputRequiredResult> {
    let all = published.tool.input_schema.get("properties")?.as_object()?;
    let fields: Map<String, Value> =
        missing.iter().filter_map(|name| Some(((*name).to_owned(), all.get(*name)?.clone()))).collect();
    let form = json!({
        "mode": "form",
        "message": format!("{} needs: {}", published.workflow, missing.join(", ")),
        "requestedSchema": { "type": "object", "properties": fields, "required": missing },
    });
    let form = serde_json::from_value(form).ok()?;
    let request = InputRequest::Elicitation(ElicitRequest::new(form));
    Some(InputRequiredResult::from_input_requests([(INPUTS.to_owned(), request)].into()))
}

/// JSON Schema of the inputs of a workflow.
pub(super) fn input_schema(definition: &Definition) -> Value {
    plan(definition).map(|plan| Value::Object(inputs_of(&plan))).unwrap_or_default()
}

fn plan(definition: &Definition) -> Option<Plan> {
    load(&Source::new(definition.name.as_str(), definition.spec_json.as_str())).plan
}

fn inputs_of(plan: &Plan) -> JsonObject {
    let properties: Map<String, Value> =
        plan.inputs.iter().map(|input| (input.name.to_string(), input.schema.json().clone())).collect();
    let required: Vec<&str> =
        plan.inputs.iter().filter(|input| input.required).map(|input| &*input.name).collect();
    let mut schema = Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("properties".to_owned(), properties.into()),
        ("additionalProperties".to_owned(), json!(false)),
    ]);
    if !required.is_empty() {
        schema.insert("required".to_owned(), json!(required));
    }
    schema
}

/// JSON Schema of the output, if the definition names its fields. No field is required, because a run that takes longer
/// returns its id instead.
fn outputs_of(spec: &Value) -> Option<JsonObject> {
    let output = spec["output"].as_object()?;
    let text = || json!({ "type": "string" });
    let handle = [("run_id".to_owned(), text()), ("status".to_owned(), text())];
    let named = output.keys().map(|name| (name.clone(), json!({})));
    let properties: Map<String, Value> = handle.into_iter().chain(named).collect();
    Some(Map::from_iter([("type".to_owned(), json!("object")), ("properties".to_owned(), properties.into())]))
}

impl PublishedTool {
    fn new(definition: &Definition) -> Option<Self> {
        let plan = plan(definition)?;
        let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
        let (name, task_mode) = match plan.settings.publish.as_ref()? {
            Publish::Plain(_) => (None, TaskMode::Auto),
            Publish::As(fields) => {
                (fields.r#as.as_ref().map(|name| name.0.clone()), fields.task.unwrap_or(TaskMode::Auto))
            }
        };
        let name = name.unwrap_or_else(|| workflow_name(&plan.name));
        let description = plan
            .description
            .as_deref()
            .map_or_else(|| format!("Runs the workflow `{}`.", plan.name), ToOwned::to_owned);
        let mut tool = Tool::new(name, description, inputs_of(&plan)).with_title(plan.name.to_string());
        if let Some(outputs) = outputs_of(&spec) {
            tool = tool.with_raw_output_schema(Arc::new(outputs));
        }
        let calls = plan.steps.iter().filter_map(|step| match &step.kind {
            Kind::Call(call) => Some(call.full_name()),
            _ => None,
        });
        Some(Self {
            calls: calls.collect(),
            has_sub_workflows: plan.steps.iter().any(|step| matches!(step.kind, Kind::Workflow(_))),
            tool,
            workflow: definition.name.clone(),
            version: definition.version,
            task_mode,
        })
    }

    /// Annotations derived from the tools that the steps call. Unknown tools count as destructive.
    fn annotations(&self, shared: &Shared) -> ToolAnnotations {
        let annotations = |tool: &str| shared.gateway.as_ref().map(|gateway| gateway.annotations(tool));
        let all: Vec<Annotations> =
            self.calls.iter().map(|tool| annotations(tool).unwrap_or_default()).collect();
        let read_only = !self.has_sub_workflows && all.iter().all(Annotations::is_read_only);
        let destructive = self.has_sub_workflows || all.iter().any(Annotations::is_destructive);
        ToolAnnotations::new()
            .read_only(read_only)
            .destructive(destructive)
            // Every call starts a new run.
            .idempotent(false)
            .open_world(self.has_sub_workflows || !self.calls.is_empty())
    }

    /// Names of required inputs that are not among the arguments.
    fn missing(&self, inputs: &JsonObject) -> Vec<&str> {
        let required = self.tool.input_schema.get("required").and_then(Value::as_array);
        let names = required.into_iter().flatten().filter_map(Value::as_str);
        names.filter(|name| !inputs.contains_key(*name)).collect()
    }
}
