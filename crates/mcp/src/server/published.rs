//! Published workflows: each is a tool.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    ElicitRequest, ErrorData, InputRequest, InputRequiredResult, JsonObject, Tool, ToolAnnotations,
};
use serde_json::{Map, Value, json};
use steprail_core::plan::{Hash, Kind, Plan};
use steprail_core::source::Source;
use steprail_core::spec::policy::MissingTool;
use steprail_core::spec::publish::{Publish, TaskMode};
use steprail_core::{load, names};
use steprail_engine::{Annotations, Definition, Engine, Right, ToolCaller, User, Workflow};

use super::Shared;
use super::error::{ToolError, ToolResult, protocol_error};
use super::request::ToolRequest;
use super::tasks::{self, ResultForm, VIA_PUBLISHED, WaitOptions};
use crate::headers;
use crate::limits::{SUB_WORKFLOWS, WAIT_SECS};

/// Key of the input request for missing inputs.
const INPUTS: &str = "inputs";

/// A workflow that is offered as a tool.
pub(super) struct PublishedTool {
    tool: Tool,
    workflow: String,
    version: u32,
    pub task_mode: TaskMode,
    calls: CalledTools,
}

/// The tools that a workflow and its sub-workflows call.
#[derive(Default)]
struct CalledTools {
    /// Full names, each with the hash that the tool had when the definition was stored.
    tools: Vec<(String, Option<Hash>)>,
    /// Whether it may also call tools that are not known here.
    has_unknown: bool,
}

impl CalledTools {
    /// Follows the sub-workflows of a definition, in the versions that it keeps.
    async fn find(engine: &Engine, definition: &Definition) -> Self {
        let mut found = Self::default();
        let (mut open, mut seen) = (vec![definition.clone()], BTreeSet::new());
        while let Some(definition) = open.pop() {
            if !seen.insert(definition.id) {
                continue;
            }
            let (Some(plan), true) = (plan(&definition), seen.len() <= SUB_WORKFLOWS) else {
                found.has_unknown = true;
                break;
            };
            for workflow in found.add(&plan, &definition) {
                match sub_workflow(engine, &definition, &workflow).await {
                    Some(child) => open.push(child),
                    None => found.has_unknown = true,
                }
            }
        }
        found
    }

    /// Adds the tools of one definition. Returns its sub-workflows: the name, and the version if it keeps one.
    fn add(&mut self, plan: &Plan, definition: &Definition) -> Vec<(String, Option<u32>)> {
        let pinned = |tool: &str| (tool.to_owned(), definition.pins.get(tool).copied());
        self.tools.extend(plan.tools().map(pinned));
        let mut workflows = Vec::new();
        for step in &plan.steps {
            match &step.kind {
                Kind::Call(call) => self.has_unknown |= call.missing_tool == MissingTool::Create,
                Kind::Workflow(workflow) => {
                    let pin = workflow.pin_key().and_then(|key| definition.workflows.get(&key));
                    workflows.push((workflow.name.to_string(), pin.map(|pin| pin.version)));
                }
                _ => {}
            }
        }
        workflows
    }
}

/// A sub-workflow. A definition that runs itself adds nothing.
async fn sub_workflow(
    engine: &Engine,
    enclosing: &Definition,
    (name, version): &(String, Option<u32>),
) -> Option<Definition> {
    if *name == enclosing.name && version.is_none() {
        return Some(enclosing.clone());
    }
    engine.definition(name, *version).await.ok()
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
    for definition in &definitions {
        let Some(published) = PublishedTool::new(&shared.engine, definition).await else { continue };
        let (tool, workflow) = (&published.tool.name, &published.workflow);
        let is_taken = super::tools::find(tool).is_some()
            || super::tools::exposed_tool(shared, tool).is_some()
            || tools.iter().any(|other| names::folded(&other.tool.name) == names::folded(tool));
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
    async fn new(engine: &Engine, definition: &Definition) -> Option<Self> {
        let plan = plan(definition)?;
        let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
        let publish = plan.settings.publish.as_ref()?;
        let task_mode = match publish {
            Publish::Plain(_) => None,
            Publish::As(fields) => fields.task,
        };
        let name = publish.tool_name(&plan.name);
        let description = plan
            .description
            .as_deref()
            .map_or_else(|| format!("Runs the workflow `{}`.", plan.name), ToOwned::to_owned);
        let mut tool = Tool::new(name, description, inputs_of(&plan)).with_title(plan.name.to_string());
        if let Some(outputs) = outputs_of(&spec) {
            tool = tool.with_raw_output_schema(Arc::new(outputs));
        }
        Some(Self {
            calls: CalledTools::find(engine, definition).await,
            tool,
            workflow: definition.name.clone(),
            version: definition.version,
            task_mode: task_mode.unwrap_or(TaskMode::Auto),
        })
    }

    /// Annotations derived from the tools that the workflow and its sub-workflows call. `effects` of steps do not count, nor
    /// do the annotations of a tool that has changed since the definition was stored. Unknown tools have the defaults of the
    /// protocol.
    fn annotations(&self, shared: &Shared) -> ToolAnnotations {
        let annotations = |(tool, pinned): &(String, Option<Hash>)| {
            let Some(gateway) = &shared.gateway else { return Annotations::UNANNOTATED };
            let is_changed = pinned.is_some_and(|pinned| gateway.pin(tool).is_some_and(|now| now != pinned));
            if is_changed { Annotations::UNANNOTATED } else { gateway.annotations(tool) }
        };
        let unknown = self.calls.has_unknown.then_some(Annotations::UNANNOTATED);
        let all: Vec<Annotations> = self.calls.tools.iter().map(annotations).chain(unknown).collect();
        ToolAnnotations::new()
            .read_only(all.iter().all(Annotations::is_read_only))
            .destructive(all.iter().any(Annotations::is_destructive))
            // Every call starts a new run.
            .idempotent(false)
            .open_world(all.iter().any(Annotations::is_open_world))
    }

    /// Names of required inputs that are not among the arguments.
    fn missing(&self, inputs: &JsonObject) -> Vec<&str> {
        let required = self.tool.input_schema.get("required").and_then(Value::as_array);
        let names = required.into_iter().flatten().filter_map(Value::as_str);
        names.filter(|name| !inputs.contains_key(*name)).collect()
    }
}
