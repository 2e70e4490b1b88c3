//! What an approval is about, who decided it and how: the parts of the events of a gate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Millis;
use super::parts::StepRef;
use crate::expr::StepIx;
use crate::plan::{EscalationLevel, GateRules, Hash};
use crate::presence::Presence;
use crate::steps::OnTimeout;

/// Why an approval is requested.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ApprovalKind {
    /// An `approve` step.
    #[default]
    Approve,
    /// A step with `needs_human`.
    NeedsHuman,
    /// A rule of the operator's policy.
    Policy,
    /// A tool requests input, or a call needs to be confirmed.
    Input,
}

/// What an approval covers. The digest of the request binds all of it: if any part changes, the request is stale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// Why the approval is requested.
    pub kind: ApprovalKind,
    /// Hash of the definition that the run executes.
    pub definition: Hash,
    /// The user who started the run.
    pub starter: Starter,
    /// The calls that follow the approval, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<GuardedCall>,
    /// Whether more calls follow than `calls` has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_calls: bool,
    /// The sub-workflows that follow the approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workflows: Vec<GuardedWorkflow>,
    /// Sequence numbers of the edits of arguments and values that apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<u64>,
    /// Who may decide, and what happens if nobody does.
    #[schemars(with = "Value")]
    pub rules: GateRules,
    /// The rule of the policy that requires the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRule>,
}

impl Subject {
    /// Whether what was shown is still so. Arguments that became known meanwhile change nothing that was shown.
    pub(super) fn holds(&self, now: &Self) -> bool {
        let (calls, workflows) = (now.calls.clone(), now.workflows.clone());
        let same_rest = Self { calls, workflows, ..self.clone() } == *now;
        let same_calls = self.calls.len() == now.calls.len()
            && self.calls.iter().zip(&now.calls).all(|(shown, now)| shown.holds(now));
        let same_workflows = self.workflows.len() == now.workflows.len()
            && self.workflows.iter().zip(&now.workflows).all(|(shown, now)| shown.holds(now));
        same_rest && same_calls && same_workflows
    }
}

/// Whether values that were shown are the same now. Further ones may have become known.
fn values_hold(shown: Option<&Value>, now: Option<&Value>) -> bool {
    match (shown, now) {
        (Some(Value::Object(shown)), Some(Value::Object(now))) => {
            shown.iter().all(|(name, value)| now.get(name) == Some(value))
        }
        (None, _) => true,
        (Some(_), _) => false,
    }
}

impl GuardedWorkflow {
    fn holds(&self, now: &Self) -> bool {
        let same_version = self.step == now.step && self.name == now.name && self.hash == now.hash;
        same_version && values_hold(self.inputs.as_ref(), now.inputs.as_ref())
    }
}

impl GuardedCall {
    fn holds(&self, now: &Self) -> bool {
        let same_tool = self.step == now.step && self.tool == now.tool && self.tool_hash == now.tool_hash;
        let same_args = match self.args_hash {
            Some(shown) => now.args_hash == Some(shown),
            None => values_hold(self.args.as_ref(), now.args.as_ref()),
        };
        same_tool && same_args
    }
}

/// The user who started a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Starter {
    /// Id of the user.
    pub user: Box<str>,
    /// Whether an agent started the run for the user.
    pub agent: bool,
    /// The client or tool through which it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Box<str>>,
}

/// A call that an approval covers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuardedCall {
    /// Id of the step.
    pub step: Box<str>,
    /// Full name of the tool.
    pub tool: Box<str>,
    /// The arguments that are known. Omitted if they are too large to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Value>,
    /// Hash of the arguments, if all of them are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_hash: Option<Hash>,
    /// Names of the arguments that depend on steps that have not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Box<str>>,
    /// Names of the arguments whose values come from outputs of earlier steps, and so from tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_tools: Vec<Box<str>>,
    /// Hash of the description and schemas of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_hash: Option<Hash>,
}

/// A sub-workflow that an approval covers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuardedWorkflow {
    /// Id of the step.
    pub step: Box<str>,
    /// Name of the definition.
    pub name: Box<str>,
    /// Hash of the version that would run now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Hash>,
    /// The inputs that are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Value>,
    /// Names of the inputs that depend on steps that have not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Box<str>>,
}

/// The rule of a policy that decided about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyRule {
    /// Name of the rule; `default` if no rule matched.
    pub rule: Box<str>,
    /// Version of the policy: the first digits of its hash.
    pub version: Box<str>,
}

/// How a decision was made, besides the user who made it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Provenance {
    /// The surface: `terminal`, `browser`, `rest`, `mcp`, `link` or `library`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surface: Option<Box<str>>,
    /// Id of the token or session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<Box<str>>,
    /// The process of a local peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Box<str>>,
    /// The groups of the user at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Box<str>>,
    /// Whether there is no other user who could decide.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_user: bool,
    /// The factor with which the user proved that they are present.
    #[serde(default, skip_serializing_if = "Presence::is_none")]
    pub presence: Presence,
    /// Whether a client redeemed a single-use code that the user had issued for the decision.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub code: bool,
    /// Id of the approval link with which the decision was made. A link decides once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Box<str>>,
}

/// A user who approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approver {
    /// Id of the user.
    pub user: Box<str>,
    /// The groups of the user at that time.
    pub groups: Vec<Box<str>>,
    /// Whether there is no other user who could decide.
    pub only_user: bool,
    /// The factor with which the user proved that they are present.
    pub presence: Presence,
    /// Id of the approval link that they used.
    pub link: Option<Box<str>>,
}

impl Approver {
    pub(super) fn new(user: &str, provenance: Option<&Provenance>) -> Self {
        let Provenance { groups, only_user, presence, link, .. } = provenance.cloned().unwrap_or_default();
        Self { user: user.into(), groups, only_user, presence, link }
    }
}

impl GateRules {
    /// Whether a user or one of their groups is among the approvers after a number of escalations. A level adds approvers
    /// and removes none.
    pub fn admits(&self, level: u32, user: &str, groups: &[impl AsRef<str>]) -> bool {
        let is_named = |name: &str| match name.split_once(':') {
            Some(("user", id)) => id == user,
            Some(("group", id)) => groups.iter().any(|group| group.as_ref() == id),
            _ => name == user || groups.iter().any(|group| group.as_ref() == name),
        };
        self.approvers.is_empty() || self.approvers_at(level).any(is_named)
    }

    /// The users and groups who are named as approvers after a number of escalations.
    pub fn approvers_at(&self, level: u32) -> impl Iterator<Item = &str> {
        let reached = self.reached(level).iter().flat_map(|level| &level.approvers);
        self.approvers.iter().chain(reached).map(AsRef::as_ref)
    }

    /// The levels that are reached after a number of escalations.
    pub fn reached(&self, level: u32) -> &[EscalationLevel] {
        let count = usize::try_from(level).unwrap_or(usize::MAX).min(self.escalate.len());
        self.escalate.get(..count).unwrap_or_default()
    }

    /// Whether nobody can decide after the request has expired.
    pub fn closes_on_timeout(&self) -> bool {
        self.on_timeout != OnTimeout::Escalate
    }

    /// Whether approvals that were given after a number of escalations are enough for these rules. At another gate, no level
    /// of these rules was reached.
    pub fn are_met_by(&self, level: u32, approvers: &[Approver], starter: &str) -> bool {
        let counts = |approver: &&Approver| {
            let is_other = &*approver.user != starter || self.allow_self || approver.only_user;
            let is_present = approver.presence.satisfies(self.presence);
            is_other && is_present && self.admits(level, &approver.user, &approver.groups)
        };
        approvers.iter().filter(counts).count() >= self.quorum as usize
    }
}

/// The hash of a request without its subject: what was asked, and until when.
pub(super) fn request_hash(
    step: &StepRef,
    prompt: &str,
    args: Option<Hash>,
    until: Option<Millis>,
    form: Option<&Value>,
    state: Option<&Value>,
) -> Hash {
    let request = json!([&*step.path, step.n, step.attempt, prompt, args, until, form, state]);
    Hash::of(request.to_string().as_bytes())
}

/// The state of an open gate.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenGate {
    /// Why the approval is requested.
    pub kind: ApprovalKind,
    /// Who may decide.
    pub rules: GateRules,
    /// When the next escalation is due.
    pub escalate: Option<Millis>,
    /// When the next reminder is due.
    pub remind: Option<Millis>,
    /// Number of reminders so far.
    pub reminders: u32,
    /// The recipients of the notification of the request.
    pub notify: Vec<Box<str>>,
    /// Whether an earlier request of the gate became stale. Decisions without a digest are refused from then on.
    pub renewed: bool,
    /// What the approval covers. Requests of earlier versions do not state it, and are never stale.
    pub(super) subject: Option<Box<Subject>>,
    /// The calls that the approval covers completely: step and hash of the arguments.
    pub(super) covers: Vec<(StepIx, Hash)>,
}

/// A call that an approval of an earlier gate covers.
#[derive(Debug, Clone, PartialEq)]
pub struct Cover {
    /// The execution of the gate.
    pub gate: u32,
    /// The step that makes the call.
    pub step: StepIx,
    /// Hash of its arguments.
    pub args: Hash,
    /// The users who approved.
    pub approvers: Vec<Approver>,
}

impl OpenGate {
    /// The rule of the policy that requires the approval.
    pub fn policy(&self) -> Option<&PolicyRule> {
        self.subject.as_ref()?.policy.as_ref()
    }

    /// Hash of the arguments of the call of a step, if the approval covers it completely.
    pub fn covered_args(&self, step: StepIx) -> Option<Hash> {
        self.covers.iter().find(|(covered, _)| *covered == step).map(|(_, args)| *args)
    }

    /// The state after a request. `covers` and the rules of requests without a subject need the plan.
    pub(super) fn new(subject: Option<&Subject>) -> Self {
        Self {
            kind: subject.map(|subject| subject.kind).unwrap_or_default(),
            rules: subject.map(|subject| subject.rules.clone()).unwrap_or_default(),
            escalate: None,
            remind: None,
            reminders: 0,
            notify: Vec::new(),
            renewed: false,
            subject: subject.cloned().map(Box::new),
            covers: Vec::new(),
        }
    }

    /// Hash of the description of the tool whose call is approved.
    pub(super) fn tool_hash(&self) -> Option<Hash> {
        match (self.kind, self.subject.as_ref().map(|subject| &*subject.calls)) {
            (ApprovalKind::NeedsHuman | ApprovalKind::Policy, Some([call])) => call.tool_hash,
            _ => None,
        }
    }
}
