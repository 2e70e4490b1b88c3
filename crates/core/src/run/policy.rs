//! Enforces the operator's policy: each call is judged after its arguments are known and before it starts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::approval::PolicyRule;
use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::{Failure, FailureKind, Millis, Payload, WorldError};
use crate::plan::{Gate, GateRules};

/// The code of a failure because a rule denies the call.
pub const POLICY_DENIED: &str = "policy_denied";
/// The code of a failure because a budget is spent.
pub const BUDGET_EXCEEDED: &str = "budget_exceeded";
/// The code of a wait because of a rate.
pub const RATE_LIMITED: &str = "rate_limited";

/// A call to judge.
#[derive(Debug, Clone, Copy)]
pub struct JudgedCall<'c> {
    /// Full name of the tool.
    pub tool: &'c str,
    /// The arguments.
    pub args: &'c Payload,
    /// Path of the step.
    pub path: &'c str,
    /// Whether the call serves another one: a `verify` probe, or a request to create a tool. It cannot wait.
    pub auxiliary: bool,
}

/// The judgement of the policy about a call, with limits applied.
#[derive(Debug)]
pub enum Judgement {
    /// There is no policy.
    Unrestricted,
    /// The call may start.
    Allow(Box<PolicyUse>),
    /// The call fails.
    Deny {
        /// The rule.
        rule: PolicyRule,
        /// The code of the failure.
        code: &'static str,
        /// The reason.
        reason: Box<str>,
    },
    /// The call needs an approval.
    RequireApproval {
        /// What the log records if the call starts.
        policy: Box<PolicyUse>,
        /// The approval.
        gate: Box<Gate>,
    },
    /// The call starts later.
    Wait {
        /// The rule.
        rule: PolicyRule,
        /// When it is judged again.
        due: Millis,
        /// The reason.
        reason: Box<str>,
    },
}

/// How the policy allowed a call, as the log records it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyUse {
    /// The rule and the version of the policy.
    #[serde(flatten)]
    pub rule: PolicyRule,
    /// The budget that the call counts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetUse>,
    /// The approval that the rule required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<ApprovedBy>,
}

/// The budget that a call counts for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetUse {
    /// Whose calls count together: `run:…`, `user:…` or `tool:…`.
    pub subject: Box<str>,
    /// Start of the window of time, in milliseconds since 1970.
    pub start: Millis,
}

/// The approval that satisfied a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovedBy {
    /// An approval of the step itself.
    Step,
    /// An approval of an earlier gate of the run, by the number of its execution.
    Gate(u32),
    /// A remembered approval, by its id.
    Remembered(Box<str>),
}

/// Whether a call may start.
pub(super) enum Permit {
    /// It may, and the log records this.
    Start(Option<Box<PolicyUse>>),
    /// It may not: the step failed or waits.
    Stopped,
}

impl Decision<'_> {
    /// Applies the policy to a call that has a slot. A call that may not start gives its slot back.
    pub(super) fn permit(
        &mut self,
        attempt: &Attempt,
        tool: &str,
        args: &Payload,
    ) -> Result<Permit, WorldError> {
        let stopped = |stopped: DecideResult| stopped.map(|()| Permit::Stopped);
        match self.judge(&JudgedCall { tool, args, path: &attempt.step_ref.path, auxiliary: false })? {
            Judgement::Unrestricted => Ok(Permit::Start(None)),
            Judgement::Allow(policy) => Ok(Permit::Start(Some(policy))),
            Judgement::Deny { rule, code, reason } => {
                self.world.release();
                stopped(self.fail_before_start(attempt, denied(&rule, code, &reason)))
            }
            Judgement::RequireApproval { mut policy, gate } => {
                policy.approved = self.approval_for(attempt, args, &gate.rules);
                if policy.approved.is_some() {
                    return Ok(Permit::Start(Some(policy)));
                }
                self.world.release();
                stopped(self.request_policy_approval(attempt, &gate, policy.rule))
            }
            Judgement::Wait { rule, due, reason } => {
                self.world.release();
                let message = format!("{reason} (rule `{}`, policy {})", rule.rule, rule.version);
                let error = Failure::new(FailureKind::Limit, message).code(RATE_LIMITED);
                self.wait_for_rate(attempt, error, due);
                Ok(Permit::Stopped)
            }
        }
    }

    /// Applies the policy to a call that serves another one. Returns the failure if it may not be made.
    pub(super) fn permit_auxiliary(
        &mut self,
        n: u32,
        tool: &str,
        args: &Payload,
    ) -> Result<Result<Option<Box<PolicyUse>>, Failure>, WorldError> {
        let Some(path) = self.run.live.get(&n).map(|live| live.path.clone()) else { return Ok(Ok(None)) };
        Ok(match self.judge(&JudgedCall { tool, args, path: &path, auxiliary: true })? {
            Judgement::Unrestricted => Ok(None),
            Judgement::Allow(policy) => Ok(Some(policy)),
            Judgement::Deny { rule, code, reason } => Err(denied(&rule, code, &reason)),
            Judgement::RequireApproval { policy, .. } => {
                let reason = format!("`{tool}` needs an approval");
                Err(denied(&policy.rule, POLICY_DENIED, &reason))
            }
            Judgement::Wait { rule, reason, .. } => Err(denied(&rule, RATE_LIMITED, &reason)),
        })
    }

    fn judge(&mut self, call: &JudgedCall<'_>) -> Result<Judgement, WorldError> {
        let mut budget = self.budget.part();
        let judgement = self.world.judge(call, &mut budget);
        self.budget.settle(&budget);
        judgement
    }

    /// The approval that satisfies a rule, if one covers exactly this call and the right users gave it.
    fn approval_for(&self, attempt: &Attempt, args: &Payload, rules: &GateRules) -> Option<ApprovedBy> {
        let starter = self.world.starter();
        let n = attempt.n();
        if let Some(live) = self.run.live.get(&n).filter(|_| self.is_approved(n))
            && rules.are_met_by(live.approved_level(rules), &live.approvers, &starter.user)
        {
            return Some(ApprovedBy::Step);
        }
        let cover = self.run.cover(attempt.step, args.hash())?;
        rules.are_met_by(0, &cover.approvers, &starter.user).then_some(ApprovedBy::Gate(cover.gate))
    }

    /// Makes a step wait until the rate of a rule admits its call. No attempt is spent.
    fn wait_for_rate(&mut self, attempt: &Attempt, error: Failure, due: Millis) {
        let (step, place) = (attempt.step_ref.clone(), self.step_info(attempt.scope, attempt.step));
        self.emit(Event::ServerAwaited { step, place, error, due: Some(due), until: None });
    }
}

/// The failure of a call that the policy does not allow.
fn denied(rule: &PolicyRule, code: &'static str, reason: &str) -> Failure {
    let source = match &*rule.version {
        // A freeze has no version.
        "" => String::new(),
        version => format!(" (rule `{}`, policy {version})", rule.rule),
    };
    Failure::new(FailureKind::Permission, format!("{reason}{source}")).code(code)
}
