//! Gates: `approve` steps, `needs_human`, policy rules and input requests of tools.

use serde_json::{Value, json};

use super::approval::{ApprovalKind, PolicyRule, request_hash};
use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::input::{Actor, Decided};
use super::parts::{InputRequest, Started, StepRef};
use super::phase::Phase;
use super::subject::Covered;
use super::values::Evaluated;
use super::{Failure, FailureKind, Millis, Payload};
use crate::expr::StepIx;
use crate::limits::RENEWED_APPROVALS;
use crate::plan::{Approve, Gate, GateRules, Kind, OnDeny};

/// The reason of a denial for which the approver gave none.
pub const DENIED: &str = "denied";

/// A request for an approval, before what it covers is computed.
struct Request {
    kind: ApprovalKind,
    prompt: Box<str>,
    tool: Option<Box<str>>,
    args: Option<Payload>,
    until: Option<Millis>,
    escalate: Option<Millis>,
    level: u32,
    remind: Option<Millis>,
    reminders: u32,
    notify: Vec<Box<str>>,
    form: Option<Value>,
    state: Option<Value>,
    rules: GateRules,
    policy: Option<PolicyRule>,
    renewed: bool,
}

impl Decision<'_> {
    pub(super) fn begin_approve(&mut self, attempt: &Attempt, approve: &Approve) -> DecideResult {
        match self.gate_request(attempt, ApprovalKind::Approve, &approve.gate, None)? {
            Ok(request) => {
                self.emit_started(attempt, Started::Approve {}, None);
                self.open_gate(attempt, request)
            }
            Err(error) => self.fail_before_start(attempt, error),
        }
    }

    /// Requests approval before a step with `needs_human` runs. The approved arguments are the ones that are sent.
    pub(super) fn request_approval(&mut self, attempt: &Attempt, gate: &Gate) -> DecideResult {
        match self.gate_request(attempt, ApprovalKind::NeedsHuman, gate, None)? {
            Ok(request) => {
                self.hold(attempt);
                self.open_gate(attempt, request)
            }
            Err(error) => self.fail_before_start(attempt, error),
        }
    }

    /// Requests the approval that a rule of the policy requires for a call.
    pub(super) fn request_policy_approval(
        &mut self,
        attempt: &Attempt,
        gate: &Gate,
        rule: PolicyRule,
    ) -> DecideResult {
        match self.gate_request(attempt, ApprovalKind::Policy, gate, Some(rule))? {
            Ok(request) => {
                self.hold(attempt);
                self.open_gate(attempt, request)
            }
            Err(error) => self.fail_before_start(attempt, error),
        }
    }

    /// Evaluates the prompt of a gate, and the arguments of the call that it guards.
    fn gate_request(
        &mut self,
        attempt: &Attempt,
        kind: ApprovalKind,
        gate: &Gate,
        policy: Option<PolicyRule>,
    ) -> Evaluated<Request> {
        let (tool, args) = match &self.step(attempt.step).kind {
            Kind::Call(call) => match self.arguments(attempt, call)? {
                Ok((_, args)) => (Some(call.full_name()), Some(args)),
                Err(error) => return Ok(Err(error)),
            },
            _ => (None, None),
        };
        let prompt = match &gate.prompt {
            None => default_prompt(&attempt.step_ref.path, kind, tool.as_deref()),
            Some(prompt) => match self.eval_text(attempt.scope, prompt)? {
                Ok(Value::String(text)) => text,
                Ok(other) => other.to_string(),
                Err(error) => return Ok(Err(error)),
            },
        };
        let first = gate.rules.escalate.first();
        Ok(Ok(Request {
            kind,
            prompt: prompt.into(),
            tool,
            args,
            until: gate.timeout_ms.map(|timeout| self.after(timeout)),
            escalate: first.map(|level| self.after(level.after_ms)),
            level: 0,
            remind: gate.rules.remind_ms.map(|interval| self.after(interval)),
            reminders: 0,
            notify: gate.notify.to_vec(),
            form: gate.form.as_ref().map(|(form, _)| form.clone()),
            state: None,
            rules: gate.rules.clone(),
            policy,
            renewed: false,
        }))
    }

    fn open_gate(&mut self, attempt: &Attempt, request: Request) -> DecideResult {
        let event = self.requested(attempt, &request)?;
        self.record(event, request.args);
        Ok(())
    }

    /// The event of a request, with what it covers now.
    fn requested(&mut self, attempt: &Attempt, request: &Request) -> Result<Event, super::WorldError> {
        let Request { kind, until, escalate, level, remind, reminders, renewed, .. } = *request;
        let steps = self.covered_steps(attempt.step);
        let covered = match &request.args {
            Some(args) => Covered::Own(attempt.step, args),
            None => Covered::Steps(&steps),
        };
        let policy = request.policy.clone();
        let subject = self.subject(kind, attempt.scope, &covered, &request.rules, policy)?;
        let args = request.args.as_ref().map(Payload::hash);
        let (form, state) = (request.form.clone(), request.state.clone());
        let hash =
            request_hash(&attempt.step_ref, &request.prompt, args, until, form.as_ref(), state.as_ref());
        Ok(Event::ApprovalRequested {
            step: attempt.step_ref.clone(),
            digest: self.digest(hash, &subject),
            prompt: request.prompt.clone(),
            tool: request.tool.clone(),
            args,
            until,
            escalate,
            level,
            remind,
            reminders,
            notify: request.notify.clone(),
            form,
            state,
            subject: Some(Box::new(subject)),
            renewed,
        })
    }

    /// The steps whose calls the approval of a step covers, if it has no call itself.
    fn covered_steps(&self, step: StepIx) -> Vec<StepIx> {
        match &self.step(step).kind {
            Kind::Approve(approve) => approve.guards.to_vec(),
            _ => self.plan.within(step),
        }
    }

    /// Opens a gate for the input request of a tool.
    pub(super) fn request_input(&mut self, n: u32, request: InputRequest) -> DecideResult {
        let Some(attempt) = self.current_attempt(n) else { return Ok(()) };
        let args = self.input(n)?;
        let tool = match &self.step(attempt.step).kind {
            Kind::Call(call) if request.is_call_confirmation() => Some(call.full_name()),
            _ => None,
        };
        let request = Request {
            kind: ApprovalKind::Input,
            prompt: request.message,
            tool,
            args: Some(args),
            until: None,
            escalate: None,
            level: 0,
            remind: None,
            reminders: 0,
            notify: Vec::new(),
            form: Some(request.form),
            state: Some(request.state),
            rules: GateRules::default(),
            policy: None,
            renewed: false,
        };
        let mut event = self.requested(&attempt, &request)?;
        // The arguments were stored when the call started.
        if let Event::ApprovalRequested { args, .. } = &mut event {
            *args = None;
        }
        self.emit(event);
        Ok(())
    }

    fn current_attempt(&self, n: u32) -> Option<Attempt> {
        let live = self.run.live.get(&n)?;
        Some(Attempt { step_ref: live.step_ref(n), scope: live.scope, step: live.step })
    }

    pub(super) fn after(&self, millis: u64) -> Millis {
        self.now().saturating_add(i64::try_from(millis).unwrap_or(i64::MAX))
    }

    /// Applies a decision. Only the first one counts, and only if it is about what would run now: a request that became
    /// stale is replaced instead.
    pub(super) fn decided(&mut self, n: u32, decision: Decided) -> DecideResult {
        let Some(Phase::Gate { until, digest, open, .. }) = self.run.live.get(&n).map(|live| &live.phase)
        else {
            return Ok(());
        };
        let too_late = until.is_some_and(|until| until <= self.now()) && open.rules.closes_on_timeout();
        // Without a digest, it is unknown which request a decision is about.
        let is_other = decision.digest.map_or(open.renewed, |seen| seen != *digest);
        if too_late || is_other || self.renew_stale_gate(n)? {
            return Ok(());
        }
        if let Some(args) = decision.edited.clone() {
            self.edit_approved_arguments(n, args, &decision.by)?;
        }
        if decision.approved { self.approved(n, decision) } else { self.gate_denied(n, decision) }
    }

    /// Changes the arguments of a call that is about to be approved, and requests the approval of the call as it is then.
    fn edit_approved_arguments(&mut self, n: u32, args: Value, by: &Actor) -> DecideResult {
        let Some(path) = self.run.live.get(&n).map(|live| (*live.path).into()) else { return Ok(()) };
        let Actor { user, provenance } = by.clone();
        self.emit(Event::ArgumentsEdited { path, args, by: user, provenance });
        self.renew_stale_gate(n).map(drop)
    }

    fn approved(&mut self, n: u32, decision: Decided) -> DecideResult {
        let Some((live, spec)) = self.live(n) else { return Ok(()) };
        let Phase::Gate { digest, open, .. } = &live.phase else { return Ok(()) };
        let (step, digest, quorum) = (live.step_ref(n), *digest, open.rules.quorum);
        let Decided { by: Actor { user: by, provenance }, reason, answer, .. } = decision;
        if live.approvers.iter().any(|approver| approver.user == by) {
            return Ok(());
        }
        let signed = u32::try_from(live.approvers.len()).unwrap_or(u32::MAX).saturating_add(1);
        if signed < quorum {
            let remaining = quorum - signed;
            self.emit(Event::ApprovalSigned { step, by, reason, digest, provenance, remaining });
            return Ok(());
        }
        let completes = matches!(spec.kind, Kind::Approve(_));
        let output = decision_output(true, Some(&by), reason.as_deref(), answer.as_ref());
        self.emit(Event::ApprovalGranted { step, by, reason, answer, digest: Some(digest), provenance });
        if completes { self.complete(n, output, None) } else { self.begin(n) }
    }

    /// Replaces the request of an open gate if it covers something else now. Returns whether it did.
    pub(super) fn renew_stale_gate(&mut self, n: u32) -> Result<bool, super::WorldError> {
        let Some((live, step)) = self.live(n) else { return Ok(false) };
        let Phase::Gate { until, level, open, .. } = live.phase.clone() else { return Ok(false) };
        let (Some(attempt), Some(shown)) = (self.current_attempt(n), open.subject) else { return Ok(false) };
        let policy_gate;
        let gate = match (open.kind, &step.kind, &step.needs_human) {
            (ApprovalKind::Approve, Kind::Approve(approve), _) => &approve.gate,
            (ApprovalKind::NeedsHuman, _, Some(gate)) => &**gate,
            (ApprovalKind::Policy, ..) => {
                let notify = open.notify.as_slice().into();
                policy_gate = Gate { rules: open.rules.clone(), notify, ..Gate::default() };
                &policy_gate
            }
            // A tool's request is about a call that was made.
            _ => return Ok(false),
        };
        let request = match self.gate_request(&attempt, open.kind, gate, shown.policy.clone())? {
            Ok(request) => {
                let (escalate, remind, reminders) = (open.escalate, open.remind, open.reminders);
                // A request that stayed open after its timeout does not expire again.
                let until = until.filter(|until| *until > self.now() || open.rules.closes_on_timeout());
                Request { until, level, escalate, remind, reminders, renewed: true, ..request }
            }
            Err(error) => return self.fail(n, error).map(|()| true),
        };
        match self.requested(&attempt, &request)? {
            Event::ApprovalRequested { subject: Some(now), .. } if shown.holds(&now) => Ok(false),
            event => {
                self.record(event, request.args);
                Ok(true)
            }
        }
    }

    /// Replaces the requests that an edit made stale.
    pub(super) fn renew_stale_gates(&mut self) -> DecideResult {
        let is_gate = |phase: &Phase| matches!(phase, Phase::Gate { .. });
        let open: Vec<u32> =
            self.run.live.iter().filter(|(_, live)| is_gate(&live.phase)).map(|(n, _)| *n).collect();
        for n in open.into_iter().take(RENEWED_APPROVALS) {
            self.renew_stale_gate(n)?;
        }
        Ok(())
    }

    /// Requests the approval of an `approve` step whose `needs_human` gate was passed.
    pub(super) fn pass_gate(&mut self, n: u32) -> DecideResult {
        let (Some(attempt), Some((_, step))) = (self.current_attempt(n), self.live(n)) else { return Ok(()) };
        let Kind::Approve(approve) = &step.kind else { return Ok(()) };
        self.begin_approve(&attempt, approve)
    }

    fn gate_denied(&mut self, n: u32, decision: Decided) -> DecideResult {
        let reason = decision.reason.unwrap_or_else(|| DENIED.into());
        self.denied(n, Some(decision.by), &reason)
    }

    pub(super) fn denied(&mut self, n: u32, by: Option<Actor>, reason: &str) -> DecideResult {
        let Some((live, spec)) = self.live(n) else { return Ok(()) };
        let Phase::Gate { digest, open, .. } = &live.phase else { return Ok(()) };
        let (digest, kind) = (Some(*digest), open.kind);
        let confirms_call = live.input_response.as_ref().map(|response| response.is_call_confirmation());
        let step: StepRef = live.step_ref(n);
        let (by, provenance) = by.map_or((None, None), |by| (Some(by.user), by.provenance));
        let reason: Box<str> = reason.into();
        let goes_elsewhere = by.is_none() && open.rules.on_timeout_goto.is_some();
        let on_deny = match (&spec.kind, kind) {
            (Kind::Approve(approve), _) => approve.after_denial(goes_elsewhere),
            (_, ApprovalKind::Policy) => OnDeny::Fail,
            _ => OnDeny::Cancel,
        };
        self.emit(Event::ApprovalDenied { step, by: by.clone(), reason: reason.clone(), digest, provenance });
        match confirms_call {
            // The call is made again without an answer: the tool decides how to continue.
            Some(false) => return self.begin(n),
            Some(true) => {
                let error = Failure::new(FailureKind::Permission, format!("denied: {reason}"));
                return self.fail(n, error.code(DENIED));
            }
            None => {}
        }
        match on_deny {
            OnDeny::Cancel => {
                self.cancel_run(by, DENIED.into());
                Ok(())
            }
            OnDeny::Fail => self.fail(n, denial(by.as_deref(), &reason)),
            OnDeny::Continue | OnDeny::Goto(_) => {
                self.complete(n, decision_output(false, by.as_deref(), Some(&reason), None), None)
            }
        }
    }

    /// Whether a human approved the step, and its tool is still the one that was approved.
    pub(super) fn is_approved(&self, n: u32) -> bool {
        let Some((live, step)) = self.live(n) else { return false };
        let is_same_tool = || match (&step.kind, live.approved_tool) {
            (Kind::Call(call), Some(approved)) => {
                self.world.pin(&call.name).is_none_or(|current| current == approved)
            }
            _ => true,
        };
        live.approved && is_same_tool()
    }
}

fn default_prompt(path: &str, kind: ApprovalKind, tool: Option<&str>) -> String {
    match (kind, tool) {
        (ApprovalKind::Approve, _) => format!("Approve `{path}`?"),
        (_, Some(tool)) => format!("Run `{path}` ({tool})?"),
        (_, None) => format!("Run `{path}`?"),
    }
}

/// The failure of a step whose approval was denied or expired.
fn denial(by: Option<&str>, reason: &str) -> Failure {
    let (kind, message) = match by {
        Some(by) if reason == DENIED => (FailureKind::Permission, format!("denied by {by}")),
        Some(by) => (FailureKind::Permission, format!("denied by {by}: {reason}")),
        None => (FailureKind::Timeout, "the approval request expired".to_owned()),
    };
    Failure::new(kind, message).code(DENIED)
}

/// The output of an `approve` step.
fn decision_output(approved: bool, by: Option<&str>, reason: Option<&str>, form: Option<&Value>) -> Payload {
    let mut output = json!({ "approved": approved, "by": by, "reason": reason });
    if let (Some(form), Value::Object(output)) = (form, &mut output) {
        output.insert("form".to_owned(), form.clone());
    }
    Payload::new(output)
}
