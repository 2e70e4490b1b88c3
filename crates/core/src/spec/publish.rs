//! Parses `publish`: workflows that are published as MCP tools.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::fields::{FromNode, Reader, choice, record};
use super::value::ToolName;
use crate::document::{Data, Node};
use crate::names;

/// Whether and how a workflow is published as a tool, as written.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Publish {
    /// Published as `wf_<name>`, or not published.
    Plain(bool),
    /// Published with these settings.
    As(PublishFields),
}

record! {
    /// How a workflow is published as a tool.
    #[schemars(rename = "PublishOptions")]
    pub struct PublishFields("`publish`") {
        /// Name of the tool. Default: `wf_<name>`.
        r#as: ToolName,
        /// Whether calls of the tool become MCP tasks. `auto` (default): if the client supports tasks and the run does not
        /// end immediately. `never`: the call waits and then returns the id of the run. `required`: always; clients without
        /// support for tasks get an error.
        task: TaskMode,
    }
}

choice! {
    /// Whether a call of a published workflow becomes an MCP task.
    pub enum TaskMode {
        /// If the client supports tasks and the run does not end immediately.
        Auto = "auto",
        /// Never: the call waits and then returns the id of the run.
        Never = "never",
        /// Always. Clients without support for tasks get an error.
        Required = "required",
    }
}

impl Publish {
    /// Whether the workflow is published.
    pub fn is_on(&self) -> bool {
        !matches!(self, Self::Plain(false))
    }

    /// The name of the tool as which a workflow is published.
    pub fn tool_name(&self, workflow: &str) -> String {
        match self {
            Self::As(PublishFields { r#as: Some(name), .. }) => name.0.clone(),
            _ => names::workflow_name(workflow),
        }
    }
}

impl FromNode for Publish {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match node.data {
            Data::Bool(publish) => Some(Self::Plain(publish)),
            Data::Map(_) => PublishFields::from_node(node, reader).map(Self::As),
            _ => {
                reader.wrong_type(&node, "true, false, or a map with `as` and `task`");
                None
            }
        }
    }
}

impl JsonSchema for Publish {
    fn schema_name() -> Cow<'static, str> {
        "Publish".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "boolean" }, generator.subschema_for::<PublishFields>()] })
    }
}
