//! `parallel`: several branches at the same time, joined when all are done.

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
    /// Runs its branches at the same time and goes on when all are done. Its output maps each branch's
    /// name to the output of the branch's last step.
    pub struct Parallel {
        /// The branches: a map of name to steps, or a list of lists of steps.
        branches: Branches,
        /// Steps that are a branch each.
        steps: Steps,
        /// How many branches run at the same time; all by default.
        #[schemars(range(min = 1))]
        concurrency: Spanned<u32>,
        /// What a failed branch does to the others. With `continue`, each result is
        /// `{status, output}` or `{status, error}`.
        on_any_fail: OnFail,
    }
}

impl Parallel {
    pub(crate) fn read_one(fields: &mut Fields, reader: &mut Reader) -> Self {
        match (fields.is_set("branches"), fields.is_set("steps")) {
            (true, true) => {
                let message = "`branches` and `steps` both say what the branches are";
                reader.report(
                    Diagnostic::new(Code::ConflictingFields, fields.place, message).hint("keep one of them"),
                );
            }
            (false, false) => fields.require("branches", reader),
            _ => {}
        }
        Self::read(fields, reader)
    }
}

/// Branches as they are written.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Branches {
    /// Lists of steps; a branch is called by its place, from 0.
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
                { "type": "array", "items": steps, "description": "Branches by place." },
            ],
        })
    }
}
