//! The policy file as written: typed, with positions, without defaults.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Data, Node};
use crate::presence::Presence;
use crate::spec::fields::{Fields, FromNode, Reader, choice, record};
use crate::spec::value::{DurationSpec, Interval, Names, Spanned, Text};
use crate::steps::OnTimeout;

record! {
    /// The rules of an operator for all calls of tools.
    pub struct PolicySpec("a policy") {
        /// What happens to a call that no rule matches.
        @required default: DefaultAction,
        /// Time zone of `time` in conditions and of budgets per day and week, such as `Europe/Berlin`. Default: `UTC`.
        time_zone: Text,
        /// What agents may define.
        definitions: DefinitionRules,
        /// The rules, in order. The first rule that matches a call decides.
        rules: Vec<RuleSpec>,
        /// Rejects a call after this many calls of the same user with the same tool and arguments.
        identical_calls: IdenticalCallsSpec,
    }
}

choice! {
    /// What happens to a call that no rule matches.
    pub enum DefaultAction {
        /// It is made.
        Allow = "allow",
        /// It fails.
        Deny = "deny",
        /// It is made after an approval.
        RequireApproval = "require_approval",
    }
}

record! {
    /// What agents may define.
    pub struct DefinitionRules("`definitions`") {
        /// Definitions by agents. `allowed` (default): they are stored. `proposed`: a person accepts them first. `denied`: they
        /// are rejected.
        by_agents: ByAgents,
    }
}

choice! {
    /// What happens to a definition by an agent.
    pub enum ByAgents {
        /// It is stored.
        Allowed = "allowed",
        /// It is a proposal until a person accepts it.
        Proposed = "proposed",
        /// It is rejected.
        Denied = "denied",
    }
}

record! {
    /// A rule: conditions that all have to hold, and what happens then.
    pub struct RuleSpec("a rule") {
        /// Name of the rule, unique in the policy. Events and messages show it.
        @required name: Text,
        /// Patterns of full tool names: `crm__read_*`, `git__*`, `*`. Default: all tools.
        tools: Names,
        /// Annotations that the tool has. A missing annotation has the protocol's default: not read-only, destructive, not
        /// idempotent, open world.
        annotations: AnnotationSpec,
        /// Users and groups that the call acts for: `user:lea`, `group:finance`. Default: all.
        principals: Principals,
        /// Who started the run: an agent or a person. Default: both.
        by: StartedBy,
        /// Patterns of names of the client through which the run was started. Default: all.
        clients: Names,
        /// Patterns of names of the workflow that makes the call. Direct calls match no pattern. Default: all.
        workflows: Names,
        /// Whether a step of a workflow makes the call, or the call is direct. Default: both.
        calls: CallKind,
        /// Condition over `args`, `user`, `tool`, `workflow`, `client` and `time`. If it cannot be evaluated, the call is
        /// denied.
        when: Text,
        /// What happens to the call.
        @required then: ActionSpec,
    }
}

choice! {
    /// Who started a run.
    pub enum StartedBy {
        /// An agent.
        Agent = "agent",
        /// A user in person.
        Person = "person",
    }
}

choice! {
    /// How a call comes about.
    pub enum CallKind {
        /// A step of a workflow makes it.
        Step = "step",
        /// A client calls the tool.
        Direct = "direct",
    }
}

record! {
    /// Annotations that the tool of a call has.
    pub struct AnnotationSpec("`annotations`") {
        /// The tool changes nothing.
        read_only: bool,
        /// The tool may perform destructive updates.
        destructive: bool,
        /// Repeating a call has no further effect.
        idempotent: bool,
        /// The tool interacts with external entities.
        open_world: bool,
    }
}

record! {
    /// Rejects repeated identical calls.
    pub struct IdenticalCallsSpec("`identical_calls`") {
        /// Number of identical calls that are made.
        @required max: Spanned<u32>,
        /// The time in which they are counted.
        @required within: Spanned<DurationSpec>,
    }
}

/// What happens to a call that a rule matches.
#[derive(Debug, Clone)]
pub enum ActionSpec {
    /// It is made.
    Allow,
    /// It fails.
    Deny(DenySpec),
    /// It is made after an approval.
    RequireApproval(Box<ApprovalSpec>),
    /// It is made within a limit.
    Limit(Spanned<LimitSpec>),
}

record! {
    /// Details of a denial.
    pub struct DenySpec("`deny`") {
        /// The reason that the caller is told.
        reason: Text,
    }
}

record! {
    /// Details of a required approval.
    pub struct ApprovalSpec("`require_approval`") {
        /// Users and groups who may decide. Default: all users with the right `approve`.
        approvers: Principals,
        /// Number of approvals that are needed, by different users. Default: 1.
        quorum: Spanned<u32>,
        /// Time after which the request expires. Default: none.
        timeout: Spanned<DurationSpec>,
        /// What happens then. `deny` (default): the call is denied. `escalate`: the last level is notified again, and the
        /// request stays open. `fail`: the step fails with `timeout`, so that its `retry` applies.
        on_timeout: Spanned<OnTimeout>,
        /// Time between reminders of those who were asked: `every 2h`. At least a minute; at most 100 reminders are sent.
        remind: Spanned<Interval>,
        /// Users and groups to notify.
        notify: Principals,
        /// Further levels of approvers and notifications until a decision is made, in order of time.
        escalate: Vec<Spanned<EscalationSpec>>,
        /// Whether the user who started the run may decide. Default: `false`.
        allow_self: bool,
        /// The factor with which approvers prove that they are present: `pin` or `totp`. Default: the setting `auth.presence`.
        presence: Presence,
    }
}

record! {
    /// A further level if no decision was made.
    pub struct EscalationSpec("an escalation") {
        /// Time after the request. Each level is later than the one before, and earlier than the timeout.
        @required after: Spanned<DurationSpec>,
        /// Users and groups to notify. Default: `approvers`.
        notify: Principals,
        /// Users and groups who may decide from then on, in addition to those before.
        approvers: Principals,
        /// Channels of the messages of this level, instead of those that the recipients prefer.
        channels: Names,
    }
}

record! {
    /// A limit on the number of calls: a rate or a budget.
    pub struct LimitSpec("`limit`") {
        /// Number of calls per second, minute or hour: `60/m`. A call above it waits.
        rate: Spanned<Quantity>,
        /// Number of calls per second, minute, hour, day or week: `50/d`. With `per: run`, a number without a unit counts
        /// for the whole run. A call above it fails.
        budget: Spanned<Quantity>,
        /// Whose calls count together. Default: `user`.
        per: LimitPer,
        /// What happens to a call above the budget. Default: `deny`.
        on_exceeded: Spanned<OnExceeded>,
    }
}

choice! {
    /// Whose calls count together.
    pub enum LimitPer {
        /// The calls of one run.
        Run = "run",
        /// The calls for one user.
        User = "user",
        /// The calls of one tool.
        Tool = "tool",
    }
}

choice! {
    /// What happens to a call above a budget.
    pub enum OnExceeded {
        /// It fails.
        Deny = "deny",
        /// It is made after an approval.
        RequireApproval = "require_approval",
    }
}

const ACTIONS: &[&str] = &["allow", "deny", "require_approval", "limit"];

impl FromNode for ActionSpec {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        match node.as_text() {
            Some("allow") => return Some(Self::Allow),
            Some("deny") => return Some(Self::Deny(DenySpec::default())),
            Some("require_approval") => return Some(Self::RequireApproval(Box::default())),
            Some("limit") => {
                reader.invalid(
                    node.span,
                    "`limit` needs a rate or a budget".to_owned(),
                    "write `limit: {rate: 60/m}`",
                );
                return None;
            }
            Some(_) => {
                crate::spec::fields::not_a_choice(&node, ACTIONS, reader);
                return None;
            }
            None => {}
        }
        let span = node.span;
        let mut fields = Fields::open(node, "`then`", reader)?;
        let given: Vec<&str> = ACTIONS.iter().copied().filter(|key| fields.has(key)).collect();
        if given.len() > 1 {
            let message = format!("`then` has {} actions; a rule has one", given.len());
            reader.report(Diagnostic::new(Code::ConflictingFields, span, message).hint("keep one of them"));
        }
        let action = match given.first().copied() {
            Some("deny") => fields.take("deny", reader).map(Self::Deny),
            Some("require_approval") => {
                fields.take("require_approval", reader).map(|spec| Self::RequireApproval(Box::new(spec)))
            }
            Some("limit") => fields.take("limit", reader).map(Self::Limit),
            Some(_) => {
                reader.invalid(span, "`allow` has no fields".to_owned(), "write `then: allow`");
                None
            }
            None if fields.keys().next().is_none() => {
                reader.invalid(span, "`then` is empty".to_owned(), "write `then: allow`, or another action");
                None
            }
            None => None,
        };
        fields.drop_keys(&[&given]);
        fields.finish([ACTIONS], reader);
        action
    }
}

impl Serialize for ActionSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(1))?;
        match self {
            Self::Allow => map.serialize_entry("allow", &())?,
            Self::Deny(spec) => map.serialize_entry("deny", spec)?,
            Self::RequireApproval(spec) => map.serialize_entry("require_approval", spec)?,
            Self::Limit(spec) => map.serialize_entry("limit", spec)?,
        }
        map.end()
    }
}

impl JsonSchema for ActionSpec {
    fn schema_name() -> Cow<'static, str> {
        "Action".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (deny, approval, limit) = (
            generator.subschema_for::<DenySpec>(),
            generator.subschema_for::<ApprovalSpec>(),
            generator.subschema_for::<LimitSpec>(),
        );
        json_schema!({
            "description": "What happens to a call that the rule matches.",
            "anyOf": [
                { "enum": ["allow", "deny", "require_approval"] },
                {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "properties": { "deny": deny, "require_approval": approval, "limit": limit },
                    "additionalProperties": false,
                },
            ],
        })
    }
}

/// A user or a group, written with its type: `user:lea`, `group:finance`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PrincipalName {
    /// A user, by id.
    User(Box<str>),
    /// A group, by name.
    Group(Box<str>),
}

impl PrincipalName {
    /// Parses `user:<id>` or `group:<name>`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            Some(("user", id)) if !id.trim().is_empty() => Some(Self::User(id.into())),
            Some(("group", name)) if !name.trim().is_empty() => Some(Self::Group(name.into())),
            _ => None,
        }
    }

    /// Whether the name denotes this user, who is in these groups.
    pub fn covers(&self, user: &str, groups: &[String]) -> bool {
        match self {
            Self::User(id) => **id == *user,
            Self::Group(name) => groups.iter().any(|group| **group == **name),
        }
    }
}

impl std::fmt::Display for PrincipalName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(id) => write!(out, "user:{id}"),
            Self::Group(name) => write!(out, "group:{name}"),
        }
    }
}

impl Serialize for PrincipalName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A user or group, or a list of them.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Principals(pub Vec<Spanned<PrincipalName>>);

impl Principals {
    /// The names without positions.
    pub fn names(&self) -> Vec<PrincipalName> {
        self.0.iter().map(|name| name.value.clone()).collect()
    }
}

impl FromNode for Principals {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let span = node.span;
        let names = Names::from_node(node, reader)?;
        if names.0.is_empty() {
            reader.invalid(span, "the list is empty".to_owned(), "name a user or group, or remove the field");
        }
        Some(Self(names.0.iter().filter_map(|name| typed(name, reader)).collect()))
    }
}

fn typed(name: &Text, reader: &mut Reader) -> Option<Spanned<PrincipalName>> {
    if let Some(value) = PrincipalName::parse(name) {
        return Some(Spanned { value, span: name.span });
    }
    let message = format!("`{}` is neither a user nor a group", name.value);
    let bare = !name.contains(':') && !name.trim().is_empty();
    let hint = if bare {
        format!("write `user:{0}` or `group:{0}`", name.value)
    } else {
        "write `user:<id>` or `group:<name>`".to_owned()
    };
    reader.report(Diagnostic::new(Code::UntypedPrincipal, name.span, message).hint(hint));
    None
}

impl JsonSchema for Principals {
    fn schema_name() -> Cow<'static, str> {
        "Principals".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let name = json_schema!({ "type": "string", "pattern": "^(user|group):.+" });
        json_schema!({
            "description": "A user (`user:lea`) or group (`group:finance`), or a list of them.",
            "anyOf": [name, { "type": "array", "minItems": 1, "items": name }],
        })
    }
}

/// A number of calls, per unit of time if it has one: `60/m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantity {
    /// Number of calls.
    pub count: u32,
    /// The unit of time.
    pub unit: Option<TimeUnit>,
}

choice! {
    /// A unit of time of a rate or budget.
    pub enum TimeUnit {
        /// A second.
        Second = "s",
        /// A minute.
        Minute = "m",
        /// An hour.
        Hour = "h",
        /// A day.
        Day = "d",
        /// A week of seven days.
        Week = "w",
    }
}

impl TimeUnit {
    /// The length in milliseconds.
    pub fn millis(self) -> u64 {
        match self {
            Self::Second => 1_000,
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
            Self::Day => 86_400_000,
            Self::Week => 604_800_000,
        }
    }
}

impl Quantity {
    /// Parses `60/m` or `60`.
    pub fn parse(text: &str) -> Option<Self> {
        let (count, unit) = match text.split_once('/') {
            Some((count, unit)) => (count, Some(TimeUnit::from_name(unit.trim())?)),
            None => (text, None),
        };
        let count = count.trim().parse().ok().filter(|count| *count > 0)?;
        Some(Self { count, unit })
    }
}

impl FromNode for Quantity {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let quantity = match &node.data {
            Data::Text(text) => Self::parse(text),
            Data::Number(number) => Self::parse(&number.to_string()),
            _ => None,
        };
        if quantity.is_none() {
            let message = "expected a positive number of calls per unit of time";
            let hint = "write `60/m`: a whole number, `/`, and `s`, `m`, `h`, `d` or `w`";
            reader.report(Diagnostic::new(Code::InvalidLimit, node.span, message).hint(hint));
        }
        quantity
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.unit {
            Some(unit) => write!(out, "{}/{}", self.count, unit.name()),
            None => write!(out, "{}", self.count),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of calls, per unit of time: `60/m`.",
            "anyOf": [
                { "type": "integer", "minimum": 1 },
                { "type": "string", "pattern": "^[0-9]+ */ *[smhdw]$" },
            ],
        })
    }
}
