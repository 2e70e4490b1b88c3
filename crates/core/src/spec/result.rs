//! Parses `fail_if`: the conditions under which the result of a call is a failure.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::fields::{FromNode, Reader, record};
use super::value::Text;
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, Node};
use crate::limits;

/// `fail_if` as written: a condition, or a list of conditions with the failures that they cause.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum FailIf {
    /// One condition.
    Condition(Text),
    /// Several conditions.
    Rules(Vec<FailRule>),
}

record! {
    /// A condition and the failure that it causes.
    pub struct FailRule("an entry of `fail_if`") {
        /// Condition on `result`, the result of the call.
        @required r#if: Text,
        /// Name of the failure, which is `steps.<id>.error.code`. `transient`: the same call may succeed later, as `retry_on`
        /// names it.
        kind: Text,
        /// What happened, for users; a template that can read `result`.
        message: Text,
    }
}

impl FromNode for FailIf {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match &node.data {
            Data::Text(_) => Text::from_node(node, reader).map(Self::Condition),
            Data::List(items) if items.is_empty() || items.len() > limits::FAIL_RULES => {
                let message = format!("`fail_if` needs 1 to {} conditions", limits::FAIL_RULES);
                reader.report(Diagnostic::new(Code::InvalidValue, node.span, message));
                None
            }
            Data::List(_) => Vec::from_node(node, reader).map(Self::Rules),
            _ => {
                reader.wrong_type(&node, "a condition, or a list of `{if, kind, message}`");
                None
            }
        }
    }
}

impl JsonSchema for FailIf {
    fn schema_name() -> Cow<'static, str> {
        "FailIf".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string", "description": "A condition on `result`." },
                {
                    "type": "array",
                    "items": generator.subschema_for::<FailRule>(),
                    "minItems": 1,
                    "maxItems": limits::FAIL_RULES,
                },
            ],
        })
    }
}
