//! A call: its arguments, its idempotency key, its end, its retries.

use std::time::Duration;

use serde_json::Value;

use super::decide::{Decided, Decision, Entry};
use super::event::Event;
use super::parts::{Report, Started};
use super::state::{Live, Phase};
use super::values::Evaluated;
use super::world::{Admission, Claim, Claimed};
use super::{Failure, FailureKind, Payload};
use crate::limits;
use crate::plan::{Call, Kind, RetryPolicy};

impl Decision<'_> {
    pub(super) fn begin_call(&mut self, at: &Entry, call: &Call) -> Decided {
        let tool = call.full_name();
        if !self.is_admitted(at, call, &tool) {
            return Ok(());
        }
        let (key, args) = match self.arguments(at, call)? {
            Ok(ready) => ready,
            Err(error) => {
                self.world.release();
                return self.fail_entry(at, error);
            }
        };
        if let Some(output) = self.world.reuse(&at.step_ref.path, args.hash())? {
            self.world.release();
            self.call_started(at, tool, key, args, false);
            return self.complete(at.n(), output, Some("rerun"));
        }
        let held = self.run.live.get(&at.n()).is_some_and(|live| live.claim);
        let claimed = match &call.idempotency {
            Some(policy) if !held => {
                let claim = Claim {
                    step: &at.step_ref,
                    scope: policy.scope,
                    tool: &tool,
                    key: &key,
                    args: args.hash(),
                    ttl_secs: policy.ttl_secs,
                };
                self.world.claim(&claim)?
            }
            _ => {
                self.call_started(at, tool, key, args, held);
                return Ok(());
            }
        };
        if claimed != Claimed::Taken {
            self.world.release();
        }
        match claimed {
            Claimed::Taken => {
                self.call_started(at, tool, key, args, true);
                Ok(())
            }
            Claimed::Hit(output) => {
                self.call_started(at, tool, key, args, false);
                self.complete(at.n(), output, Some("idempotency"))
            }
            Claimed::Busy(key) => {
                let place = self.place(at.scope, at.step);
                self.emit(Event::KeyAwaited { step: at.step_ref.clone(), place, key });
                Ok(())
            }
            Claimed::Conflict => {
                let message = format!("the idempotency key `{key}` belongs to a call with other arguments");
                let error = Failure::new(FailureKind::Validation, message).code("idempotency_conflict");
                self.fail_entry(at, error)
            }
        }
    }

    /// Takes a concurrency slot of the run and of the tool's server. Without one, the step waits.
    fn is_admitted(&mut self, at: &Entry, call: &Call, tool: &str) -> bool {
        let admission = if self.run.calls >= self.plan.settings.limits.concurrency {
            Admission::Full
        } else {
            self.world.admit(tool, &at.step_ref.path)
        };
        self.full |= admission == Admission::Full;
        match admission {
            Admission::Granted => return true,
            Admission::Full | Admission::ToolFull => self.hold(at),
            Admission::Unavailable(reason) => self.await_server(at, call, &reason),
        }
        false
    }

    fn call_started(&mut self, at: &Entry, tool: Box<str>, key: Box<str>, args: Payload, claimed: bool) {
        self.started(at, Started::Call { tool, args: args.hash(), key, claimed }, Some(args));
    }

    /// The idempotency key and the arguments of a call. What a human set or has seen is what is sent.
    pub(super) fn arguments(&mut self, at: &Entry, call: &Call) -> Evaluated<(Box<str>, Payload)> {
        let known = self.run.live.get(&at.n()).and_then(|live| live.key.clone());
        let key = match (&call.idempotency, known) {
            (None, _) => self.world.key(&at.step_ref.path),
            // A tool must recognise the call that it was sent before.
            (Some(_), Some(known)) => known,
            (Some(policy), None) => match self.eval_text(at.scope, &policy.key)? {
                Ok(Value::String(key)) => key.into(),
                Ok(other) => other.to_string().into(),
                Err(error) => return Ok(Err(error)),
            },
        };
        let edited = self.run.edits.get(&*at.step_ref.path).copied();
        let seen = self.run.live.get(&at.n()).is_some_and(|live| {
            live.approved || live.asked.is_some() || live.attempt > 1 || live.refusals > 0
        });
        let mut args = match edited {
            Some(seq) => self.noted(seq)?.value().clone(),
            None if seen => return Ok(Ok((key, self.input(at.n())?))),
            None => match self.eval(at.scope, &call.args)? {
                Ok(args) => args,
                Err(error) => return Ok(Err(error)),
            },
        };
        let Value::Object(map) = &mut args else {
            let message = format!("the arguments gave {}, not a map", super::foreach::type_name(&args));
            return Ok(Err(Failure::new(FailureKind::Validation, message)));
        };
        if let Some(name) = &call.idempotency_arg {
            map.insert(name.to_string(), Value::from(&*key));
        }
        let args = Payload::new(args);
        Ok(args.fits().map(|()| (key, args)))
    }

    pub(super) fn call_ended(&mut self, n: u32, attempt: u32, outcome: Result<Payload, Failure>) -> Decided {
        let phase = self.run.live.get(&n).filter(|live| live.attempt == attempt).map(|live| &live.phase);
        match (phase, outcome) {
            (Some(Phase::Verifying), outcome) => self.verified(n, outcome)?,
            (Some(Phase::Creating), outcome) => self.creation_ended(n, outcome)?,
            (Some(Phase::Calling | Phase::Stopping), Ok(output)) => self.complete(n, output, None)?,
            (Some(Phase::Stopping), Err(error)) if error.kind == FailureKind::Transport => {
                let message = "the step timed out before its call was sent";
                self.fail_attempt(n, Failure::timeout(message))?;
            }
            (Some(Phase::Stopping), Err(_)) => self.lost(n, call_timed_out())?,
            (Some(Phase::Calling), Err(error)) if error.kind == FailureKind::Transport => {
                self.refused_by_server(n, error)?;
            }
            (Some(Phase::Calling), Err(error))
                if matches!(error.kind, FailureKind::Lost | FailureKind::Timeout) =>
            {
                self.lost(n, error)?;
            }
            (Some(Phase::Calling), Err(Failure { request: Some(request), .. })) if request.fits() => {
                self.gate_within(n, *request);
            }
            (Some(Phase::Calling), Err(Failure { request: Some(_), .. })) => {
                let message =
                    format!("the input request of the tool has more than {} bytes", limits::NOTE_BYTES);
                self.lost(n, Failure::new(FailureKind::Lost, message))?;
            }
            (Some(Phase::Calling), Err(error)) if error.kind == FailureKind::NotFound => {
                self.tool_missing(n, error)?;
            }
            (Some(Phase::Calling), Err(error)) => self.fail_attempt(n, error)?,
            _ => {}
        }
        Ok(())
    }

    /// A call tells something before it ends.
    pub(super) fn reported(&mut self, n: u32, attempt: u32, report: Report) {
        let calling = |live: &&Live| live.attempt == attempt && live.phase == Phase::Calling;
        let Some(step) = self.run.live.get(&n).filter(calling).and_then(|_| self.run.step_ref(n)) else {
            return;
        };
        self.emit(match report {
            Report::Progress { progress, total, message } => {
                // What is no number cannot be written down.
                let (progress, total) = (finite(progress), total.map(finite));
                let message = message.map(|message| limits::cut(message.into(), limits::REPORT_BYTES).into());
                Event::StepProgressed { step, progress, total, message }
            }
            // A name that is too long to keep is asked for by nobody: the call counts as any other.
            Report::Task { id } if id.len() > limits::REPORT_BYTES => return,
            Report::Task { id } => Event::CallAccepted { step, task: id },
            Report::ToolChanged { what } => {
                Event::ToolChanged { step, what: limits::cut(what.into(), limits::REPORT_BYTES).into() }
            }
        });
    }

    /// A call that was given up answered. If nobody has said yet what happened, it is no longer unknown.
    pub(super) fn answered_late(&mut self, n: u32, attempt: u32, output: Payload) -> Decided {
        let live = self.run.live.get(&n).filter(|live| live.attempt == attempt);
        if live.is_some_and(|live| live.phase == Phase::Uncertain) {
            return self.complete(n, output, Some("late answer"));
        }
        self.late_result(n, attempt);
        Ok(())
    }

    fn late_result(&mut self, n: u32, attempt: u32) {
        if let Some(path) = self.run.cut.get(&(n, attempt)).cloned() {
            self.emit(Event::LateResult { step: super::StepRef { n, path, attempt } });
        }
    }

    /// An attempt failed and its outcome is known: the retry policy decides.
    pub(super) fn fail_attempt(&mut self, n: u32, error: Failure) -> Decided {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        match &step.retry {
            Some(retry) if live.counted_attempts() < retry.max_attempts && retry.covers(&error) => {
                self.schedule_retry(n, error, retry)
            }
            _ => self.fail(n, error),
        }
    }

    /// Sets the timer for the next attempt, or begins it if there is nothing to wait for.
    pub(super) fn schedule_retry(&mut self, n: u32, error: Failure, retry: &RetryPolicy) -> Decided {
        let Some((step, counted)) =
            self.run.step_ref(n).zip(self.run.live.get(&n).map(Live::counted_attempts))
        else {
            return Ok(());
        };
        let delay = retry.jittered_delay(counted + 1, self.world.random());
        // A restart of the engine is nobody's failure: the call is repeated at once.
        let delay = if error.is_restart() { Duration::ZERO } else { delay };
        let delay = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
        let due = self.now().saturating_add(delay);
        self.emit(Event::RetryScheduled { step, error, due });
        if delay == 0 { self.begin(n) } else { Ok(()) }
    }

    /// The time of a call is up: it is told to stop, and its end is waited for.
    pub(super) fn time_out_call(&mut self, n: u32) {
        if let Some(step) = self.run.step_ref(n) {
            let until = self.now().saturating_add(limits::CANCEL_GRACE_MS);
            self.emit(Event::CallTimedOut { step, until });
        }
    }

    /// A call did not stop when it was told to.
    pub(super) fn abandon(&mut self, n: u32) -> Decided {
        if let Some(step) = self.run.step_ref(n) {
            self.emit(Event::CallAbandoned { step });
        }
        self.lost(n, call_timed_out())
    }

    /// The step that held the key has ended: try again.
    pub(super) fn key_freed(&mut self, n: u32) -> Decided {
        match self.run.live.get(&n).map(|live| &live.phase) {
            Some(Phase::KeyWait) => self.begin(n),
            _ => Ok(()),
        }
    }

    /// The call of an execution.
    pub(super) fn call_of(&self, n: u32) -> Option<&'_ Call> {
        match &self.live(n)?.1.kind {
            Kind::Call(call) => Some(call),
            _ => None,
        }
    }
}

fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { 0.0 }
}

fn call_timed_out() -> Failure {
    Failure::timeout("the call did not end in time; what it did is unknown")
}

impl RetryPolicy {
    /// Whether a failure is worth another attempt. A refusal, a cancellation and a response above a limit are not,
    /// unless the policy names them.
    pub(super) fn covers(&self, error: &Failure) -> bool {
        match &self.retry_on {
            None => {
                !matches!(error.kind, FailureKind::Permission | FailureKind::Cancelled | FailureKind::Limit)
            }
            Some(kinds) => {
                let class = error.transient && kinds.contains(&FailureKind::Transient);
                class || kinds.contains(&error.kind)
            }
        }
    }
}

impl Call {
    /// The tool's name with its server.
    pub fn full_name(&self) -> Box<str> {
        self.name.clone()
    }
}
