//! Judges calls by the policy and applies its limits. Rates and identical calls are counted in memory; budgets are counted
//! in the store, with the commits of the calls.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use steprail_core::budget::Budget;
use steprail_core::plan::Hash;
use steprail_core::policy::spec::TimeUnit;
use steprail_core::policy::{
    Action, Approval, CallFacts, Limit, LimitKind, LimitPer, Policy, Verdict, terms,
};
use steprail_core::run::{
    Annotations, ApprovedBy, BUDGET_EXCEEDED, BudgetUse, JudgedCall, Judgement, Millis, POLICY_DENIED,
    PolicyRule, PolicyUse,
};
use steprail_store::{Origin, PolicyChange, Principal, RunId, StoreError};

use super::Kernel;
use super::world::KernelWorld;
use crate::limits::{IDENTICAL_CALLS, RATE_ENTRIES};

/// The prefix of `via` of runs that an MCP client started.
const CLIENT: &str = "mcp client ";

/// Limits that are counted in memory. After a restart they start again.
#[derive(Default)]
pub(super) struct CallLimits {
    rates: HashMap<(Arc<str>, Box<str>), Rate>,
    /// Times of identical calls, by user, tool and arguments.
    identical: HashMap<Hash, VecDeque<Millis>>,
}

/// The state of one rate (the generic cell rate algorithm), in microseconds.
#[derive(Default)]
struct Rate {
    /// When the calls so far are spread out completely.
    spread_until: i64,
    /// Calls that wait, and when each of them may start.
    reserved: HashMap<(RunId, Box<str>), Millis>,
}

impl Rate {
    /// Admits a call, or returns when it may start. A call that waited starts at the time that it was given.
    fn admit(&mut self, limit: &Limit, call: (RunId, Box<str>), now: Millis) -> Result<(), Millis> {
        if let Some(due) = self.reserved.get(&call).copied() {
            if due > now {
                return Err(due);
            }
            self.reserved.remove(&call);
            return Ok(());
        }
        let window =
            i64::try_from(limit.quantity.unit.map_or(1_000, TimeUnit::millis)).unwrap_or(1_000) * 1_000;
        let interval = window / i64::from(limit.quantity.count);
        let micros = now.saturating_mul(1_000);
        self.spread_until = self.spread_until.max(micros).saturating_add(interval);
        let start = self.spread_until - window;
        if start <= micros {
            return Ok(());
        }
        let due = start / 1_000 + 1;
        // Steps that were cancelled do not return.
        if self.reserved.len() >= RATE_ENTRIES {
            self.reserved.retain(|_, due| *due > now);
        }
        self.reserved.insert(call, due);
        Err(due)
    }
}

impl CallLimits {
    /// Whether a user has made a call with this tool and these arguments too often.
    fn is_repeated(
        &mut self,
        policy: &Policy,
        user: &str,
        call: &JudgedCall<'_>,
        now: Millis,
    ) -> Option<String> {
        let limit = policy.identical_calls?;
        let within = i64::try_from(limit.within_ms).unwrap_or(i64::MAX);
        if self.identical.len() >= IDENTICAL_CALLS {
            self.identical
                .retain(|_, times| times.back().is_some_and(|last| *last > now.saturating_sub(within)));
        }
        let key = Hash::of(format!("{user}\n{}\n{}", call.tool, call.args.hash()).as_bytes());
        let times = self.identical.entry(key).or_default();
        while times.front().is_some_and(|first| *first <= now.saturating_sub(within)) {
            times.pop_front();
        }
        if times.len() >= limit.max as usize {
            let seconds = limit.within_ms / 1_000;
            return Some(format!("the same call was made {} times within {seconds} s", limit.max));
        }
        times.push_back(now);
        None
    }

    fn rate(&mut self, rule: &Arc<str>, subject: Box<str>) -> &mut Rate {
        if self.rates.len() >= RATE_ENTRIES {
            self.rates.retain(|_, rate| !rate.reserved.is_empty());
        }
        self.rates.entry((rule.clone(), subject)).or_default()
    }
}

impl Kernel {
    /// Adds a change of the policy's state to the batch. A freeze applies to the requests that follow in the batch.
    pub(super) fn change_policy(&mut self, change: PolicyChange) {
        match change {
            PolicyChange::Freeze(_) => self.set_frozen(true),
            PolicyChange::Unfreeze { .. } => self.set_frozen(false),
            PolicyChange::Remember(_) | PolicyChange::Revoke { .. } => {}
        }
        self.batch.commit.policy.push(change);
    }

    pub(super) fn set_frozen(&mut self, frozen: bool) {
        self.batch_frozen = frozen;
        self.flights.set_frozen(frozen);
    }
}

impl KernelWorld<'_> {
    pub(super) fn judge_call(
        &mut self,
        call: &JudgedCall<'_>,
        budget: &mut Budget,
    ) -> Result<Judgement, StoreError> {
        if call.auxiliary && self.frozen {
            let rule = PolicyRule { rule: "freeze".into(), version: Box::default() };
            let reason = "all calls are frozen".into();
            return Ok(Judgement::Deny { rule, code: POLICY_DENIED, reason });
        }
        let Some(policy) = self.policy.current() else { return Ok(Judgement::Unrestricted) };
        let verdict = self.verdict(&policy, call, budget);
        let rule = PolicyRule { rule: (*verdict.rule).into(), version: (*verdict.version).into() };
        let allowed = |rule| PolicyUse { rule, budget: None, approved: None };
        match verdict.action {
            Action::Deny(reason) => {
                Ok(Judgement::Deny { rule, code: POLICY_DENIED, reason: (*reason).into() })
            }
            Action::RequireApproval(approval) => Ok(self.require(allowed(rule), call, &approval)),
            Action::Allow => Ok(self.unless_repeated(&policy, allowed(rule), call)),
            Action::Limit(ref limit) => self.limit(&policy, &verdict, limit, allowed(rule), call),
        }
    }

    fn verdict(&self, policy: &Policy, call: &JudgedCall<'_>, budget: &mut Budget) -> Verdict {
        let principal = &self.head.principal;
        let groups = self.authorizer.groups(&principal.id);
        let inline;
        let workflow = match principal.origin {
            Some(Origin::Direct | Origin::Notification) => None,
            // Anybody can choose the name of an inline definition.
            Some(Origin::Inline) => {
                inline = format!("inline:{}", self.compiled.plan.name);
                Some(&*inline)
            }
            None => Some(&*self.compiled.plan.name),
        };
        let facts = CallFacts {
            tool: call.tool,
            args: call.args.value(),
            annotations: self.pinned_annotations(call.tool),
            user: &principal.id,
            groups: &groups,
            agent: principal.agent,
            client: client(principal),
            workflow,
            step: call.path,
            now: self.now,
        };
        policy.judge(&facts, budget)
    }

    /// The annotations of a tool. They do not count if the tool has changed since the definition was stored.
    fn pinned_annotations(&self, tool: &str) -> Annotations {
        let pinned = self.compiled.pins.get(tool);
        let is_same = pinned.is_none_or(|pinned| self.tools.pin(tool).is_none_or(|now| now == *pinned));
        if is_same { self.tools.annotations(tool) } else { Annotations::UNANNOTATED }
    }

    fn require(&self, mut policy: PolicyUse, call: &JudgedCall<'_>, approval: &Approval) -> Judgement {
        let gate = approval.gate();
        let terms = terms(&gate.rules, &policy.rule.version);
        let remembered = self.policy.find_remembered(|known| {
            *known.rule == *policy.rule.rule
                && known.terms == terms
                && known.user == self.head.principal.id
                && known.tool == call.tool
                && known.args.is_none_or(|args| args == call.args.hash())
                && known.until > self.now
        });
        match remembered {
            Some(id) => {
                policy.approved = Some(ApprovedBy::Remembered(id.into()));
                Judgement::Allow(Box::new(policy))
            }
            // An approval would cause the next notification.
            None if self.head.principal.origin == Some(Origin::Notification) => {
                let reason = format!(
                    "the policy requires an approval for `{}`, and a notification cannot wait for one",
                    call.tool
                );
                Judgement::Deny { rule: policy.rule, code: POLICY_DENIED, reason: reason.into() }
            }
            None => Judgement::RequireApproval { policy: Box::new(policy), gate: Box::new(gate) },
        }
    }

    fn unless_repeated(&mut self, policy: &Policy, allowed: PolicyUse, call: &JudgedCall<'_>) -> Judgement {
        match self.call_limits.is_repeated(policy, &self.head.principal.id, call, self.now) {
            Some(reason) => {
                Judgement::Deny { rule: allowed.rule, code: "identical_calls", reason: reason.into() }
            }
            None => Judgement::Allow(Box::new(allowed)),
        }
    }

    fn limit(
        &mut self,
        policy: &Policy,
        verdict: &Verdict,
        limit: &Limit,
        mut allowed: PolicyUse,
        call: &JudgedCall<'_>,
    ) -> Result<Judgement, StoreError> {
        let subject: Box<str> = match limit.per {
            LimitPer::Run => format!("run:{}", self.head.id).into(),
            LimitPer::User => format!("user:{}", self.head.principal.id).into(),
            LimitPer::Tool => format!("tool:{}", call.tool).into(),
        };
        let (per, quantity) = (limit.per.name(), limit.quantity);
        if limit.kind == LimitKind::Rate && call.auxiliary {
            return Ok(Judgement::Allow(Box::new(allowed)));
        }
        if limit.kind == LimitKind::Rate {
            let waiting = (self.head.id, call.path.into());
            let admitted = self.call_limits.rate(&verdict.rule, subject).admit(limit, waiting, self.now);
            return Ok(match admitted {
                Ok(()) => self.unless_repeated(policy, allowed, call),
                Err(due) => {
                    let reason = format!("the rate of calls is limited to {quantity} per {per}").into();
                    Judgement::Wait { rule: allowed.rule, due, reason }
                }
            });
        }
        let start = policy.window_start(limit, self.now);
        let count = self.batch.counter(&subject, &verdict.rule, start)?;
        let is_within = count < u64::from(quantity.count);
        allowed.budget = Some(BudgetUse { subject: subject.clone(), start });
        Ok(match &limit.kind {
            _ if is_within => {
                let judgement = self.unless_repeated(policy, allowed, call);
                if matches!(judgement, Judgement::Allow(_)) {
                    self.batch.count(&subject, &verdict.rule, start);
                }
                judgement
            }
            LimitKind::BudgetOrApproval(approval) => self.require(allowed, call, approval),
            LimitKind::Budget | LimitKind::Rate => {
                let reason = format!("the budget of {quantity} calls per {per} is spent").into();
                Judgement::Deny { rule: allowed.rule, code: BUDGET_EXCEEDED, reason }
            }
        })
    }
}

/// Name of the client through which a run was started, without its version.
fn client(principal: &Principal) -> Option<&str> {
    let name = principal.client.as_deref().or_else(|| principal.via.as_deref()?.strip_prefix(CLIENT))?;
    Some(name)
}
