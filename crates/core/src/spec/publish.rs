//! `publish`: a workflow as a tool of its own.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::fields::{FromNode, Reader, choice, record};
use super::value::ToolName;
use crate::document::{Data, Node};

/// Whether and how a workflow is offered to agents as a tool, as it is written.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Publish {
    /// As `wf_<name>`, or not at all.
    Plain(bool),
    /// As it says.
    As(PublishFields),
}

record! {
    /// How a workflow is offered to agents as a tool.
    pub struct PublishFields("`publish`") {
        /// The tool's name; `wf_<name>` by default.
        r#as: ToolName,
        /// Whether a call of the tool becomes a task of clients that know tasks; `auto` by default.
        task: TaskMode,
    }
}

choice! {
    /// Whether a call of a published workflow becomes a task.
    pub enum TaskMode {
        /// If the run does not end at once.
        Auto = "auto",
        /// Never: the call waits, and then gives the run's id.
        Never = "never",
        /// Always; clients that do not know tasks are refused.
        Required = "required",
    }
}

impl Publish {
    /// Whether it is offered at all.
    pub fn is_on(&self) -> bool {
        !matches!(self, Self::Plain(false))
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
