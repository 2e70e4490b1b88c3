//! `approve`: a gate that a human opens.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

use crate::document::Node;
use crate::spec::fields::{FromNode, Reader, choice, record};
use crate::spec::policy::{goto_schema, read_goto, write_goto};
use crate::spec::value::{Names, Period, Spanned, Text};

record! {
    /// Pauses the run until a human approves or denies. Its output is
    /// `{approved, by, reason}`.
    pub struct Approve {
        /// The question; a template.
        prompt: Text,
        /// Whom to tell.
        notify_user: Names,
        /// Who may decide: users or groups. By default, everyone with the right to approve.
        approvers: Names,
        /// Whether the one who started the run may decide; `false` by default.
        allow_self: Spanned<bool>,
        /// What a denial does. By default the run is cancelled; in the tree form the step fails.
        on_deny: OnDeny,
        /// What happens when the time is up; `deny` by default.
        on_timeout: OnTimeout,
        /// Further notices while nobody has answered.
        escalate: Vec<Escalation>,
    }
}

choice! {
    /// What happens to a gate when its time is up.
    pub enum OnTimeout {
        /// It counts as denied.
        Deny = "deny",
        /// The last escalation is told, and the gate stays open.
        Escalate = "escalate",
    }
}

record! {
    /// A further notice when nobody has answered.
    pub struct Escalation("an escalation") {
        /// How long after the question.
        @required after: Spanned<Period>,
        /// Whom to tell.
        @required notify: Names,
    }
}

/// What a denial does.
#[derive(Debug, Clone)]
pub enum OnDeny {
    /// The run is cancelled with the reason `denied`.
    Cancel,
    /// The step fails.
    Fail,
    /// The run goes on; the step's output says `approved: false`.
    Continue,
    /// The run goes on at another step.
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
