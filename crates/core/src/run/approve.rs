//! Gates: `approve` steps, `needs_human` and input requests of tools.

use serde_json::json;

use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::parts::{InputRequest, Started, StepRef};
use super::phase::Phase;
use super::{Failure, FailureKind, Millis, Payload};
use crate::plan::{Approve, Call, Hash, Kind, OnDeny, Step};
use crate::steps::OnTimeout;

/// The reason of a denial for which the approver gave none.
const DENIED: &str = "denied";

impl Decision<'_> {
    pub(super) fn begin_approve(&mut self, attempt: &Attempt, approve: &Approve) -> DecideResult {
        let prompt = match &approve.prompt {
            None => format!("Approve `{}`?", attempt.step_ref.path),
            Some(prompt) => match self.eval_text(attempt.scope, prompt)? {
                Ok(serde_json::Value::String(text)) => text,
                Ok(other) => other.to_string(),
                Err(error) => return self.fail_before_start(attempt, error),
            },
        };
        let digest = digest(&attempt.step_ref, None, &prompt, None);
        self.emit_started(attempt, Started::Approve {}, None);
        let until = self.deadline(attempt.step);
        let escalate = approve.escalate.first().map(|(after, _)| self.after(*after));
        self.emit(Event::ApprovalRequested {
            step: attempt.step_ref.clone(),
            digest,
            prompt: prompt.into(),
            tool: None,
            args: None,
            until,
            escalate,
            notify: approve.notify.to_vec(),
            form: None,
            state: None,
        });
        Ok(())
    }

    /// Requests approval before a step with `needs_human` runs. The approved arguments are the ones that are sent.
    pub(super) fn request_approval(&mut self, attempt: &Attempt) -> DecideResult {
        let step = self.step(attempt.step);
        let (tool, args) = match &step.kind {
            Kind::Call(call) => match self.arguments(attempt, call)? {
                Ok((_, args)) => (Some(call.full_name()), Some(args)),
                Err(error) => return self.fail_before_start(attempt, error),
            },
            _ => (None, None),
        };
        let prompt: Box<str> = match &tool {
            Some(tool) => format!("Run `{}` ({tool})?", attempt.step_ref.path).into(),
            None => format!("Run `{}`?", attempt.step_ref.path).into(),
        };
        let digest = digest(&attempt.step_ref, tool.as_deref(), &prompt, args.as_ref());
        self.hold(attempt);
        let event = Event::ApprovalRequested {
            step: attempt.step_ref.clone(),
            digest,
            prompt,
            tool,
            args: args.as_ref().map(Payload::hash),
            until: None,
            escalate: None,
            notify: Vec::new(),
            form: None,
            state: None,
        };
        self.record(event, args);
        Ok(())
    }

    /// Opens a gate for the input request of a tool.
    pub(super) fn request_input(&mut self, n: u32, request: InputRequest) {
        let Some(step) = self.run.step_ref(n) else { return };
        let tool = self.call_of(n).map(Call::full_name);
        let bound = Payload::new(json!([request.form, request.state]));
        let digest = digest(&step, tool.as_deref(), &request.message, Some(&bound));
        self.emit(Event::ApprovalRequested {
            step,
            digest,
            prompt: request.message,
            tool: None,
            args: None,
            until: None,
            escalate: None,
            notify: Vec::new(),
            form: Some(request.form),
            state: Some(request.state),
        });
    }

    fn deadline(&self, step: crate::expr::StepIx) -> Option<Millis> {
        self.step(step).timeout_ms.map(|timeout| self.after(timeout))
    }

    fn after(&self, millis: u64) -> Millis {
        self.now().saturating_add(i64::try_from(millis).unwrap_or(i64::MAX))
    }

    /// Applies a decision. Only the first one counts, and only if its digest matches what would run now.
    pub(super) fn decided(
        &mut self,
        n: u32,
        approved: bool,
        by: Box<str>,
        reason: Option<&str>,
        seen: Option<Hash>,
        input: Option<serde_json::Value>,
    ) -> DecideResult {
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        let Some(Phase::Gate { until, digest, .. }) = self.run.live.get(&n).map(|live| &live.phase) else {
            return Ok(());
        };
        let too_late = until.is_some_and(|until| until <= self.now()) && self.denies_on_timeout(n);
        if too_late || seen.is_some_and(|seen| seen != *digest) {
            return Ok(());
        }
        if approved {
            self.emit(Event::ApprovalGranted {
                step,
                by: by.clone(),
                reason: reason.map(Into::into),
                answer: input,
            });
            if matches!(self.live(n).map(|(_, step)| &step.kind), Some(Kind::Approve(_))) {
                return self.complete(n, decision_output(true, Some(&by), reason), None);
            }
            return self.begin(n);
        }
        self.denied(n, &step, Some(by), reason.unwrap_or(DENIED))
    }

    /// Requests the approval of an `approve` step whose `needs_human` gate was passed.
    pub(super) fn pass_gate(&mut self, n: u32) -> DecideResult {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        let Kind::Approve(approve) = &step.kind else { return Ok(()) };
        let step_ref = StepRef { n, path: live.path.clone(), attempt: live.attempt };
        let entry = Attempt { step_ref, scope: live.scope, step: live.step };
        self.begin_approve(&entry, approve)
    }

    pub(super) fn gate_timed_out(&mut self, n: u32) -> DecideResult {
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        if self.denies_on_timeout(n) {
            return self.denied(n, &step, None, "timeout");
        }
        self.escalate(n);
        Ok(())
    }

    fn denies_on_timeout(&self, n: u32) -> bool {
        match self.live(n).map(|(_, step)| &step.kind) {
            Some(Kind::Approve(approve)) => approve.on_timeout == OnTimeout::Deny,
            _ => true,
        }
    }

    /// Notifies the next escalation level and sets the timer of the one after.
    pub(super) fn escalate(&mut self, n: u32) {
        let Some((live, Step { kind: Kind::Approve(approve), .. })) = self.live(n) else { return };
        let Phase::Gate { level, .. } = live.phase else { return };
        let at = level as usize;
        let Some((after, notify)) = approve.escalate.get(at).or(approve.escalate.last()) else { return };
        let next = approve.escalate.get(at + 1);
        let escalate = next.map(|(later, _)| self.after(later.saturating_sub(*after)));
        let notify = notify.to_vec();
        if let Some(step) = self.run.step_ref(n) {
            self.emit(Event::ApprovalEscalated { step, level, notify, escalate });
        }
    }

    fn denied(&mut self, n: u32, step: &StepRef, by: Option<Box<str>>, reason: &str) -> DecideResult {
        let Some((live, spec)) = self.live(n) else { return Ok(()) };
        if let Some(response) = &live.input_response {
            let confirms_call = response.is_call_confirmation();
            self.emit(Event::ApprovalDenied { step: step.clone(), by, reason: reason.into() });
            if !confirms_call {
                // The call is made again without an answer: the tool decides how to continue.
                return self.begin(n);
            }
            let error = Failure::new(FailureKind::Permission, format!("denied: {reason}"));
            return self.fail(n, error.code("denied"));
        }
        let on_deny = match &spec.kind {
            Kind::Approve(approve) => approve.on_deny,
            _ => OnDeny::Cancel,
        };
        self.emit(Event::ApprovalDenied { step: step.clone(), by: by.clone(), reason: reason.into() });
        match on_deny {
            OnDeny::Cancel => {
                self.cancel_run(by, DENIED.into());
                Ok(())
            }
            OnDeny::Fail => {
                let (kind, message) = match by {
                    Some(by) if reason == DENIED => (FailureKind::Permission, format!("denied by {by}")),
                    Some(by) => (FailureKind::Permission, format!("denied by {by}: {reason}")),
                    None => (FailureKind::Timeout, "the approval request expired".to_owned()),
                };
                self.fail(n, Failure::new(kind, message).code("denied"))
            }
            OnDeny::Continue | OnDeny::Goto(_) => {
                self.complete(n, decision_output(false, by.as_deref(), Some(reason)), None)
            }
        }
    }
}

/// The output of an `approve` step.
fn decision_output(approved: bool, by: Option<&str>, reason: Option<&str>) -> Payload {
    Payload::new(json!({ "approved": approved, "by": by, "reason": reason }))
}

/// The hash that binds a decision to the request: the prompt, and the tool and arguments that will run.
fn digest(step: &StepRef, tool: Option<&str>, prompt: &str, args: Option<&Payload>) -> Hash {
    let args = args.map(|args| args.hash().to_string());
    let bound = json!({
        "path": &*step.path, "n": step.n, "attempt": step.attempt,
        "tool": tool, "prompt": prompt, "args": args,
    });
    Hash::of(bound.to_string().as_bytes())
}
