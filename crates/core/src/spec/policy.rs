//! Policies: what may stand on a step beside what it does, and on which kinds of step.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use super::fields::{Fields, FromNode, Reader, Record, choice, not_a_choice, record};
use super::retry::Retry;
use super::step::KindName;
use super::value::{Period, Spanned, Text, ToolName};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, Node};

record! {
    /// What stands on a step beside what it does.
    pub struct Policy {
        /// Deadline of one attempt; on a `foreach`, `parallel` or `branch`, of the whole block; on an
        /// `approve` or `wait`, of the waiting.
        timeout: Spanned<Period>,
        /// The same as `timeout`, in seconds.
        #[schemars(range(min = 1))]
        timeout_secs: Spanned<u64>,
        /// The same as `timeout`, in seconds.
        #[schemars(range(min = 1))]
        timeout_s: Spanned<u64>,
        /// When and how often a failed attempt is repeated. On a `foreach`, `parallel` or `branch` it is
        /// the default of the steps inside.
        retry: Retry,
        /// What happens when the step has failed for good. Without it, the run fails.
        on_error: OnError,
        /// What happens when a call's outcome is unknown. On a `foreach`, `parallel` or `branch` it is the
        /// default of the steps inside.
        on_uncertain: OnUncertain,
        /// How long an attempt of the step waits for a server that cannot take its call; then the attempt fails with
        /// `transport`. Without it, the step waits until the server is back. On a `foreach`, `parallel` or `branch` it
        /// is the default of the steps inside.
        server_wait: Spanned<Period>,
        /// Ask a human before the step runs.
        needs_human: Spanned<bool>,
        /// A template. A completed step with the same tool, key and scope is not executed again; its
        /// result is used.
        idempotency_key: Text,
        /// Where the key is unique: in this run (the default), or everywhere.
        idempotency_scope: KeyScope,
        /// How long a result is kept under its key; 0 or nothing means as long as its scope.
        idempotency_ttl_secs: Spanned<u64>,
        /// The argument that receives the idempotency key, for tools that take one.
        idempotency_arg: Text,
        /// What a repeated call does, for tools that do not say so themselves.
        effects: Effects,
        /// A read-only call that tells whether a call with an unknown outcome took place.
        verify: Verify,
        /// What happens when the tool does not exist at run time. On a `foreach`, `parallel` or `branch` it
        /// is the default of the steps inside.
        missing_tool: MissingTool,
        /// A role for the tool to take, passed on with the call.
        persona: Text,
    }
}

const WAITING: &[&str] = &["timeout", "timeout_secs", "timeout_s", "on_error", "needs_human"];
const REPEATED: &[&str] = &["retry"];
const INHERITED: &[&str] = &["retry", "on_uncertain", "server_wait", "missing_tool"];
const CALL: &[&str] = Policy::KEYS;

impl Policy {
    /// The policy keys that mean something on a kind of step, in groups.
    pub(crate) fn keys_of(kind: KindName) -> &'static [&'static [&'static str]] {
        match kind {
            KindName::Tool | KindName::ToolRemote => &[CALL],
            KindName::Foreach | KindName::Parallel | KindName::Branch => &[WAITING, INHERITED],
            KindName::Workflow => &[WAITING, REPEATED],
            KindName::Approve | KindName::Wait => &[WAITING],
            KindName::Sleep | KindName::Pass => &[&["on_error", "needs_human"]],
        }
    }

    /// The deadline in milliseconds, under whichever of its names it is written.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let seconds = self.timeout_secs.as_ref().or(self.timeout_s.as_ref());
        let seconds = seconds.map(|seconds| seconds.value.saturating_mul(1000));
        self.timeout.as_ref().map(|period| period.millis).or(seconds)
    }

    /// Takes the policies out of a step's map; those that mean nothing on its kind stay there and are
    /// reported as unknown.
    pub(crate) fn read_for(kind: KindName, fields: &mut Fields, reader: &mut Reader) -> Self {
        let allowed = |key: &str| Self::keys_of(kind).iter().any(|group| group.contains(&key));
        let foreign: Vec<&str> =
            Self::KEYS.iter().copied().filter(|key| !allowed(key) && fields.has(key)).collect();
        for entry in foreign.into_iter().filter_map(|key| fields.take_node(key)) {
            let message = format!("`{}` means nothing on a `{}` step", entry.key, kind.word());
            let hint = match kind {
                KindName::Foreach | KindName::Parallel | KindName::Branch => "put it on the steps inside",
                _ => "remove it",
            };
            reader.report(Diagnostic::new(Code::UnknownKey, entry.key_span, message).hint(hint));
        }
        Self::read(fields, reader)
    }
}

choice! {
    /// Where an idempotency key is unique.
    pub enum KeyScope {
        /// In one run.
        Workflow = "workflow",
        /// In all runs of all definitions.
        Global = "global",
    }
}

choice! {
    /// What happens when a call's outcome is unknown.
    pub enum OnUncertain {
        /// The run pauses and a human says what happened.
        Ask = "ask",
        /// The call is made again with the same key.
        Retry = "retry",
        /// The step fails.
        Fail = "fail",
        /// The step is skipped.
        Skip = "skip",
    }
}

choice! {
    /// What a repeated call does.
    pub enum Effects {
        /// It changes nothing.
        Read = "read",
        /// It changes what the first call changed already.
        Idempotent = "idempotent",
        /// It does its work once more.
        Once = "once",
    }
}

choice! {
    /// What happens when a tool does not exist at run time.
    pub enum MissingTool {
        /// The step fails.
        Fail = "fail",
        /// A human is asked.
        Ask = "ask",
        /// The configured provider is asked to create it.
        Create = "create",
    }
}

record! {
    /// A read-only call that tells whether a call with an unknown outcome took place.
    pub struct Verify("`verify`") {
        /// The tool to call.
        @required tool: Spanned<ToolName>,
        /// Its arguments.
        args: Node,
        /// A condition on its `result`: true means that the call took place.
        @required when: Text,
    }
}

/// What happens when a step has failed for good, or a gate was denied.
#[derive(Debug, Clone)]
pub enum OnError {
    /// The run fails.
    Fail,
    /// The run goes on; the step's `error` can be read.
    Continue,
    /// The run goes on at another step.
    Goto(Text),
}

/// `goto` as it is written: `{goto: step}`.
#[derive(Serialize)]
struct Goto<'g> {
    goto: &'g Text,
}

pub(crate) fn read_goto(node: Node, words: &[&str], reader: &mut Reader) -> Option<Text> {
    if !matches!(node.data, Data::Map(_)) {
        not_a_choice(&node, words, reader);
        return None;
    }
    let mut fields = Fields::open(node, "a jump", reader)?;
    fields.require("goto", reader);
    let target = fields.take("goto", reader);
    fields.finish([&["goto"][..]], reader);
    target
}

pub(crate) fn write_goto<S: Serializer>(target: &Text, serializer: S) -> Result<S::Ok, S::Error> {
    Goto { goto: target }.serialize(serializer)
}

pub(crate) fn goto_schema(words: &[&str]) -> Schema {
    json_schema!({
        "anyOf": [
            { "enum": words },
            {
                "type": "object",
                "properties": { "goto": { "type": "string", "description": "The step to go on with." } },
                "required": ["goto"],
                "additionalProperties": false,
            },
        ],
    })
}

impl FromNode for OnError {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match node.as_text() {
            Some("fail") => Some(Self::Fail),
            Some("continue") => Some(Self::Continue),
            _ => read_goto(node, &["fail", "continue", "{goto: step}"], reader).map(Self::Goto),
        }
    }
}

impl Serialize for OnError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fail => serializer.serialize_str("fail"),
            Self::Continue => serializer.serialize_str("continue"),
            Self::Goto(target) => write_goto(target, serializer),
        }
    }
}

impl JsonSchema for OnError {
    fn schema_name() -> Cow<'static, str> {
        "OnError".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        goto_schema(&["fail", "continue"])
    }
}
