//! `workflow`: runs another workflow.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::document::{Data, Node};
use crate::spec::fields::{FromNode, Reader, record};
use crate::spec::value::Text;

record! {
    /// Runs another workflow as the same user and waits until it ends. The output is the output of that workflow.
    pub struct Workflow {
        /// Name of the stored definition.
        @required name: Text,
        /// Version of the definition. Default: the newest one at the time when this definition is stored, which is kept.
        version: WorkflowVersion,
        /// Inputs of the run: a map, or a reference to one. Strings can contain references.
        inputs: Node,
    }
}

/// Which version of a sub-workflow a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkflowVersion {
    /// This version.
    Number(u32),
    /// The newest version at each start. Both definitions must have the same owner.
    Latest,
}

impl WorkflowVersion {
    const LATEST: &str = "latest";
}

impl FromNode for WorkflowVersion {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        if node.as_text() == Some(Self::LATEST) {
            return Some(Self::Latest);
        }
        let number = if let Data::Number(number) = &node.data { number.as_u64() } else { None };
        let number = number.and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0);
        if number.is_none() {
            reader.wrong_type(&node, "the number of a version or `latest`");
        }
        number.map(Self::Number)
    }
}

impl Serialize for WorkflowVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u32(*number),
            Self::Latest => serializer.serialize_str(Self::LATEST),
        }
    }
}

impl JsonSchema for WorkflowVersion {
    fn schema_name() -> Cow<'static, str> {
        "WorkflowVersion".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The version of a sub-workflow.",
            "anyOf": [
                { "type": "integer", "minimum": 1, "description": "This version." },
                {
                    "type": "string",
                    "enum": ["latest"],
                    "description": "The newest version at each start. Both definitions must have the same owner.",
                },
            ],
        })
    }
}
