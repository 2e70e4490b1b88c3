//! `tool` steps: admission, arguments, idempotency keys, results and retries of calls.

use std::time::Duration;

use serde_json::Value;

use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::parts::{Report, Started};
use super::phase::Phase;
use super::policy::{Permit, PolicyUse};
use super::state::Live;
use super::values::Evaluated;
use super::world::{Admission, Claim, Claimed};
use super::{Failure, FailureKind, Payload};
use crate::limits;
use crate::plan::{Call, Kind, RetryPolicy};

/// What the start of a call records besides the call. Without a call, because its result is known, nothing.
#[derive(Default)]
struct Start {
    /// Whether the step holds its idempotency key.
    claimed: bool,
    /// How the policy allowed the call.
    policy: Option<Box<PolicyUse>>,
}

impl Decision<'_> {
    pub(super) fn begin_call(&mut self, attempt: &Attempt, call: &Call) -> DecideResult {
        let tool = call.full_name();
        if !self.admit(attempt, call, &tool) {
            return Ok(());
        }
        let (key, args) = match self.arguments(attempt, call)? {
            Ok(ready) => ready,
            Err(error) => {
                self.world.release();
                return self.fail_before_start(attempt, error);
            }
        };
        if let Some(output) = self.world.reuse(&attempt.step_ref.path, args.hash())?
            && self.rejection(attempt.scope, call, &output)?.is_none()
        {
            self.world.release();
            self.call_started(attempt, tool, key, args, Start::default());
            return self.complete(attempt.n(), output, Some("rerun"));
        }
        let policy = match self.permit(attempt, &tool, &args)? {
            Permit::Start(policy) => policy,
            Permit::Stopped => return Ok(()),
        };
        let held = self.run.live.get(&attempt.n()).is_some_and(|live| live.claim);
        let claimed = match &call.idempotency {
            Some(policy) if !held => {
                let claim = Claim {
                    step: &attempt.step_ref,
                    scope: policy.scope,
                    tool: &tool,
                    key: &key,
                    args: args.hash(),
                    ttl_secs: policy.ttl_secs,
                };
                self.world.claim(&claim)?
            }
            _ => {
                self.call_started(attempt, tool, key, args, Start { claimed: held, policy });
                return Ok(());
            }
        };
        if claimed != Claimed::Taken {
            self.world.release();
        }
        match claimed {
            Claimed::Taken => {
                self.call_started(attempt, tool, key, args, Start { claimed: true, policy });
                Ok(())
            }
            Claimed::Hit(output) => {
                self.call_started(attempt, tool, key, args, Start::default());
                // Another step can have stored a result that this one rejects. An attempt would get the same.
                match self.rejection(attempt.scope, call, &output)? {
                    Some(error) => self.fail(attempt.n(), error),
                    None => self.complete(attempt.n(), output, Some("idempotency")),
                }
            }
            Claimed::Busy(key) => {
                let place = self.step_info(attempt.scope, attempt.step);
                self.emit(Event::KeyAwaited { step: attempt.step_ref.clone(), place, key });
                Ok(())
            }
            Claimed::Conflict => {
                let message = format!("idempotency key `{key}` was already used with different arguments");
                let error = Failure::new(FailureKind::Validation, message).code("idempotency_conflict");
                self.fail_before_start(attempt, error)
            }
            Claimed::Denied(reason) => {
                self.fail_before_start(attempt, Failure::new(FailureKind::Permission, reason))
            }
        }
    }

    /// Acquires a concurrency slot for a call. Without one, the step waits.
    fn admit(&mut self, attempt: &Attempt, call: &Call, tool: &str) -> bool {
        let admission = if self.run.calls >= self.plan.settings.limits.concurrency {
            Admission::Full
        } else {
            self.world.admit(tool, &attempt.step_ref.path)
        };
        self.full |= admission == Admission::Full;
        match admission {
            Admission::Granted => return true,
            Admission::Full | Admission::ToolFull => self.hold(attempt),
            Admission::Unavailable(reason) => self.wait_for_server(attempt, call, &reason),
        }
        false
    }

    fn call_started(
        &mut self,
        attempt: &Attempt,
        tool: Box<str>,
        key: Box<str>,
        args: Payload,
        Start { claimed, policy }: Start,
    ) {
        self.emit_started(
            attempt,
            Started::Call { tool, args: args.hash(), key, claimed, policy },
            Some(args),
        );
    }

    /// Returns the idempotency key and the arguments of a call. Arguments that were edited, approved or sent
    /// before are not evaluated again.
    pub(super) fn arguments(&mut self, attempt: &Attempt, call: &Call) -> Evaluated<(Box<str>, Payload)> {
        let existing = self.run.live.get(&attempt.n()).and_then(|live| live.key.clone());
        let key = match (&call.idempotency, existing) {
            (None, _) => self.world.key(&attempt.step_ref.path),
            // Later attempts send the same key, so that the tool can deduplicate them.
            (Some(_), Some(existing)) => existing,
            (Some(policy), None) => match self.eval_text(attempt.scope, &policy.key)? {
                Ok(Value::String(key)) => key.into(),
                Ok(other) => other.to_string().into(),
                Err(error) => return Ok(Err(error)),
            },
        };
        let edited = self.run.edits.get(&*attempt.step_ref.path).copied();
        let fixed = self.run.live.get(&attempt.n()).is_some_and(|live| {
            live.approved || live.input_response.is_some() || live.attempt > 1 || live.refusals > 0
        });
        let mut args = match edited {
            Some(seq) => self.event_value(seq)?.value().clone(),
            None if fixed => return Ok(Ok((key, self.input(attempt.n())?))),
            None => match self.eval(attempt.scope, &call.args)? {
                Ok(args) => args,
                Err(error) => return Ok(Err(error)),
            },
        };
        let Value::Object(map) = &mut args else {
            let message = format!("the arguments are {}, not a map", super::foreach::type_name(&args));
            return Ok(Err(Failure::new(FailureKind::Validation, message)));
        };
        if let Some(name) = &call.idempotency_arg {
            map.insert(name.to_string(), Value::from(&*key));
        }
        let args = Payload::new(args);
        Ok(args.fits().map(|()| (key, args)))
    }

    pub(super) fn call_ended(
        &mut self,
        n: u32,
        attempt: u32,
        outcome: Result<Payload, Failure>,
    ) -> DecideResult {
        let phase = self.run.live.get(&n).filter(|live| live.attempt == attempt).map(|live| &live.phase);
        match (phase, outcome) {
            (Some(Phase::Verifying), outcome) => self.probe_ended(n, outcome)?,
            (Some(Phase::Creating), outcome) => self.creation_ended(n, outcome)?,
            (Some(Phase::Calling | Phase::Stopping), Ok(output)) => self.call_returned(n, output, None)?,
            (Some(Phase::Stopping), Err(error)) if error.kind == FailureKind::Transport => {
                let message = "the step timed out before its call was sent";
                self.fail_attempt(n, Failure::timeout(message))?;
            }
            (Some(Phase::Stopping), Err(_)) => self.outcome_unknown(n, call_timed_out())?,
            (Some(Phase::Calling), Err(error)) if error.kind == FailureKind::Transport => {
                self.retry_unsent_call(n, error)?;
            }
            (Some(Phase::Calling), Err(error))
                if matches!(error.kind, FailureKind::Lost | FailureKind::Timeout) =>
            {
                self.outcome_unknown(n, error)?;
            }
            (Some(Phase::Calling), Err(Failure { request: Some(request), .. })) if request.fits() => {
                self.request_input(n, *request)?;
            }
            (Some(Phase::Calling), Err(Failure { request: Some(_), .. })) => {
                let message =
                    format!("the input request of the tool exceeds {} bytes", limits::EVENT_VALUE_BYTES);
                self.outcome_unknown(n, Failure::new(FailureKind::Lost, message))?;
            }
            (Some(Phase::Calling), Err(error)) if error.kind == FailureKind::NotFound => {
                self.tool_missing(n, error)?;
            }
            (Some(Phase::Calling), Err(error)) => self.fail_attempt(n, error)?,
            // The result is stale: the execution no longer waits for this call.
            (
                None
                | Some(
                    Phase::Ready
                    | Phase::Gate { .. }
                    | Phase::Backoff { .. }
                    | Phase::Uncertain
                    | Phase::KeyWait
                    | Phase::ServerWait { .. }
                    | Phase::Sleeping { .. }
                    | Phase::Waiting { .. }
                    | Phase::Child { .. }
                    | Phase::Blocks(_)
                    | Phase::Passing,
                ),
                _,
            ) => {}
        }
        Ok(())
    }

    /// Records a report of a call in flight.
    pub(super) fn reported(&mut self, n: u32, attempt: u32, report: Report) {
        let calling = |live: &Live| live.attempt == attempt && live.phase == Phase::Calling;
        let is_calling = self.run.live.get(&n).is_some_and(|live| calling(live));
        let Some(step) = self.run.step_ref(n).filter(|_| is_calling) else {
            return;
        };
        self.emit(match report {
            Report::Progress { progress, total, message } => {
                // JSON has no NaN and no infinity.
                let (progress, total) = (finite(progress), total.map(finite));
                let message = message.map(|message| limits::cut(message.into(), limits::REPORT_BYTES).into());
                Event::StepProgressed { step, progress, total, message }
            }
            // Without its task id, the call is treated like one that has no task.
            Report::Task { id } if id.len() > limits::REPORT_BYTES => return,
            Report::Task { id } => Event::CallAccepted { step, task: id },
            Report::ToolChanged { what } => {
                Event::ToolChanged { step, what: limits::cut(what.into(), limits::REPORT_BYTES).into() }
            }
        });
    }

    /// Handles the result of a superseded call. It completes the step only while the outcome is unknown.
    pub(super) fn answered_late(&mut self, n: u32, attempt: u32, output: Payload) -> DecideResult {
        let live = self.run.live.get(&n).filter(|live| live.attempt == attempt);
        if live.is_some_and(|live| live.phase == Phase::Uncertain) {
            return self.call_returned(n, output, Some("late answer"));
        }
        self.late_result(n, attempt);
        Ok(())
    }

    pub(super) fn late_result(&mut self, n: u32, attempt: u32) {
        if let Some(path) = self.run.abandoned.get(&(n, attempt)).cloned() {
            self.emit(Event::LateResult { step: super::StepRef { n, path, attempt } });
        }
    }

    /// Retries or fails a step after an attempt failed with a known outcome, as its retry policy says.
    pub(super) fn fail_attempt(&mut self, n: u32, error: Failure) -> DecideResult {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        match &step.retry {
            Some(retry) if live.counted_attempts() < retry.max_attempts && retry.covers(&error) => {
                self.schedule_retry(n, error, retry)
            }
            _ => self.fail(n, error),
        }
    }

    /// Sets the timer of the next attempt, or starts it at once if its delay is 0.
    pub(super) fn schedule_retry(&mut self, n: u32, error: Failure, retry: &RetryPolicy) -> DecideResult {
        let Some((step, counted)) =
            self.run.step_ref(n).zip(self.run.live.get(&n).map(|live| live.counted_attempts()))
        else {
            return Ok(());
        };
        let delay = retry.jittered_delay(counted + 1, self.world.random());
        // A restart of the engine is not a failure of the call, so there is no backoff.
        let delay = if error.is_restart() { Duration::ZERO } else { delay };
        let delay = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
        let due = self.now().saturating_add(delay);
        self.emit(Event::RetryScheduled { step, error, due });
        if delay == 0 { self.begin(n) } else { Ok(()) }
    }

    /// Cancels a call that timed out. Its result counts until the grace period ends.
    pub(super) fn time_out_call(&mut self, n: u32) {
        if let Some(step) = self.run.step_ref(n) {
            let until = self.now().saturating_add(limits::CANCEL_GRACE_MS);
            self.emit(Event::CallTimedOut { step, until });
        }
    }

    /// Abandons a call that did not end within the grace period.
    pub(super) fn abandon(&mut self, n: u32) -> DecideResult {
        if let Some(step) = self.run.step_ref(n) {
            self.emit(Event::CallAbandoned { step });
        }
        self.outcome_unknown(n, call_timed_out())
    }

    /// Starts a step that waited for an idempotency key.
    pub(super) fn key_freed(&mut self, n: u32) -> DecideResult {
        let waits = self.run.live.get(&n).is_some_and(|live| live.phase == Phase::KeyWait);
        if waits { self.begin(n) } else { Ok(()) }
    }

    /// Returns the call of an execution, if it is a `tool` step.
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
    Failure::timeout("the call timed out; its outcome is unknown")
}

impl RetryPolicy {
    /// Whether the policy retries a failure. Rejections, cancellations and responses above a limit are retried only
    /// if `retry_on` names them.
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
    /// The name of the tool, qualified with its server.
    pub fn full_name(&self) -> Box<str> {
        self.name.clone()
    }
}
