//! Generates the JSON Schema of the definition language from the types that parse it.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::graph::Transition;
use super::head::Head;
use super::policy::Policy;
use super::step::{Common, IMPLIED_KINDS, KindName, Step, Steps};
use crate::steps::{Approve, Branch, Foreach, Let, Parallel, Sleep, Tool, Wait, Workflow};

/// Returns the JSON Schema (2020-12) of a definition in any of the three forms.
pub fn definition_schema() -> Value {
    let mut generator = SchemaGenerator::default();
    let head = properties::<Head>(&mut generator);
    let mut list = generator.subschema_for::<Steps>().to_value();
    list["minItems"] = 1.into();
    let graph_step = generator.subschema_for::<GraphStepSchema>();
    let start = json!({ "type": "string", "description": "The first step." });
    let first = json!({ "anyOf": [start, graph_step], "description": "The first step, or its name." });
    let graph = json!({
        "type": "object",
        "description": "Steps by name.",
        "properties": { "start": first },
        "additionalProperties": graph_step,
    });
    let with = |extra: &[(&str, &Value)]| {
        let mut all = head.clone();
        all.insert("$schema".into(), json!({ "type": "string" }));
        all.extend(extra.iter().map(|(key, value)| ((*key).to_owned(), (*value).clone())));
        all
    };
    let object = |properties: Map<String, Value>, required: &str, description: &str| {
        json!({
            "type": "object", "description": description, "properties": properties,
            "required": [required], "additionalProperties": false,
        })
    };
    let forms = json!([
        object(with(&[("steps", &list)]), "steps", "Tree or DAG: a list of steps."),
        object(with(&[("steps", &graph), ("start", &start)]), "steps", "Graph: steps by name."),
        object(with(&[("flow", &graph), ("start", &start)]), "flow", "Graph: steps by name."),
        {
            "type": "object",
            "description": "Graph without `steps` or `flow`: the steps are at the top level.",
            "properties": with(&[("start", &first), ("steps", &json!(false)), ("flow", &json!(false))]),
            "additionalProperties": graph_step,
        },
        { "description": "Only a list of steps.", "$ref": "#/$defs/Steps" },
    ]);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Steprail workflow definition",
        "anyOf": forms,
        "$defs": generator.take_definitions(true),
    })
}

/// The properties of a group of fields.
fn properties<T: JsonSchema>(generator: &mut SchemaGenerator) -> Map<String, Value> {
    match T::json_schema(generator).get("properties") {
        Some(Value::Object(properties)) => properties.clone(),
        _ => Map::new(),
    }
}

/// The schema of the fields of a kind.
fn kind_schema(kind: KindName, generator: &mut SchemaGenerator) -> Schema {
    match kind {
        KindName::Tool => Tool::json_schema(generator),
        KindName::ToolRemote => {
            let mut schema = Tool::json_schema(generator);
            schema
                .insert("description".into(), "Same as `tool`, with the name of the server in `dcc`.".into());
            schema
        }
        KindName::Foreach => Foreach::json_schema(generator),
        KindName::Parallel => Parallel::json_schema(generator),
        KindName::Branch => Branch::json_schema(generator),
        KindName::Approve => Approve::json_schema(generator),
        KindName::Sleep => Sleep::json_schema(generator),
        KindName::Wait => Wait::json_schema(generator),
        KindName::Workflow => Workflow::json_schema(generator),
        KindName::Let => Let::json_schema(generator),
        KindName::Pass => {
            json_schema!({ "description": "Does nothing. In the graph form, it is a step that only has a transition." })
        }
    }
}

/// The pattern of step ids.
const ID: &str = "^[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*$";

/// Alternative sets of required fields. A step of the kind needs at least one of the sets.
fn one_of(kind: KindName) -> Option<&'static [&'static [&'static str]]> {
    match kind {
        KindName::Tool => Some(&[&["tool"], &["agent", "action"]]),
        KindName::ToolRemote => Some(&[&["dcc", "tool"]]),
        KindName::Parallel => Some(&[&["branches"], &["steps"]]),
        KindName::Branch => Some(&[&["on", "then"], &["if", "then"], &["cases"]]),
        KindName::Sleep => Some(&[&["for"], &["until"]]),
        _ => None,
    }
}

/// The transition keys of the graph form. A step requires at least one.
const TRANSITIONS: &[&str] = &["next", "branch", "parallel", "join", "done"];

/// The schema of a step of one kind. `extra` has the additional fields of the graph form, in which a step without a
/// tool is a gate.
fn step_of(kind: KindName, extra: Option<&Map<String, Value>>, generator: &mut SchemaGenerator) -> Value {
    let own = kind_schema(kind, generator);
    let mut all = properties::<Common>(generator);
    let policies = properties::<Policy>(generator);
    let allowed = Policy::keys_of(kind).concat();
    all.extend(policies.into_iter().filter(|(key, _)| allowed.contains(&key.as_str())));
    if let Some(Value::Object(fields)) = own.get("properties") {
        all.extend(fields.clone());
    }
    all.insert("kind".into(), json!({ "enum": [kind.name(), null] }));
    all.insert("id".into(), json!({ "type": "string", "pattern": ID, "description": "Id of the step, unique in the definition." }));
    let mut required: Vec<Value> = own.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut schema = json!({ "title": kind.name(), "description": own.get("description"), "type": "object" });
    if let Some(extra) = extra {
        all.extend(extra.clone());
        let transitions: Vec<Value> = TRANSITIONS.iter().map(|key| json!({ "required": [key] })).collect();
        schema["allOf"] = json!([{ "anyOf": transitions }]);
        if kind == KindName::Branch {
            all.insert("else".into(), json!({ "description": "Steps, or the next step." }));
        }
        all.remove("depends_on");
        if matches!(kind, KindName::Approve | KindName::Pass) {
            all.insert("tool".into(), json!({ "type": "null" }));
            all.insert("args".into(), json!({ "type": "object", "maxProperties": 0 }));
        }
    } else {
        required.push("id".into());
        let implying = IMPLIED_KINDS.iter().filter(|(_, implied)| *implied == kind).map(|(key, _)| *key);
        let implying: Vec<Value> = implying.chain(["kind"]).map(|key| json!({ "required": [key] })).collect();
        schema["allOf"] = json!([{ "anyOf": implying }]);
    }
    if let Some(needs) = one_of(kind) {
        schema["anyOf"] = needs.iter().map(|keys| json!({ "required": keys })).collect();
    }
    schema["properties"] = all.into();
    schema["required"] = required.into();
    schema["additionalProperties"] = false.into();
    schema
}

impl JsonSchema for Step {
    fn schema_name() -> Cow<'static, str> {
        "Step".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let kinds: Vec<Value> = KindName::ALL.iter().map(|kind| step_of(*kind, None, generator)).collect();
        json_schema!({ "description": "A step. `kind` or the other fields determine its kind.", "anyOf": kinds })
    }
}

/// A step of the graph form.
struct GraphStepSchema;

impl JsonSchema for GraphStepSchema {
    fn schema_name() -> Cow<'static, str> {
        "GraphStep".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut extra = properties::<Transition>(generator);
        extra.insert(
            "name".into(),
            json!({ "type": "string", "description": "Id of the step. Default: its key." }),
        );
        let kinds: Vec<Value> =
            KindName::ALL.iter().map(|kind| step_of(*kind, Some(&extra), generator)).collect();
        json_schema!({ "description": "A step of the graph form, with its transition.", "anyOf": kinds })
    }
}
