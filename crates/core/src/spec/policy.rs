//! Parses policies: the fields that control how a step runs, and the kinds that accept each.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use super::fields::{Fields, FromNode, Reader, Record, choice, not_a_choice, record};
use super::result::FailIf;
use super::retry::Retry;
use super::step::KindName;
use super::value::{DurationSpec, Spanned, Text, ToolName};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, Node};
use crate::steps::NeedsHumanSpec;

record! {
    /// The fields that control how a step runs.
    pub struct Policy {
        /// Condition: an expression such as `steps.check.output.total > 100`, evaluated when the step is about to run and
        /// before its approval. If it does not hold, the step is skipped: its output is null, its status is `skipped`, and
        /// the run continues after it. In a list, `result` is the output of the previous step.
        r#if: Text,
        /// Timeout of an attempt; of the whole block on a `foreach`, `parallel` or `branch`; of the wait on an
        /// `approve` or `wait`. Default: none.
        timeout: Spanned<DurationSpec>,
        /// Alias of `timeout`, in seconds.
        #[schemars(range(min = 1))]
        timeout_secs: Spanned<u64>,
        /// Alias of `timeout`, in seconds.
        #[schemars(range(min = 1))]
        timeout_s: Spanned<u64>,
        /// Retry policy: a number of retries, or a map. On a `foreach`, `parallel` or `branch`, it is the default of the
        /// steps inside. Default: no retries; in the graph form, 3 attempts with delays of 30 s and 120 s.
        retry: Retry,
        /// What happens when the step has failed and no retry is left. `fail` (default): the run fails. `continue`: the run
        /// continues, and `steps.<id>.error` is set. `{goto: step}`: the run continues at that step.
        on_error: OnError,
        /// What happens when the outcome of a call is unknown, for example after a lost connection. `ask`: a human
        /// decides. `retry`: the call is repeated with the same idempotency key. `fail`: the step fails. `skip`: the step
        /// is skipped. Default: calls that are safe to repeat are retried, others wait for a human. On a `foreach`,
        /// `parallel` or `branch`, it is the default of the steps inside.
        on_uncertain: OnUncertain,
        /// Maximum time that an attempt waits for an unavailable server before it fails with `transport`. Default: it
        /// waits until the server is available. On a `foreach`, `parallel` or `branch`, it is the default of the steps
        /// inside.
        server_wait: Spanned<DurationSpec>,
        /// Whether the step waits for an approval before it runs: `true`, or a map with `prompt`, `approvers`, `quorum` and
        /// other fields of an `approve` step. Default: `false`.
        needs_human: NeedsHumanSpec,
        /// Idempotency key; a template. If a call of the same tool with the same key and scope has completed, its result is
        /// used instead of a call; if it is in flight, the step waits for it. Other arguments under the same key are an
        /// error. Default: a key generated for the step, the same for all attempts.
        idempotency_key: Text,
        /// Where the key is unique. `workflow` (default): in the run. `global`: in all runs of all definitions.
        idempotency_scope: KeyScope,
        /// Time to live of the result stored under the key, in seconds. 0 or no value: no expiry within the scope.
        idempotency_ttl_secs: Spanned<u64>,
        /// Name of the argument in which the idempotency key is sent, for tools that accept one.
        idempotency_arg: Text,
        /// Effects of a call, for tools without annotations. `read`: it changes nothing. `idempotent`: repeating it changes
        /// nothing more. `once`: each call has an effect.
        effects: Effects,
        /// Read-only call that determines whether a call with an unknown outcome has taken effect.
        verify: Verify,
        /// What happens if the tool does not exist when the step runs. `fail` (default): the step fails. `ask`: the step
        /// waits until a human has made the tool available. `create`: the configured provider is called to create it. On a
        /// `foreach`, `parallel` or `branch`, it is the default of the steps inside.
        missing_tool: MissingTool,
        /// Role in which the tool should act, passed along with the call.
        persona: Text,
        /// Condition on `result`, the result of the call, such as `result.status == "ok"`. If it does not hold, the attempt
        /// fails with `unexpected_result`, so that `retry` and `on_error` apply.
        expect: Text,
        /// Condition on `result` under which the attempt fails, such as `result.startsWith("Database error")`: an error that
        /// the tool returns as a success. A list of `{if, kind, message}` sets the name and the message of each failure. It is
        /// evaluated before `expect`. A result that is a failure is not stored under the idempotency key.
        fail_if: FailIf,
    }
}

const CONDITION: &[&str] = &["if"];
const WAITING: &[&str] = &["timeout", "timeout_secs", "timeout_s", "on_error", "needs_human"];
const REPEATED: &[&str] = &["retry"];
const INHERITED: &[&str] = &["retry", "on_uncertain", "server_wait", "missing_tool"];
const CALL: &[&str] = Policy::KEYS;

impl Policy {
    /// The policies that a kind of step accepts, in groups.
    pub(crate) fn keys_of(kind: KindName) -> &'static [&'static [&'static str]] {
        match kind {
            KindName::Tool | KindName::ToolRemote => &[CALL],
            KindName::Foreach | KindName::Parallel => &[CONDITION, WAITING, INHERITED],
            // `if` of a `branch` step is the condition of its `then`.
            KindName::Branch => &[WAITING, INHERITED],
            KindName::Workflow => &[CONDITION, WAITING, REPEATED],
            KindName::Approve | KindName::Wait => &[CONDITION, WAITING],
            KindName::Let => &[CONDITION, &["on_error"]],
            KindName::Sleep | KindName::Pass => &[CONDITION, &["on_error", "needs_human"]],
        }
    }

    /// The timeout in milliseconds, from any of its aliases.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let seconds = self.timeout_secs.as_ref().or(self.timeout_s.as_ref());
        let seconds = seconds.map(|seconds| seconds.value.saturating_mul(1000));
        self.timeout.as_ref().map(|timeout| timeout.millis).or(seconds)
    }

    /// Parses the policies of a step. Reports those that its kind does not accept.
    pub(crate) fn read_for(kind: KindName, fields: &mut Fields, reader: &mut Reader) -> Self {
        let allowed = |key: &str| Self::keys_of(kind).iter().any(|group| group.contains(&key));
        let misplaced: Vec<&str> =
            Self::KEYS.iter().copied().filter(|key| !allowed(key) && fields.has(key)).collect();
        for entry in misplaced.into_iter().filter_map(|key| fields.take_node(key)) {
            let message = format!("`{}` is not allowed on a `{}` step", entry.key, kind.name());
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
    /// The scope in which an idempotency key is unique.
    pub enum KeyScope {
        /// In one run.
        Workflow = "workflow",
        /// In all runs of all definitions.
        Global = "global",
    }
}

choice! {
    /// What happens when the outcome of a call is unknown.
    pub enum OnUncertain {
        /// A human decides.
        Ask = "ask",
        /// The call is repeated with the same idempotency key.
        Retry = "retry",
        /// The step fails.
        Fail = "fail",
        /// The step is skipped.
        Skip = "skip",
    }
}

choice! {
    /// The effects of a call.
    pub enum Effects {
        /// A call changes nothing.
        Read = "read",
        /// Repeating a call changes nothing more.
        Idempotent = "idempotent",
        /// Each call has an effect.
        Once = "once",
    }
}

choice! {
    /// What happens if the tool does not exist when the step runs.
    pub enum MissingTool {
        /// The step fails.
        Fail = "fail",
        /// The step waits until a human has made the tool available.
        Ask = "ask",
        /// The configured provider is called to create the tool.
        Create = "create",
    }
}

record! {
    /// Read-only call that determines whether a call with an unknown outcome has taken effect.
    pub struct Verify("`verify`") {
        /// Name of the tool, with its server: `server__tool`.
        @required tool: Spanned<ToolName>,
        /// Arguments. Strings can contain references.
        args: Node,
        /// Condition on `result`, the output of this tool. If it holds, the call has taken effect and `result` becomes the
        /// output of the step. Otherwise the call is repeated.
        @required when: Text,
    }
}

/// What happens when a step has failed and no retry is left.
#[derive(Debug, Clone)]
pub enum OnError {
    /// The run fails.
    Fail,
    /// The run continues; the failure is `steps.<id>.error`.
    Continue,
    /// The run continues at another step.
    Goto(Text),
}

/// `goto` as written: `{goto: step}`.
#[derive(Serialize)]
struct Goto<'g> {
    goto: &'g Text,
}

pub(crate) fn read_goto(node: Node, expected: &[&str], reader: &mut Reader) -> Option<Text> {
    if !matches!(node.data, Data::Map(_)) {
        not_a_choice(&node, expected, reader);
        return None;
    }
    let mut fields = Fields::open(node, "a `goto`", reader)?;
    fields.require("goto", reader);
    let target = fields.take("goto", reader);
    fields.finish([&["goto"][..]], reader);
    target
}

pub(crate) fn write_goto<S: Serializer>(target: &Text, serializer: S) -> Result<S::Ok, S::Error> {
    Goto { goto: target }.serialize(serializer)
}

pub(crate) fn goto_schema(values: &[&str]) -> Schema {
    json_schema!({
        "anyOf": [
            { "enum": values },
            {
                "type": "object",
                "properties": { "goto": { "type": "string", "description": "The step at which the run continues." } },
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
