//! Published workflows: each a tool of its own.

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
use super::answer::{Answer, Asked, Refusal, protocol_error};
use super::tasks::{self, AS_TOOL, Given, Waiting};
use crate::headers;
use crate::limits::WAIT_SECS;
use crate::names::workflow_name;

/// The question for inputs that a call left out.
const INPUTS: &str = "inputs";

/// A workflow that is offered as a tool.
pub(super) struct Offer {
    tool: Tool,
    workflow: String,
    version: u32,
    mode: TaskMode,
    /// The tools that it calls.
    calls: Vec<Box<str>>,
    /// Whether it runs other workflows, of which nothing is known here.
    nests: bool,
}

/// What is offered, as of the last change of the definitions.
#[derive(Default)]
pub(super) struct Published(Mutex<Option<(u64, Arc<Vec<Offer>>)>>);

async fn offers(shared: &Shared, user: &User) -> Result<Arc<Vec<Offer>>, ErrorData> {
    if user.may(Right::Workflow) { current(shared).await } else { Ok(Arc::default()) }
}

/// Keeps what is offered known, for checks that cannot wait for the database.
pub(super) async fn keep_known(shared: &Shared) {
    let mut changes = shared.engine.definition_changes();
    loop {
        let _ = current(shared).await;
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn current(shared: &Shared) -> Result<Arc<Vec<Offer>>, ErrorData> {
    let changes = *shared.engine.definition_changes().borrow();
    let known = shared.published.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some((_, offers)) = known.filter(|(at, _)| *at == changes) {
        return Ok(offers);
    }
    let definitions = shared.engine.published().await.map_err(|error| protocol_error(&error))?;
    let mut offers: Vec<Offer> = Vec::new();
    for offer in definitions.iter().filter_map(Offer::new) {
        if super::tools::find(&offer.tool.name).is_some()
            || super::tools::passed_on(shared, &offer.tool.name).is_some()
            || offers.iter().any(|other| other.tool.name == offer.tool.name)
        {
            tracing::warn!(tool = %offer.tool.name, workflow = offer.workflow, "the name of a published workflow is taken");
        } else if let Some(problem) = headers::problem(&offer.tool.input_schema) {
            tracing::warn!(tool = %offer.tool.name, workflow = offer.workflow, problem, "a published workflow is not offered");
        } else {
            offers.push(offer);
        }
    }
    let offers = Arc::new(offers);
    *shared.published.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((changes, offers.clone()));
    Ok(offers)
}

/// Published workflows as tools.
pub(super) async fn tools(shared: &Shared, user: &User) -> Result<Vec<Tool>, ErrorData> {
    let offers = offers(shared, user).await?;
    Ok(offers.iter().map(|offer| offer.tool.clone().with_annotations(offer.hints(shared))).collect())
}

/// A published workflow as a tool, as far as the definitions are known without a look at the database.
pub(super) fn known(shared: &Shared, name: &str) -> Option<Tool> {
    let changes = *shared.engine.definition_changes().borrow();
    let known = shared.published.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (_, offers) = known.filter(|(at, _)| *at == changes)?;
    offers.iter().find(|offer| offer.tool.name == name).map(|offer| offer.tool.clone())
}

/// A published workflow by the name of its tool.
pub(super) struct Found(Arc<Vec<Offer>>, usize);

pub(super) async fn find(shared: &Shared, user: &User, name: &str) -> Result<Option<Found>, ErrorData> {
    let offers = offers(shared, user).await?;
    let at = offers.iter().position(|offer| offer.tool.name == name);
    Ok(at.map(|at| Found(offers, at)))
}

/// The name of the tool that a workflow is offered as.
pub(super) async fn name_of(shared: &Shared, asked: &Asked, workflow: &str) -> Option<String> {
    let offers = offers(shared, &asked.user).await.ok()?;
    let offer = offers.iter().find(|offer| offer.workflow == workflow)?;
    Some(offer.tool.name.to_string())
}

impl Found {
    /// Whether its calls become tasks.
    pub(super) fn mode(&self) -> TaskMode {
        self.0[self.1].mode
    }
}

/// Runs a published workflow: what it gives is what the tool gives.
pub(super) async fn call(shared: &Shared, asked: &Asked, Found(offers, at): &Found) -> Answer {
    let offer = &offers[*at];
    if offer.mode == TaskMode::Required && !asked.takes_tasks() {
        return Err(Refusal::Protocol(tasks::tasks_required()));
    }
    let mut inputs = asked.request.arguments.clone().unwrap_or_default();
    inputs.extend(answered(asked));
    let missing = offer.missing(&inputs);
    // Asked once: who does not say gets the refusal that names what is missing.
    if !missing.is_empty()
        && asked.request.input_responses.is_none()
        && asked.is_modern()
        && asked.takes_forms()
        && let Some(question) = ask_for(&missing, offer)
    {
        return Ok(question.into());
    }
    let workflow = Workflow::Named(offer.workflow.clone(), Some(offer.version));
    let user = asked.user.via(format!("{AS_TOOL}{}", offer.tool.name));
    let run = user.start(workflow, Value::Object(inputs), None).await?.id();
    let waiting = Waiting { mode: offer.mode, ..Waiting::new(WAIT_SECS) };
    tasks::answer(shared, asked, run, Given::Output, waiting).await
}

/// Inputs that the client's user gave when they were asked.
fn answered(asked: &Asked) -> JsonObject {
    let answer = asked.request.input_responses.as_ref().and_then(|answers| answers.get(INPUTS));
    match answer.filter(|answer| answer["action"] == "accept").map(|answer| &answer["content"]) {
        Some(Value::Object(content)) => content.clone(),
        _ => JsonObject::new(),
    }
}

/// A form for inputs that were left out, if each is a plain value.
fn ask_for(missing: &[&str], offer: &Offer) -> Option<InputRequiredResult> {
    let all = offer.tool.input_schema.get("properties")?.as_object()?;
    let fields: Map<String, Value> =
        missing.iter().filter_map(|name| Some(((*name).to_owned(), all.get(*name)?.clone()))).collect();
    let form = json!({
        "mode": "form",
        "message": format!("{} needs: {}", offer.workflow, missing.join(", ")),
        "requestedSchema": { "type": "object", "properties": fields, "required": missing },
    });
    let form = serde_json::from_value(form).ok()?;
    let request = InputRequest::Elicitation(ElicitRequest::new(form));
    Some(InputRequiredResult::from_input_requests([(INPUTS.to_owned(), request)].into()))
}

/// The JSON Schema of a workflow's inputs.
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

/// What a run gives, where the definition says so by name. A run that takes longer gives its id instead, so nothing of it
/// is required.
fn outputs_of(spec: &Value) -> Option<JsonObject> {
    let output = spec["output"].as_object()?;
    let word = || json!({ "type": "string" });
    let handle = [("run_id".to_owned(), word()), ("status".to_owned(), word())];
    let named = output.keys().map(|name| (name.clone(), json!({})));
    let properties: Map<String, Value> = handle.into_iter().chain(named).collect();
    Some(Map::from_iter([("type".to_owned(), json!("object")), ("properties".to_owned(), properties.into())]))
}

impl Offer {
    fn new(definition: &Definition) -> Option<Self> {
        let plan = plan(definition)?;
        let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
        let (given_name, mode) = match plan.settings.publish.as_ref()? {
            Publish::Plain(_) => (None, TaskMode::Auto),
            Publish::As(fields) => {
                (fields.r#as.as_ref().map(|name| name.0.clone()), fields.task.unwrap_or(TaskMode::Auto))
            }
        };
        let name = given_name.unwrap_or_else(|| workflow_name(&plan.name));
        let about = plan
            .description
            .as_deref()
            .map_or_else(|| format!("Runs the workflow `{}`.", plan.name), ToOwned::to_owned);
        let mut tool = Tool::new(name, about, inputs_of(&plan)).with_title(plan.name.to_string());
        if let Some(outputs) = outputs_of(&spec) {
            tool = tool.with_raw_output_schema(Arc::new(outputs));
        }
        let calls = plan.steps.iter().filter_map(|step| match &step.kind {
            Kind::Call(call) => Some(call.full_name()),
            _ => None,
        });
        Some(Self {
            calls: calls.collect(),
            nests: plan.steps.iter().any(|step| matches!(step.kind, Kind::Workflow(_))),
            tool,
            workflow: definition.name.clone(),
            version: definition.version,
            mode,
        })
    }

    /// What the workflow may do to the world. What is not known counts as the worst.
    fn hints(&self, shared: &Shared) -> ToolAnnotations {
        let annotations = |tool: &str| shared.gateway.as_ref().map(|gateway| gateway.annotations(tool));
        let all: Vec<Annotations> =
            self.calls.iter().map(|tool| annotations(tool).unwrap_or_default()).collect();
        let read_only = !self.nests && all.iter().all(Annotations::is_read_only);
        let destructive = self.nests || all.iter().any(Annotations::is_destructive);
        ToolAnnotations::new()
            .read_only(read_only)
            .destructive(destructive)
            // Every call makes a run of its own.
            .idempotent(false)
            .open_world(self.nests || !self.calls.is_empty())
    }

    fn missing(&self, given: &JsonObject) -> Vec<&str> {
        let required = self.tool.input_schema.get("required").and_then(Value::as_array);
        let names = required.into_iter().flatten().filter_map(Value::as_str);
        names.filter(|name| !given.contains_key(*name)).collect()
    }
}
