//! Retry policies as they are written.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::fields::{FromNode, Reader, choice, record};
use super::value::{Period, Spanned};
use crate::document::{Data, Node};

/// A retry policy as it is written: a number of retries, or a map.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Retry {
    /// `retry: 2` means two retries, so three attempts.
    Retries(Spanned<u32>),
    /// The full form.
    Policy(Box<RetryFields>),
}

record! {
    /// When and how often a failed attempt is repeated.
    pub struct RetryFields("a retry policy") {
        /// Attempts in all, the first one included; 1 means no retry.
        #[schemars(range(min = 1))]
        @required max_attempts: Spanned<u32>,
        /// How the delay grows; `exponential` by default.
        backoff: Backoff,
        /// Milliseconds before the first retry; 500 by default.
        initial_delay_ms: Spanned<u64>,
        /// Upper bound of the delay in milliseconds; 10000 by default.
        max_delay_ms: Spanned<u64>,
        /// Random share by which a delay varies, from 0 to 1; 0 by default.
        jitter: Spanned<f64>,
        /// The kinds of failure that are retried; all of them by default.
        retry_on: Vec<Spanned<FailureKind>>,
    }
}

impl FromNode for Retry {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        if matches!(node.data, Data::Number(_)) {
            return Spanned::from_node(node, reader).map(Self::Retries);
        }
        if !matches!(node.data, Data::Map(_)) {
            reader.wrong_type(&node, "a number of retries or a map");
            return None;
        }
        RetryFields::from_node(node, reader).map(|policy| Self::Policy(Box::new(policy)))
    }
}

impl JsonSchema for Retry {
    fn schema_name() -> Cow<'static, str> {
        "Retry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                {
                    "type": "integer",
                    "minimum": 0,
                    "description": "The number of retries after the first attempt.",
                },
                generator.subschema_for::<RetryFields>(),
            ],
        })
    }
}

/// How the delay between attempts grows, as it is written.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Backoff {
    /// A formula.
    Shape(Shape),
    /// The delays themselves; the last one repeats.
    Delays(Vec<Period>),
}

choice! {
    /// A formula for the delay before attempt n.
    pub enum Shape {
        /// Always the initial delay.
        Fixed = "fixed",
        /// The initial delay times n - 1.
        Linear = "linear",
        /// The initial delay times 2 to the n - 2.
        Exponential = "exponential",
    }
}

impl FromNode for Backoff {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match node.data {
            Data::List(_) => Vec::from_node(node, reader).map(Self::Delays),
            _ => Shape::from_node(node, reader).map(Self::Shape),
        }
    }
}

impl JsonSchema for Backoff {
    fn schema_name() -> Cow<'static, str> {
        "Backoff".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                generator.subschema_for::<Shape>(),
                {
                    "type": "array",
                    "items": generator.subschema_for::<Period>(),
                    "minItems": 1,
                    "description": "The delays themselves; the last one repeats.",
                },
            ],
        })
    }
}

choice! {
    /// Why an attempt failed, or a class of reasons, as `retry_on` names it.
    pub enum FailureKind {
        /// Class: failures that may pass by themselves, such as HTTP 429 and 5xx, or a lost connection.
        Transient = "transient",
        /// The deadline passed.
        Timeout = "timeout",
        /// The call was not sent: the server could not be reached in time (`server_wait`).
        Transport = "transport",
        /// The outcome is unknown: the call was sent, the answer was lost.
        Lost = "lost",
        /// The tool answered with an error.
        ToolError = "tool_error",
        /// The caller lacks the right.
        Permission = "permission",
        /// The arguments do not fit the tool.
        Validation = "validation",
        /// The tool does not exist.
        NotFound = "not_found",
        /// The call was cancelled.
        Cancelled = "cancelled",
        /// A limit was exceeded.
        Limit = "limit",
        /// The store failed.
        Storage = "storage",
    }
}
