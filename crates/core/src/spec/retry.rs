//! Parses retry policies.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::fields::{FromNode, Reader, choice, record};
use super::value::{DurationSpec, Spanned};
use crate::document::{Data, Node};

/// A retry policy as written: a number of retries, or a map.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Retry {
    /// The number of retries: `retry: 2` allows three attempts.
    Retries(Spanned<u32>),
    /// A map.
    Policy(Box<RetryFields>),
}

record! {
    /// When and how often a failed attempt is retried.
    #[schemars(rename = "RetryPolicy")]
    pub struct RetryFields("a retry policy") {
        /// Maximum number of attempts, including the first. 1 means no retry.
        #[schemars(range(min = 1))]
        @required max_attempts: Spanned<u32>,
        /// How the delay between attempts grows. `fixed`: it stays the initial delay. `linear`: it grows by the initial
        /// delay after each attempt. `exponential` (default): it doubles after each attempt. A list sets the delays; the
        /// last one repeats.
        backoff: Backoff,
        /// Delay before the first retry, in milliseconds. Default: 500.
        initial_delay_ms: Spanned<u64>,
        /// Maximum delay, in milliseconds. Default: 10000, or the longest delay of a list.
        max_delay_ms: Spanned<u64>,
        /// Random fraction by which each delay is shortened or extended, from 0 to 1. Default: 0.
        jitter: Spanned<f64>,
        /// Kinds of failure to retry. Default: all except `permission`, `cancelled` and `limit`.
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

/// The delays between attempts, as written.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Backoff {
    /// A formula.
    Shape(Shape),
    /// A list of delays; the last one repeats.
    Delays(Vec<DurationSpec>),
}

choice! {
    /// A formula for the delay before attempt n.
    pub enum Shape {
        /// The initial delay.
        Fixed = "fixed",
        /// The initial delay times n - 1.
        Linear = "linear",
        /// The initial delay times 2^(n - 2).
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
                    "items": generator.subschema_for::<DurationSpec>(),
                    "minItems": 1,
                    "description": "A list of delays; the last one repeats.",
                },
            ],
        })
    }
}

choice! {
    /// The kind of a failure, or a class of failures, for `retry_on`.
    pub enum FailureKind {
        /// Class of failures that may be temporary, such as HTTP 429 and 5xx or a lost connection.
        Transient = "transient",
        /// The step timed out.
        Timeout = "timeout",
        /// The call was not sent: the server was unavailable for longer than `server_wait`.
        Transport = "transport",
        /// The call was sent, but its result was lost, so that its outcome is unknown.
        Lost = "lost",
        /// The tool returned an error.
        ToolError = "tool_error",
        /// The tool returned a result that `expect` or `fail_if` of the step rejects.
        UnexpectedResult = "unexpected_result",
        /// The user lacks a right, or a human denied the call.
        Permission = "permission",
        /// The arguments are invalid, or an expression could not be evaluated.
        Validation = "validation",
        /// The tool does not exist.
        NotFound = "not_found",
        /// The call was cancelled.
        Cancelled = "cancelled",
        /// A limit was exceeded.
        Limit = "limit",
        /// The store reported an error.
        Storage = "storage",
    }
}
