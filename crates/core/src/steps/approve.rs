//! `approve`: waits for the decision of a human.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::document::{Data, Node};
use crate::spec::fields::{FromNode, Reader, choice, record};
use crate::spec::input::Input;
use crate::spec::policy::{goto_schema, read_goto, write_goto};
use crate::spec::value::{DurationSpec, Interval, Names, Spanned, Text};

record! {
    /// Waits until a human approves or denies. The output is `{approved, by, reason}`, and `form` if the step has one.
    pub struct Approve {
        /// Question to the approvers; a template.
        prompt: Text,
        /// Users or groups to notify.
        notify_user: Names,
        /// Users or groups who may decide: `user:lea`, `group:finance`. Default: all users with the right `approve`.
        approvers: Names,
        /// Number of different approvers who must approve. One denial is enough to deny. Default: 1.
        #[schemars(range(min = 1))]
        quorum: Spanned<u32>,
        /// JSON Schema of values that the approver enters. They are `form` in the output.
        form: Input,
        /// Whether the user who started the run may decide. Default: `false`.
        allow_self: Spanned<bool>,
        /// What happens after a denial. `cancel` (default in the graph form): the run is cancelled. `fail` (default in a
        /// list): the step fails. `continue`: the run continues with `approved: false` in the output. `{goto: step}`: the run
        /// continues at that step.
        on_deny: OnDeny,
        /// What happens when `timeout` expires. `deny` (default): as after a denial. `escalate`: the last level is notified
        /// again and the gate stays open. `fail`: the step fails with `timeout`, so that `on_error` applies.
        /// `{goto: step}`: the run continues at that step, with `approved: false` in the output.
        on_timeout: Spanned<ApproveTimeout>,
        /// Time between reminders of those who were asked: `every 2h`. At least a minute; at most 100 reminders are sent.
        remind: Spanned<Interval>,
        /// Further levels of approvers and notifications until a decision is made, in order of time.
        escalate: Vec<Spanned<Escalation>>,
    }
}

record! {
    /// The approval that a step waits for before it runs.
    pub struct NeedsHuman("`needs_human`") {
        /// Question to the approvers; a template. Default: a question with the tool and its arguments.
        prompt: Text,
        /// Users or groups to notify.
        notify_user: Names,
        /// Users or groups who may decide: `user:lea`, `group:finance`. Default: all users with the right `approve`.
        approvers: Names,
        /// Number of different approvers who must approve. One denial is enough to deny. Default: 1.
        #[schemars(range(min = 1))]
        quorum: Spanned<u32>,
        /// Whether the user who started the run may decide. Default: `false`.
        allow_self: Spanned<bool>,
        /// Time until the request expires. Default: none.
        timeout: Spanned<DurationSpec>,
        /// What happens when `timeout` expires. `deny` (default): as after a denial, the run is cancelled. `escalate`: the
        /// last level is notified again and the gate stays open. `fail`: the step fails with `timeout`, so that `retry` and
        /// `on_error` apply.
        on_timeout: Spanned<OnTimeout>,
        /// Time between reminders of those who were asked: `every 2h`. At least a minute; at most 100 reminders are sent.
        remind: Spanned<Interval>,
        /// Further levels of approvers and notifications until a decision is made, in order of time.
        escalate: Vec<Spanned<Escalation>>,
    }
}

/// `needs_human` as written: `true`, or the approval that is requested.
#[derive(Debug, Clone)]
pub enum NeedsHumanSpec {
    /// `true` or `false`.
    Flag(bool),
    /// An approval with its own rules.
    Gate(Box<NeedsHuman>),
}

impl FromNode for NeedsHumanSpec {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match node.data {
            Data::Bool(flag) => Some(Self::Flag(flag)),
            Data::Map(_) => NeedsHuman::from_node(node, reader).map(|gate| Self::Gate(Box::new(gate))),
            _ => {
                reader.wrong_type(&node, "`true`, `false` or a map");
                None
            }
        }
    }
}

impl Serialize for NeedsHumanSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Flag(flag) => flag.serialize(serializer),
            Self::Gate(gate) => gate.serialize(serializer),
        }
    }
}

impl JsonSchema for NeedsHumanSpec {
    fn schema_name() -> Cow<'static, str> {
        "NeedsHumanSpec".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let gate = generator.subschema_for::<NeedsHuman>();
        json_schema!({ "anyOf": [{ "type": "boolean" }, gate] })
    }
}

choice! {
    /// What happens to a gate when its timeout expires.
    pub enum OnTimeout {
        /// The gate is denied.
        Deny = "deny",
        /// The last level is notified again and the gate stays open.
        Escalate = "escalate",
        /// The step fails with `timeout`.
        Fail = "fail",
    }
}

/// What happens to an `approve` step when its timeout expires, as written.
#[derive(Debug, Clone)]
pub enum ApproveTimeout {
    /// What can happen to every gate.
    Gate(OnTimeout),
    /// The run continues at another step.
    Goto(Text),
}

impl Default for ApproveTimeout {
    fn default() -> Self {
        Self::Gate(OnTimeout::Deny)
    }
}

impl FromNode for ApproveTimeout {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match node.as_text().and_then(OnTimeout::from_name) {
            Some(on_timeout) => Some(Self::Gate(on_timeout)),
            None => read_goto(node, &["deny", "escalate", "fail", "{goto: step}"], reader).map(Self::Goto),
        }
    }
}

impl Serialize for ApproveTimeout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Gate(on_timeout) => on_timeout.serialize(serializer),
            Self::Goto(target) => write_goto(target, serializer),
        }
    }
}

impl JsonSchema for ApproveTimeout {
    fn schema_name() -> Cow<'static, str> {
        "ApproveTimeout".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        goto_schema(OnTimeout::NAMES)
    }
}

record! {
    /// A further level of a gate if no decision was made.
    pub struct Escalation("an escalation") {
        /// Time after the request. Each level is later than the one before, and earlier than the timeout.
        @required after: Spanned<DurationSpec>,
        /// Users or groups to notify. Default: `approvers`.
        notify: Names,
        /// Users or groups who may decide from then on, in addition to those before.
        approvers: Names,
        /// Channels of the messages of this level, instead of those that the recipients prefer. A recipient who has no address
        /// in them is notified as usual.
        channels: Names,
    }
}

/// What happens after a denial, as written.
#[derive(Debug, Clone)]
pub enum OnDeny {
    /// The run is cancelled with the reason `denied`.
    Cancel,
    /// The step fails.
    Fail,
    /// The run continues with `approved: false` in the output.
    Continue,
    /// The run continues at another step.
    Goto(Text),
}

impl FromNode for OnDeny {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match node.as_text() {
            Some("cancel") => Some(Self::Cancel),
            Some("fail") => Some(Self::Fail),
            Some("continue") => Some(Self::Continue),
            _ => read_goto(node, &["cancel", "fail", "continue", "{goto: step}"], reader).map(Self::Goto),
        }
    }
}

impl Serialize for OnDeny {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Cancel => serializer.serialize_str("cancel"),
            Self::Fail => serializer.serialize_str("fail"),
            Self::Continue => serializer.serialize_str("continue"),
            Self::Goto(target) => write_goto(target, serializer),
        }
    }
}

impl JsonSchema for OnDeny {
    fn schema_name() -> Cow<'static, str> {
        "OnDeny".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        goto_schema(&["cancel", "fail", "continue"])
    }
}
