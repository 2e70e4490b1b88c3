//! The rules of a gate: who may decide, how many must approve, and what happens if nobody does.

use serde::{Deserialize, Serialize};

use super::compile::Compiler;
use super::{Approve, Gate};
use crate::diagnostic::{Code, Diagnostic};
use crate::limits::APPROVERS;
use crate::source::Span;
use crate::spec::input::Input;
use crate::spec::step::Step;
use crate::spec::value::{Names, Spanned, Text};
use crate::steps::{self, Escalation, NeedsHumanSpec, OnTimeout};

/// Who may decide at a gate, and what happens if nobody does. The log records it with each request, and the digest of the
/// request covers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateRules {
    /// Users and groups who may decide; empty: all users with the right `approve`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<Box<str>>,
    /// Number of different users who must approve.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub quorum: u32,
    /// Whether the user who started the run may decide.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_self: bool,
    /// What happens when the request expires.
    #[serde(default = "deny")]
    pub on_timeout: OnTimeout,
    /// Further notifications, in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub escalate: Vec<EscalationLevel>,
}

/// A further notification of an approval that nobody decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscalationLevel {
    /// Milliseconds after the request.
    pub after_ms: u64,
    /// Users and groups to notify.
    pub notify: Vec<Box<str>>,
}

impl Default for GateRules {
    fn default() -> Self {
        Self {
            approvers: Vec::new(),
            quorum: 1,
            allow_self: false,
            on_timeout: OnTimeout::Deny,
            escalate: Vec::new(),
        }
    }
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one(quorum: &u32) -> bool {
    *quorum == 1
}

const fn deny() -> OnTimeout {
    OnTimeout::Deny
}

impl Gate {
    /// The users and groups that the gate names, as written.
    pub fn principals(&self) -> impl Iterator<Item = &str> {
        let escalated = self.rules.escalate.iter().flat_map(|level| &level.notify);
        let named = self.rules.approvers.iter().chain(&self.notify).chain(escalated);
        named.map(AsRef::as_ref)
    }
}

/// The fields that `approve` and `needs_human` share, as written.
struct GateFields<'s> {
    span: Span,
    prompt: Option<&'s Text>,
    notify: Option<&'s Names>,
    approvers: Option<&'s Names>,
    quorum: Option<&'s Spanned<u32>>,
    allow_self: bool,
    timeout_ms: Option<u64>,
    on_timeout: Option<OnTimeout>,
    escalate: &'s [Escalation],
    form: Option<&'s Input>,
}

impl Compiler<'_, '_> {
    pub(super) fn approve(&mut self, spec: &Step, approve: &steps::Approve) -> Approve {
        let gate = self.gate(&GateFields {
            span: spec.span,
            prompt: approve.prompt.as_ref(),
            notify: approve.notify_user.as_ref(),
            approvers: approve.approvers.as_ref(),
            quorum: approve.quorum.as_ref(),
            allow_self: approve.allow_self.as_ref().is_some_and(|allow| allow.value),
            timeout_ms: spec.policy.deadline(),
            on_timeout: approve.on_timeout,
            escalate: approve.escalate.as_deref().unwrap_or_default(),
            form: approve.form.as_ref(),
        });
        Approve { gate, on_deny: self.on_deny(approve.on_deny.as_ref()), guards: Box::default() }
    }

    pub(super) fn needs_human(&mut self, spec: &Step) -> Option<Box<Gate>> {
        let gate = match spec.policy.needs_human.as_ref()? {
            NeedsHumanSpec::Flag(false) => return None,
            NeedsHumanSpec::Flag(true) => &steps::NeedsHuman::default(),
            NeedsHumanSpec::Gate(gate) => gate,
        };
        Some(Box::new(self.gate(&GateFields {
            span: spec.span,
            prompt: gate.prompt.as_ref(),
            notify: gate.notify_user.as_ref(),
            approvers: gate.approvers.as_ref(),
            quorum: gate.quorum.as_ref(),
            allow_self: gate.allow_self.as_ref().is_some_and(|allow| allow.value),
            timeout_ms: gate.timeout.as_ref().map(|timeout| timeout.millis),
            on_timeout: gate.on_timeout,
            escalate: gate.escalate.as_deref().unwrap_or_default(),
            form: None,
        })))
    }

    fn gate(&mut self, fields: &GateFields<'_>) -> Gate {
        self.check_escalation(fields);
        let escalate = fields.escalate.iter().filter_map(|level| {
            let notify = self.recipients("notify", level.notify.as_ref()).into_vec();
            Some(EscalationLevel { after_ms: level.after.as_ref()?.millis, notify })
        });
        let rules = GateRules {
            escalate: escalate.collect(),
            approvers: self.recipients("approvers", fields.approvers).into_vec(),
            quorum: fields.quorum.map_or(1, |quorum| self.limit(Some(quorum), APPROVERS)),
            allow_self: fields.allow_self,
            on_timeout: fields.on_timeout.unwrap_or(OnTimeout::Deny),
        };
        Gate {
            prompt: fields.prompt.map(|prompt| self.template(prompt, prompt.span)),
            notify: self.recipients("notify_user", fields.notify),
            rules,
            timeout_ms: fields.timeout_ms,
            form: fields.form.and_then(|form| Some((form.schema.to_value(), form.compiled.clone()?))),
        }
    }

    /// Reports escalations without timeout, recipients or time to take effect.
    fn check_escalation(&mut self, fields: &GateFields<'_>) {
        let report = |compiler: &mut Self, span, message: &str| {
            compiler.report(Diagnostic::new(Code::InvalidPolicy, span, message));
        };
        if fields.on_timeout.is_some() && fields.timeout_ms.is_none() {
            report(self, fields.span, "`on_timeout` needs a `timeout`");
        }
        if fields.on_timeout == Some(OnTimeout::Escalate) && fields.escalate.is_empty() {
            report(self, fields.span, "`on_timeout: escalate` needs `escalate: [{after, notify}]`");
        }
        for after in fields.escalate.iter().filter_map(|level| level.after.as_ref()) {
            if fields.timeout_ms.is_some_and(|timeout| after.millis >= timeout) {
                report(self, after.span, "the gate times out before this escalation");
            }
        }
    }
}
