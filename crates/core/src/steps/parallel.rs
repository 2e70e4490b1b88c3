//! `parallel`: runs branches at the same time and waits for all of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::OnFail;
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, Node};
use crate::spec::fields::{Fields, FromNode, Reader, Record, record};
use crate::spec::step::Steps;
use crate::spec::value::Spanned;

record! {
    /// Runs branches at the same time and waits for all of them. The output maps the name of each branch to the output of
    /// its last step.
    pub struct Parallel {
        /// Branches: a map of name to steps, or a list of lists of steps. The names of branches in a list are `0`, `1`, …
        branches: Branches,
        /// Short form of `branches` in which each step is a branch, named by its id.
        steps: Steps,
        /// Maximum number of branches that run at the same time. Default: all.
        #[schemars(range(min = 1))]
        concurrency: Spanned<u32>,
        /// What happens when a branch fails. `abort` (default): the other branches are cancelled and the step fails.
        /// `continue`: the other branches continue, and each result is `{status, output}` or `{status, error}`.
        on_any_fail: OnFail,
    }
}

impl Parallel {
    pub(crate) fn read_checked(fields: &mut Fields, reader: &mut Reader) -> Self {
        match (fields.is_set("branches"), fields.is_set("steps")) {
            (true, true) => {
                let message = "`branches` and `steps` cannot be used together";
                reader.report(
                    Diagnostic::new(Code::ConflictingFields, fields.span, message).hint("keep one of them"),
                );
            }
            (false, false) => fields.require("branches", reader),
            _ => {}
        }
        Self::read(fields, reader)
    }
}

/// Branches as written.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Branches {
    /// Lists of steps. The name of a branch is its index.
    Listed(Vec<Steps>),
    /// Named lists of steps.
    Named(BTreeMap<String, Steps>),
}

impl FromNode for Branches {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match node.data {
            Data::List(_) => Vec::from_node(node, reader).map(Self::Listed),
            Data::Map(_) => BTreeMap::from_node(node, reader).map(Self::Named),
            _ => {
                reader.wrong_type(&node, "a map of name to steps, or a list of lists of steps");
                None
            }
        }
    }
}

impl JsonSchema for Branches {
    fn schema_name() -> Cow<'static, str> {
        "Branches".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let steps = generator.subschema_for::<Steps>();
        json_schema!({
            "anyOf": [
                { "type": "object", "additionalProperties": steps, "description": "Branches by name." },
                { "type": "array", "items": steps, "description": "Branches by index." },
            ],
        })
    }
}
