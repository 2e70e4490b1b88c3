//! Gates: `approve` steps, and `needs_human` before a step runs.

use serde_json::json;

use super::decide::{Decided, Decision, Entry, Task};
use super::event::Event;
use super::parts::{InputRequest, Started, StepRef};
use super::state::Phase;
use super::{Failure, FailureKind, Millis, Payload};
use crate::plan::{Approve, Call, Hash, Kind, OnDeny, Step};
use crate::steps::OnTimeout;

/// The reason of a denial that gives none.
const DENIED: &str = "denied";

impl Decision<'_> {
    pub(super) fn begin_approve(&mut self, at: &Entry, approve: &Approve) -> Decided {
        let prompt = match &approve.prompt {
            None => format!("Approve `{}`?", at.step_ref.path),
            Some(prompt) => match self.eval_text(at.scope, prompt)? {
                Ok(serde_json::Value::String(text)) => text,
                Ok(other) => other.to_string(),
                Err(error) => return self.fail_entry(at, error),
            },
        };
        let digest = digest(&at.step_ref, None, &prompt, None);
        self.started(at, Started::Approve {}, None);
        let until = self.deadline(at.step);
        let escalate = approve.escalate.first().map(|(after, _)| self.after(*after));
        self.emit(Event::ApprovalRequested {
            step: at.step_ref.clone(),
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

    /// A step with `needs_human` shows a human what it is about to do. That is what runs after a yes.
    pub(super) fn gate_before(&mut self, at: &Entry) -> Decided {
        let step = self.step(at.step);
        let (tool, args) = match &step.kind {
            Kind::Call(call) => match self.arguments(at, call)? {
                Ok((_, args)) => (Some(call.full_name()), Some(args)),
                Err(error) => return self.fail_entry(at, error),
            },
            _ => (None, None),
        };
        let prompt: Box<str> = match &tool {
            Some(tool) => format!("Run `{}` ({tool})?", at.step_ref.path).into(),
            None => format!("Run `{}`?", at.step_ref.path).into(),
        };
        let digest = digest(&at.step_ref, tool.as_deref(), &prompt, args.as_ref());
        self.hold(at);
        let event = Event::ApprovalRequested {
            step: at.step_ref.clone(),
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

    /// A tool asks a human before it goes on: a gate in the middle of a call.
    pub(super) fn gate_within(&mut self, n: u32, request: InputRequest) {
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

    /// Somebody decided. The first decision wins; one on something that has changed since does not count.
    pub(super) fn decided(
        &mut self,
        n: u32,
        approved: bool,
        by: Box<str>,
        reason: Option<&str>,
        seen: Option<Hash>,
        answer_given: Option<serde_json::Value>,
    ) -> Decided {
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
                answer: answer_given,
            });
            if matches!(self.live(n).map(|(_, step)| &step.kind), Some(Kind::Approve(_))) {
                return self.complete(n, answer(true, Some(&by), reason), None);
            }
            return self.begin(n);
        }
        self.denied(n, &step, Some(by), reason.unwrap_or(DENIED))
    }

    /// An `approve` step with `needs_human` that was let through asks its own question now.
    pub(super) fn pass_gate(&mut self, n: u32) -> Decided {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        let Kind::Approve(approve) = &step.kind else { return Ok(()) };
        let step_ref = StepRef { n, path: live.path.clone(), attempt: live.attempt };
        let entry = Entry { step_ref, scope: live.scope, step: live.step };
        self.begin_approve(&entry, approve)
    }

    pub(super) fn gate_timed_out(&mut self, n: u32) -> Decided {
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

    /// Tells the next ones that nobody has answered.
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

    fn denied(&mut self, n: u32, step: &StepRef, by: Option<Box<str>>, reason: &str) -> Decided {
        let Some((live, spec)) = self.live(n) else { return Ok(()) };
        let scope = live.scope;
        if let Some(asked) = &live.asked {
            let whether = asked.is_whether();
            // The tool is told that it gets no answer, and goes on as it sees fit.
            self.emit(Event::ApprovalDenied { step: step.clone(), by, reason: reason.into() });
            if !whether {
                return self.begin(n);
            }
            let error = Failure::new(FailureKind::Permission, format!("a human said no: {reason}"));
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
                    None => (FailureKind::Timeout, "nobody approved in time".to_owned()),
                };
                self.fail(n, Failure::new(kind, message).code("denied"))
            }
            OnDeny::Continue => self.complete(n, answer(false, by.as_deref(), Some(reason)), None),
            OnDeny::Goto(to) => {
                let output = answer(false, by.as_deref(), Some(reason));
                let event = Event::StepCompleted { step: step.clone(), output: output.hash(), from: None };
                self.record(event, Some(output));
                self.later(Task::GoTo { scope, to });
                self.later(Task::Settle { scope });
                Ok(())
            }
        }
    }
}

fn answer(approved: bool, by: Option<&str>, reason: Option<&str>) -> Payload {
    Payload::new(json!({ "approved": approved, "by": by, "reason": reason }))
}

/// What a decision is bound to: the question, and what will run.
fn digest(step: &StepRef, tool: Option<&str>, prompt: &str, args: Option<&Payload>) -> Hash {
    let args = args.map(|args| args.hash().to_string());
    let bound = json!({
        "path": &*step.path, "n": step.n, "attempt": step.attempt,
        "tool": tool, "prompt": prompt, "args": args,
    });
    Hash::of(bound.to_string().as_bytes())
}
