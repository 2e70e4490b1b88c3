//! The operator's policy: ordered rules that decide about every call of a tool. Pure; the engine enforces the verdicts.
//!
//! ```text
//! policy.yaml ──document::read──▶ Node tree ──spec──▶ PolicySpec ──compile──▶ Policy ──judge(CallFacts)──▶ Verdict
//! ```
//!
//! The first rule that matches a call decides; `default` decides about calls that no rule matches. A condition that
//! cannot be evaluated denies the call, so that a mistake in a rule never allows one.

pub mod cases;
mod compile;
mod facts;
mod judge;
mod matcher;
pub mod spec;

pub use facts::CallFacts;
pub use judge::{Checked, Mismatch};
pub use spec::{ByAgents, LimitPer, OnExceeded, PrincipalName, Quantity, TimeUnit};

use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::plan::{EscalationLevel, Gate, GateRules, Hash};
use crate::presence::Presence;
use crate::run::Millis;
use crate::source::Source;
use crate::steps::OnTimeout;
use jiff::tz::TimeZone;
use matcher::{Matcher, RuleIndex};

/// Name of the verdict of a call that no rule matches. No rule can have it.
pub const DEFAULT_RULE: &str = "default";

/// Finds a time zone by its IANA name. The core has no access to the database of time zones.
pub type FindZone<'z> = &'z dyn Fn(&str) -> Option<TimeZone>;

/// A compiled policy. It is immutable; its version identifies it.
#[derive(Debug)]
pub struct Policy {
    hash: Hash,
    version: Arc<str>,
    default_name: Arc<str>,
    default: Action,
    rules: Vec<Rule>,
    index: RuleIndex,
    zone: TimeZone,
    /// What happens to definitions by agents.
    pub by_agents: ByAgents,
    /// The limit on identical calls.
    pub identical_calls: Option<IdenticalCalls>,
}

#[derive(Debug)]
struct Rule {
    name: Arc<str>,
    matcher: Matcher,
    action: Action,
}

/// What happens to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It is made.
    Allow,
    /// It fails, for this reason.
    Deny(Arc<str>),
    /// It is made after an approval.
    RequireApproval(Arc<Approval>),
    /// It is made within a limit.
    Limit(Arc<Limit>),
}

impl Action {
    /// The name of the action, as in the policy file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny(_) => "deny",
            Self::RequireApproval(_) => "require_approval",
            Self::Limit(_) => "limit",
        }
    }
}

impl Action {
    /// Why a call is denied, who may approve it, or the limit.
    pub fn details(&self) -> Option<String> {
        match self {
            Self::Allow => None,
            Self::Deny(reason) => Some(reason.to_string()),
            Self::RequireApproval(approval) => Some(approval.to_string()),
            Self::Limit(limit) => {
                let kind = if limit.kind == LimitKind::Rate { "rate" } else { "budget" };
                Some(format!("{kind} {} per {}", limit.quantity, limit.per.name()))
            }
        }
    }
}

/// How a call that a policy matches is approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Users and groups who may decide; empty: all users with the right `approve`.
    pub approvers: Vec<PrincipalName>,
    /// Number of approvals that are needed.
    pub quorum: u32,
    /// Time after which the request expires, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// Users and groups to notify.
    pub notify: Vec<PrincipalName>,
    /// Milliseconds between reminders.
    pub remind_ms: Option<u64>,
    /// Further levels, in order of time.
    pub escalate: Vec<EscalationLevel>,
    /// Whether the user who started the run may decide.
    pub allow_self: bool,
    /// The factor with which approvers prove that they are present.
    pub presence: Presence,
}

impl Approval {
    /// The gate at which a call waits.
    pub fn gate(&self) -> Gate {
        let rules = GateRules {
            approvers: written(&self.approvers),
            quorum: self.quorum,
            allow_self: self.allow_self,
            on_timeout: self.on_timeout,
            on_timeout_goto: None,
            remind_ms: self.remind_ms,
            escalate: self.escalate.clone(),
            presence: self.presence,
        };
        Gate { notify: written(&self.notify).into(), rules, timeout_ms: self.timeout_ms, ..Gate::default() }
    }
}

/// Users and groups as a definition writes them.
fn written(names: &[PrincipalName]) -> Vec<Box<str>> {
    names.iter().map(|name| name.to_string().into()).collect()
}

/// A hash of who may decide at a gate, and of the policy that requires it. A remembered approval is bound to it.
pub fn terms(rules: &GateRules, version: &str) -> Hash {
    let rules = serde_json::to_string(rules).unwrap_or_default();
    Hash::of(format!("{version} {rules}").as_bytes())
}

impl std::fmt::Display for Approval {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.approvers.iter().map(ToString::to_string).collect();
        let approvers =
            if names.is_empty() { "the users with the right `approve`".to_owned() } else { names.join(", ") };
        match self.quorum {
            1 => write!(out, "one of {approvers}")?,
            quorum => write!(out, "{quorum} of {approvers}")?,
        }
        if self.presence.is_none() { Ok(()) } else { write!(out, ", with {}", self.presence.name()) }
    }
}

/// A limit on the number of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Whether calls above the limit wait or fail.
    pub kind: LimitKind,
    /// Number of calls, per unit of time.
    pub quantity: Quantity,
    /// Whose calls count together.
    pub per: LimitPer,
}

/// The kind of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitKind {
    /// Calls above the limit wait.
    Rate,
    /// Calls above the limit fail.
    Budget,
    /// Calls above the limit need an approval.
    BudgetOrApproval(Arc<Approval>),
}

/// A limit on calls with the same user, tool and arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdenticalCalls {
    /// Number of calls that are made.
    pub max: u32,
    /// The time in which they are counted, in milliseconds.
    pub within_ms: u64,
}

/// The decision of a policy about one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Name of the rule that decided, or [`DEFAULT_RULE`].
    pub rule: Arc<str>,
    /// Version of the policy.
    pub version: Arc<str>,
    /// What happens to the call.
    pub action: Action,
}

impl Policy {
    /// Parses and compiles a policy. Reports all problems; there is no policy if one of them is an error.
    pub fn compile(source: &Source, zones: FindZone) -> (Option<Self>, Vec<Diagnostic>) {
        let mut out = Diagnostics::default();
        let policy = compile::compile(source, zones, &mut out);
        let policy = if out.has_errors() { None } else { policy };
        (policy, out.finish())
    }

    /// SHA-256 of the policy's canonical JSON. Comments and spelling do not change it.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The first digits of the hash, for people and the log.
    pub fn version(&self) -> &Arc<str> {
        &self.version
    }

    /// Names of the rules, in order.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| &*rule.name)
    }

    /// The start of the window that a budget counts in, in milliseconds; 0 without a unit of time. Days and weeks start at
    /// midnight in the time zone of the policy, weeks on Monday.
    pub fn window_start(&self, limit: &Limit, now: Millis) -> Millis {
        let Some(unit) = limit.quantity.unit else { return 0 };
        let length = i64::try_from(unit.millis()).unwrap_or(i64::MAX);
        let offset = jiff::Timestamp::from_millisecond(now)
            .map_or(0, |now| i64::from(self.zone.to_offset(now).seconds()) * 1_000);
        // 1970-01-01 was a Thursday: weeks start three days before it.
        let shift = if unit == TimeUnit::Week { offset + 3 * 86_400_000 } else { offset };
        let local = now.saturating_add(shift);
        local - local.rem_euclid(length) - shift
    }
}
