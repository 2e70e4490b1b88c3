//! Decisions at gates: who may decide, what a decision is about, and which gates an intervention passes.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::expr::StepIx;
use steprail_core::limits::RUN_DEPTH;
use steprail_core::plan::{GateRules, Hash, Kind, Plan};
use steprail_core::policy::terms;
use steprail_core::run::{
    Actor, ApprovalKind, Decided, Input, Intervention, Live, Millis, OpenGate, Phase, Provenance,
};
use steprail_core::schema::Schema;
use steprail_store::{PolicyChange, Principal, Remembered, RunId, StoreError};

use super::control::{Answered, size_error};
use super::sub_workflows::resolve;
use super::{Compiled, Done, Kernel, no_run};
use crate::decisions::DecisionRequest;
use crate::error::Error;
use crate::limits::REMEMBER_MS;
use crate::presence;

/// Violations of a form that are reported.
const VIOLATIONS: usize = 10;
/// Length of the id of a remembered approval: digits of the digest of its request.
const REMEMBERED_ID_CHARS: usize = 12;

impl Kernel {
    pub(super) fn may_decide_at(&self, key: RunId, path: &str, by: &Principal) -> Result<(), Error> {
        let Some(entry) = self.runs.get(&key) else { return Err(no_run(key)) };
        let Some((_, live, open)) = open_gate(entry.run.find(path)) else {
            return Err(no_approval(key, path));
        };
        if answers_own_call(live, &entry.head.principal, by) {
            return Ok(());
        }
        may_decide(&open.rules, level_of(live), &entry.head.principal, by)
    }

    pub(super) fn decide_gate(
        &mut self,
        key: RunId,
        path: &str,
        by: &Principal,
        decision: &DecisionRequest,
        now: Millis,
        done: &mut Done,
    ) -> Answered {
        let Some(entry) = self.runs.get(&key) else { return Ok(Ok(())) };
        let Some((n, live, open)) = open_gate(entry.run.find(path)) else {
            return self.already_decided(key, path, by, decision);
        };
        let (seen, was_policy) = (gate_digest(live), open.kind == ApprovalKind::Policy);
        let presence = if answers_own_call(live, &entry.head.principal, by) {
            Ok(())
        } else {
            self.require_presence_of(Some(&open.rules), by)
        };
        if let Err(error) = self.may_decide_at(key, path, by).and(presence) {
            return Ok(Err(error));
        }
        if let Err(error) = check_decision(live, &entry.compiled.plan, path, decision) {
            return Ok(Err(error));
        }
        if by.provenance.link.is_some() && live.approvers.iter().any(|known| known.link == by.provenance.link)
        {
            let message =
                format!("this link was already used to approve `{path}`; it needs further approvers");
            return Ok(Err(Error::Conflict(message)));
        }
        let remembered = match self.remembered(key, path, by, decision, now) {
            Ok(remembered) => remembered,
            Err(error) => return Ok(Err(error)),
        };
        let input = Input::Decided {
            n,
            decision: Box::new(Decided {
                approved: decision.approved,
                by: actor(by),
                reason: decision.reason.as_deref().map(Into::into),
                digest: decision.digest,
                answer: decision.answer.clone(),
                edited: decision.edited.clone(),
            }),
        };
        let has_events = self.input(key, input, now, done)?;
        // A request that was stale has been replaced instead of decided.
        let open = self.runs.get(&key).and_then(|entry| open_gate(entry.run.find(path)));
        let is_signed = |live: &Live| live.approvers.iter().any(|approver| *approver.user == *by.id);
        let is_open = open.filter(|(found, ..)| *found == n);
        let is_asked_by_policy = |open: &OpenGate| open.kind == ApprovalKind::Policy && !was_policy;
        if is_open.is_none() && has_events {
            remembered.into_iter().for_each(|change| self.change_policy(change));
            return Ok(Ok(()));
        }
        match is_open {
            // The approval was recorded, and a rule of the policy requires another one.
            Some((_, _, open)) if decision.approved && has_events && is_asked_by_policy(open) => Ok(Ok(())),
            Some((_, live, _)) if decision.approved && is_signed(live) && has_events => Ok(Ok(())),
            Some((_, live, _)) if decision.approved && is_signed(live) => Ok(Err(Error::Conflict(format!(
                "you have already approved `{path}`; it needs further approvers"
            )))),
            Some((_, live, _)) if gate_digest(live) != seen || !has_events => {
                let message = format!(
                    "the request of `{path}` has changed since you saw it, or it has expired; look at it again"
                );
                Ok(Err(Error::Conflict(message)))
            }
            _ if has_events => Ok(Ok(())),
            _ => Ok(Err(Error::Conflict(format!("`{path}` cannot be decided now; look at it again")))),
        }
    }

    /// Returns an error unless the user proved that they are present, as the settings and the rules of a gate require.
    pub(super) fn require_presence_of(&self, rules: Option<&GateRules>, by: &Principal) -> Result<(), Error> {
        let required = rules.map_or(self.presence, |rules| rules.presence.or_stronger(self.presence));
        presence::require(required, by)
    }

    /// The approval as it covers later calls, if the decision says so.
    fn remembered(
        &self,
        key: RunId,
        path: &str,
        by: &Principal,
        decision: &DecisionRequest,
        now: Millis,
    ) -> Result<Option<PolicyChange>, Error> {
        let Some(remember) = decision.remember else { return Ok(None) };
        let refuse = |message: &str| Err(Error::BadInput(message.to_owned()));
        let Some(entry) = self.runs.get(&key) else { return Ok(None) };
        let Some((_, live, open)) = open_gate(entry.run.find(path)) else { return Ok(None) };
        let (Some(rule), Kind::Call(call)) = (open.policy(), &entry.compiled.plan.step(live.step).kind)
        else {
            return refuse("only an approval that a rule of the policy requires can be remembered");
        };
        if !decision.approved || decision.edited.is_some() {
            return refuse("only an approval of the call as it was requested can be remembered");
        }
        // A later call is not escalated when it starts.
        if !open.rules.admits(0, &by.id, &by.groups) {
            return refuse(
                "only an approver who may decide before an escalation can have an approval remembered",
            );
        }
        if open.rules.quorum > 1 {
            return refuse("an approval that needs several users cannot be remembered");
        }
        if remember.millis == 0 || remember.millis > REMEMBER_MS {
            return refuse("an approval is remembered for up to 30 days");
        }
        let args = open.covered_args(live.step);
        if args.is_none() && !remember.any_arguments {
            return refuse(
                "the arguments of the call are not known, so the approval cannot be remembered for them",
            );
        }
        let id = gate_digest(live).map(|digest| digest.to_string()).unwrap_or_default();
        Ok(Some(PolicyChange::Remember(Box::new(Remembered {
            id: id.chars().take(REMEMBERED_ID_CHARS).collect(),
            rule: rule.rule.to_string(),
            terms: terms(&open.rules, &rule.version),
            user: entry.head.principal.id.clone(),
            tool: call.full_name().into(),
            args: args.filter(|_| !remember.any_arguments),
            by: by.id.clone(),
            at: now,
            until: now.saturating_add_unsigned(remember.millis),
        }))))
    }

    /// Answers a decision at a closed gate: repeating the same decision is no error, another one is told who decided.
    fn already_decided(
        &mut self,
        key: RunId,
        path: &str,
        by: &Principal,
        decision: &DecisionRequest,
    ) -> Answered {
        let Some(approval) = self.batch.approval(key, path)? else { return Ok(Err(no_approval(key, path))) };
        let same = approval.decided_by.as_deref() == Some(&by.id)
            && approval.status == if decision.approved { "approved" } else { "denied" };
        // The same decision about another request is another decision.
        if same && decision.digest.is_none_or(|seen| seen == approval.digest) {
            return Ok(Ok(()));
        }
        let by = approval.decided_by.map(|by| format!(" by {by}")).unwrap_or_default();
        Ok(Err(Error::Conflict(format!("`{path}` was already {}{by}", approval.status))))
    }

    /// Returns an error if an intervention passes a gate at which the user may not decide. It is judged by the plan: a gate
    /// counts before it opens, inside blocks and inside sub-workflows.
    pub(super) fn passes_gates(
        &mut self,
        key: RunId,
        intervention: &Intervention,
        by: &Principal,
    ) -> Result<Option<Error>, StoreError> {
        let Some(entry) = self.runs.get(&key) else { return Ok(None) };
        let (compiled, starter) = (entry.compiled.clone(), entry.head.principal.clone());
        let plan = &compiled.plan;
        let steps: Vec<StepIx> = match intervention {
            Intervention::Skip { path } | Intervention::SupplyResult { path, .. } => {
                let Some((n, live)) = entry.run.find(path) else { return Ok(None) };
                let mut steps = plan.within(live.step);
                // The result of a step can decide which way the run takes.
                if plan.has_choices() {
                    steps.extend(plan.after(live.step));
                }
                if let Some(error) = self.open_gate_within(key, Some(n), by)? {
                    return Ok(Some(error));
                }
                steps
            }
            Intervention::SetArguments { path, .. } => match plan.find(step_id(path)) {
                Some(target) => plan.before(target).into_iter().chain([target]).collect(),
                None => Vec::new(),
            },
            Intervention::SetValue(_) => plan.all_steps().collect(),
        };
        let mut checked = BTreeSet::new();
        if let Some(error) = self.gate_among(&compiled, &steps, &starter, by, 0, &mut checked)? {
            return Ok(Some(error));
        }
        let edits = matches!(intervention, Intervention::SetArguments { .. } | Intervention::SetValue(_));
        if edits { self.gate_around(key, by) } else { Ok(None) }
    }

    /// Returns an error if a gate before the step of an enclosing run, at which the user may not decide, was passed for what
    /// the user edits.
    fn gate_around(&mut self, key: RunId, by: &Principal) -> Result<Option<Error>, StoreError> {
        let Some((parent, n, _)) = self.runs.get(&key).and_then(|entry| entry.head.parent) else {
            return Ok(None);
        };
        let Some(parent) = self.find(parent)? else { return Ok(None) };
        let Some(entry) = self.runs.get(&parent) else { return Ok(None) };
        let (compiled, starter) = (entry.compiled.clone(), entry.head.principal.clone());
        if let Some(step) = entry.run.live().get(&n).map(|live| live.step) {
            let steps: Vec<StepIx> = compiled.plan.before(step).into_iter().chain([step]).collect();
            // Its own sub-workflows are those that are edited.
            let mut checked: BTreeSet<i64> = BTreeSet::new();
            if let Some(error) = self.gate_among(&compiled, &steps, &starter, by, RUN_DEPTH, &mut checked)? {
                return Ok(Some(error));
            }
        }
        self.gate_around(parent, by)
    }

    /// Returns an error if one of the steps, or a sub-workflow that it starts, has a gate at which the user may not decide.
    fn gate_among(
        &mut self,
        compiled: &Compiled,
        steps: &[StepIx],
        starter: &Principal,
        by: &Principal,
        depth: u32,
        checked: &mut BTreeSet<i64>,
    ) -> Result<Option<Error>, StoreError> {
        let plan = &compiled.plan;
        for step in steps {
            for gate in plan.gates_of(*step) {
                if let Err(error) = may_decide(&gate.rules, 0, starter, by) {
                    return Ok(Some(passes(&plan.step(*step).id, &error)));
                }
                if let Err(error) = self.require_presence_of(Some(&gate.rules), by) {
                    return Ok(Some(error));
                }
            }
            let Kind::Workflow(workflow) = &plan.step(*step).kind else { continue };
            let Ok(found) = resolve(&mut self.batch, compiled, workflow)? else { continue };
            if depth >= RUN_DEPTH || !checked.insert(found.definition.id) {
                continue;
            }
            let child = self.plans.of(&found.definition)?;
            let all: Vec<StepIx> = child.plan.all_steps().collect();
            if let Some(error) = self.gate_among(&child, &all, starter, by, depth + 1, checked)? {
                return Ok(Some(error));
            }
        }
        Ok(None)
    }

    /// Returns an error if an execution, or the whole run, has an open gate at which the user may not decide.
    fn open_gate_within(
        &mut self,
        key: RunId,
        target: Option<u32>,
        by: &Principal,
    ) -> Result<Option<Error>, StoreError> {
        let Some(entry) = self.runs.get(&key) else { return Ok(None) };
        let executions = match target {
            Some(target) => entry.run.within(target),
            None => entry.run.live().iter().map(|(n, live)| (*n, &**live)).collect(),
        };
        let mut children = Vec::new();
        for (_, live) in executions {
            match &live.phase {
                Phase::Gate { open, level, .. } => {
                    if let Err(error) = may_decide(&open.rules, *level, &entry.head.principal, by) {
                        return Ok(Some(passes(&live.path, &error)));
                    }
                    if let Err(error) = self.require_presence_of(Some(&open.rules), by) {
                        return Ok(Some(error));
                    }
                }
                Phase::Child { run } => children.extend(run.parse::<RunId>()),
                _ => {}
            }
        }
        for child in children {
            if let Some(child) = self.find(child)?
                && let Some(error) = self.open_gate_within(child, None, by)?
            {
                return Ok(Some(error));
            }
        }
        Ok(None)
    }
}

/// Checks the parts of a decision that depend on the request: the answer to a tool, the form, edited arguments.
fn check_decision(live: &Live, plan: &Plan, path: &str, decision: &DecisionRequest) -> Result<(), Error> {
    let asks = live.input_response.as_ref().is_some_and(|asked| !asked.is_call_confirmation());
    if decision.approved && decision.answer.is_none() && asks {
        let message = format!("the tool of `{path}` requests input: an approval needs an answer");
        return Err(Error::BadInput(message));
    }
    if let Some(error) = decision.answer.as_ref().and_then(|answer| size_error("an answer", answer)) {
        return Err(error);
    }
    if let Some(args) = &decision.edited {
        check_edited(live, plan, path, decision.approved, args)?;
    }
    let form = match &plan.step(live.step).kind {
        Kind::Approve(approve) if decision.approved => approve.gate.form.as_ref(),
        _ => None,
    };
    match (form, &decision.answer) {
        (Some((_, schema)), answer) => check_form(schema, answer.as_ref(), path),
        (None, Some(_)) if live.input_response.is_none() => {
            Err(Error::BadInput(format!("`{path}` has no form: its approval takes no answer")))
        }
        (None, _) => Ok(()),
    }
}

fn check_edited(live: &Live, plan: &Plan, path: &str, approved: bool, args: &Value) -> Result<(), Error> {
    if !matches!(plan.step(live.step).kind, Kind::Call(_)) {
        return Err(Error::BadInput(format!("`{path}` makes no call whose arguments could be edited")));
    }
    if live.input_response.is_some() || !approved {
        let message = format!("the arguments of `{path}` can be edited only when its call is approved");
        return Err(Error::BadInput(message));
    }
    if !args.is_object() {
        return Err(Error::BadInput("arguments are a map".to_owned()));
    }
    size_error("a set of arguments", args).map_or(Ok(()), Err)
}

/// Checks the values of a form against its schema.
fn check_form(schema: &Schema, answer: Option<&Value>, path: &str) -> Result<(), Error> {
    let empty = json!({});
    let answer = answer.unwrap_or(&empty);
    let violations = schema.check_within(answer, VIOLATIONS, &mut Budget::check(answer));
    if violations.is_empty() {
        return Ok(());
    }
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    Err(Error::BadInput(format!("the form of `{path}`: {}", violations.join("; "))))
}

/// The user who acts, with how they act.
pub(super) fn actor(by: &Principal) -> Actor {
    let provenance = Provenance {
        groups: by.groups.iter().map(|group| group.as_str().into()).collect(),
        only_user: by.sole_user,
        ..by.provenance.clone()
    };
    let is_known = provenance != Provenance::default();
    Actor { user: by.id.as_str().into(), provenance: is_known.then(|| Box::new(provenance)) }
}

fn open_gate(found: Option<(u32, &Live)>) -> Option<(u32, &Live, &OpenGate)> {
    let (n, live) = found?;
    if let Phase::Gate { open, .. } = &live.phase { Some((n, live, open)) } else { None }
}

/// Number of escalations of an open gate so far, as the log says.
fn level_of(live: &Live) -> u32 {
    if let Phase::Gate { level, .. } = &live.phase { *level } else { 0 }
}

fn gate_digest(live: &Live) -> Option<Hash> {
    if let Phase::Gate { digest, .. } = &live.phase { Some(*digest) } else { None }
}

fn no_approval(run: RunId, path: &str) -> Error {
    Error::NotFound(format!("step `{path}` of run {run} has no open approval"))
}

/// An intervention that would pass a gate.
fn passes(gate: &str, error: &Error) -> Error {
    Error::Denied(format!("the intervention passes the gate `{gate}`, and that is a decision at it: {error}"))
}

/// The id of the step that a path ends with.
fn step_id(path: &str) -> &str {
    let last = path.rsplit('.').next().unwrap_or(path);
    last.split(['#', '[']).next().unwrap_or(path)
}

/// Whether the client of a relayed call answers the input request of that call. It decides nothing else.
fn answers_own_call(live: &Live, starter: &Principal, by: &Principal) -> bool {
    let asks = live.input_response.as_ref().is_some_and(|asked| !asked.is_call_confirmation());
    asks && starter.relay.is_some() && by.relay.is_some() && starter.id == by.id
}

/// Returns an error unless a user may decide at a gate: never an agent, not the user who started the run unless the gate
/// allows it, and only the approvers that the gate and the levels that are reached name.
fn may_decide(rules: &GateRules, level: u32, starter: &Principal, by: &Principal) -> Result<(), Error> {
    if by.agent || by.relay.is_some() {
        return Err(Error::Denied("an agent cannot decide at a gate; ask a human".to_owned()));
    }
    if !rules.admits(level, &by.id, &by.groups) {
        let approvers: Vec<&str> = rules.approvers_at(level).collect();
        let later = rules.admits(u32::MAX, &by.id, &by.groups);
        let later = if later { " until the request is escalated further" } else { "" };
        return Err(Error::Denied(format!(
            "{} is not among the approvers{later}: {}",
            by.id,
            approvers.join(", ")
        )));
    }
    // In `single` mode there is no other approver, so the owner may decide.
    if by.id == starter.id && !rules.allow_self && !by.sole_user {
        return Err(Error::Denied(format!("{} started the run and cannot decide at its gates", by.id)));
    }
    Ok(())
}
