//! The rules of a gate: who may decide, how many must approve, and what happens if nobody does.

use serde::{Deserialize, Serialize};

use super::compile::Compiler;
use super::{Approve, Gate, GateTimes, LevelTimes, OnDeny};
use crate::limits::APPROVERS;
use crate::presence::Presence;
use crate::spec::input::Input;
use crate::spec::step::Step;
use crate::spec::value::{Interval, Names, Spanned, Text};
use crate::steps::{self, ApproveTimeout, Escalation, NeedsHumanSpec, OnTimeout};

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
    /// The step at which the run continues when the request expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout_goto: Option<Box<str>>,
    /// Milliseconds between reminders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remind_ms: Option<u64>,
    /// Further levels, in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub escalate: Vec<EscalationLevel>,
    /// The factor with which each approver has to prove that they are present.
    #[serde(default, skip_serializing_if = "Presence::is_none")]
    pub presence: Presence,
}

/// A further level of an approval that nobody decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscalationLevel {
    /// Milliseconds after the request.
    pub after_ms: u64,
    /// Users and groups to notify.
    pub notify: Vec<Box<str>>,
    /// Users and groups who may decide once the level is reached, in addition to those before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<Box<str>>,
    /// Channels of the messages of this level; empty: those that the recipients prefer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Box<str>>,
}

impl Default for GateRules {
    fn default() -> Self {
        Self {
            approvers: Vec::new(),
            quorum: 1,
            allow_self: false,
            on_timeout: OnTimeout::Deny,
            on_timeout_goto: None,
            remind_ms: None,
            escalate: Vec::new(),
            presence: Presence::None,
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
        let escalated =
            self.rules.escalate.iter().flat_map(|level| level.notify.iter().chain(&level.approvers));
        let named = self.rules.approvers.iter().chain(&self.notify).chain(escalated);
        named.map(AsRef::as_ref)
    }
}

impl Approve {
    /// What happens after a denial, or after an expiry that goes to the step that `on_timeout` names.
    pub fn after_denial(&self, goes_elsewhere: bool) -> OnDeny {
        let elsewhere = self.on_timeout.filter(|_| goes_elsewhere);
        elsewhere.map_or(self.on_deny, OnDeny::Goto)
    }
}

/// The fields that `approve` and `needs_human` share, as written.
struct GateFields<'s> {
    prompt: Option<&'s Text>,
    notify: Option<&'s Names>,
    approvers: Option<&'s Names>,
    quorum: Option<&'s Spanned<u32>>,
    allow_self: bool,
    timeout_ms: Option<u64>,
    on_timeout: Option<Spanned<OnTimeout>>,
    on_timeout_goto: Option<&'s Text>,
    remind: Option<&'s Spanned<Interval>>,
    escalate: &'s [Spanned<Escalation>],
    form: Option<&'s Input>,
}

impl Compiler<'_, '_> {
    pub(super) fn approve(&mut self, spec: &Step, approve: &steps::Approve) -> Approve {
        let written = approve.on_timeout.as_ref();
        let (on_timeout, goto) = match written.map(|written| &written.value) {
            Some(ApproveTimeout::Gate(on_timeout)) => (*on_timeout, None),
            // The gate is closed like one that is denied, and the run continues elsewhere.
            Some(ApproveTimeout::Goto(step)) => (OnTimeout::Deny, Some(step)),
            None => (OnTimeout::Deny, None),
        };
        let gate = self.gate(&GateFields {
            prompt: approve.prompt.as_ref(),
            notify: approve.notify_user.as_ref(),
            approvers: approve.approvers.as_ref(),
            quorum: approve.quorum.as_ref(),
            allow_self: approve.allow_self.as_ref().is_some_and(|allow| allow.value),
            timeout_ms: spec.policy.deadline(),
            on_timeout: written.map(|written| Spanned { value: on_timeout, span: written.span }),
            on_timeout_goto: goto,
            remind: approve.remind.as_ref(),
            escalate: approve.escalate.as_deref().unwrap_or_default(),
            form: approve.form.as_ref(),
        });
        let on_deny = self.on_deny(approve.on_deny.as_ref());
        Approve { gate, on_deny, on_timeout: goto.and_then(|step| self.goto(step)), guards: Box::default() }
    }

    pub(super) fn needs_human(&mut self, spec: &Step) -> Option<Box<Gate>> {
        let gate = match spec.policy.needs_human.as_ref()? {
            NeedsHumanSpec::Flag(false) => return None,
            NeedsHumanSpec::Flag(true) => &steps::NeedsHuman::default(),
            NeedsHumanSpec::Gate(gate) => gate,
        };
        Some(Box::new(self.gate(&GateFields {
            prompt: gate.prompt.as_ref(),
            notify: gate.notify_user.as_ref(),
            approvers: gate.approvers.as_ref(),
            quorum: gate.quorum.as_ref(),
            allow_self: gate.allow_self.as_ref().is_some_and(|allow| allow.value),
            timeout_ms: gate.timeout.as_ref().map(|timeout| timeout.millis),
            on_timeout: gate.on_timeout.clone(),
            on_timeout_goto: None,
            remind: gate.remind.as_ref(),
            escalate: gate.escalate.as_deref().unwrap_or_default(),
            form: None,
        })))
    }

    fn gate(&mut self, fields: &GateFields<'_>) -> Gate {
        fields.times().check(&mut |diagnostic| self.report(diagnostic));
        let escalate: Vec<_> = fields.escalate.iter().filter_map(|level| self.level(level)).collect();
        let rules = GateRules {
            escalate,
            approvers: self.recipients("approvers", fields.approvers).into_vec(),
            quorum: fields.quorum.map_or(1, |quorum| self.limit(Some(quorum), APPROVERS)),
            allow_self: fields.allow_self,
            on_timeout: fields.on_timeout.as_ref().map_or(OnTimeout::Deny, |on_timeout| on_timeout.value),
            on_timeout_goto: fields.on_timeout_goto.map(|step| step.as_str().into()),
            remind_ms: fields.remind.map(|remind| remind.millis),
            presence: Presence::None,
        };
        Gate {
            prompt: fields.prompt.map(|prompt| self.template(prompt, prompt.span)),
            notify: self.recipients("notify_user", fields.notify),
            rules,
            timeout_ms: fields.timeout_ms,
            form: fields.form.and_then(|form| Some((form.schema.to_value(), form.compiled.clone()?))),
        }
    }

    fn level(&mut self, level: &Escalation) -> Option<EscalationLevel> {
        let approvers = self.recipients("approvers", level.approvers.as_ref()).into_vec();
        let notify = match &level.notify {
            Some(notify) => self.recipients("notify", Some(notify)).into_vec(),
            None => approvers.clone(),
        };
        let channels = self.recipients("channels", level.channels.as_ref()).into_vec();
        Some(EscalationLevel { after_ms: level.after.as_ref()?.millis, notify, approvers, channels })
    }
}

impl<'s> GateFields<'s> {
    fn times(&self) -> GateTimes<'s> {
        let level = |level: &'s Spanned<Escalation>| LevelTimes {
            span: level.span,
            after: level.after.as_ref(),
            has_recipients: level.notify.is_some() || level.approvers.is_some(),
        };
        GateTimes {
            timeout_ms: self.timeout_ms,
            on_timeout: self.on_timeout.as_ref().map(|on_timeout| (on_timeout.value, on_timeout.span)),
            remind: self.remind,
            levels: self.escalate.iter().map(level).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn level() -> EscalationLevel {
        let names = |name: &str| vec![name.into()];
        EscalationLevel {
            after_ms: 1,
            notify: names("bob"),
            approvers: names("user:lea"),
            channels: names("phone"),
        }
    }

    /// The digest of a request hashes the rules as JSON, so every field has to be in it.
    #[test]
    fn every_field_of_the_rules_changes_the_digest() {
        let with = |level: EscalationLevel| GateRules { escalate: vec![level], ..GateRules::default() };
        let all = [
            GateRules::default(),
            GateRules { approvers: vec!["bob".into()], ..GateRules::default() },
            GateRules { quorum: 2, ..GateRules::default() },
            GateRules { allow_self: true, ..GateRules::default() },
            GateRules { on_timeout: OnTimeout::Fail, ..GateRules::default() },
            GateRules { on_timeout_goto: Some("later".into()), ..GateRules::default() },
            GateRules { remind_ms: Some(60_000), ..GateRules::default() },
            GateRules { presence: Presence::Pin, ..GateRules::default() },
            with(level()),
            with(EscalationLevel { after_ms: 2, ..level() }),
            with(EscalationLevel { notify: vec!["eve".into()], ..level() }),
            with(EscalationLevel { approvers: Vec::new(), ..level() }),
            with(EscalationLevel { channels: Vec::new(), ..level() }),
            GateRules { escalate: vec![level(), level()], ..GateRules::default() },
        ];
        let stored = all.iter().map(|rules| serde_json::to_string(rules).unwrap());
        assert_eq!(stored.collect::<BTreeSet<_>>().len(), all.len());
        for rules in &all {
            let stored = serde_json::to_string(rules).unwrap();
            assert_eq!(serde_json::from_str::<GateRules>(&stored).unwrap(), *rules);
        }
    }

    #[test]
    fn rules_of_earlier_versions_are_read_and_stay_the_same() {
        let stored = r#"{"on_timeout":"escalate","escalate":[{"after_ms":1,"notify":["bob"]}]}"#;
        let rules: GateRules = serde_json::from_str(stored).unwrap();
        assert_eq!(serde_json::to_string(&rules).unwrap(), stored);
    }
}
