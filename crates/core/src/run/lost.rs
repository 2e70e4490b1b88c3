//! Calls with an unknown outcome. They are repeated only where the definition or the tool declares that to be safe.

use super::decide::{DecideResult, Decision};
use super::event::Event;
use super::input::{Actor, Resolution};
use super::parts::Resolved;
use super::phase::Phase;
use super::values::Bindings;
use super::{Failure, FailureKind, Payload};
use crate::limits;
use crate::plan::{BackoffKind, Call, RetryPolicy, Verify};
use crate::spec::policy::OnUncertain;

/// The failure code of a call that a restart of the engine interrupted.
pub const RESTARTED: &str = "restarted";

impl Decision<'_> {
    /// Handles a call with an unknown outcome: it timed out, the connection was lost, or the engine stopped.
    pub(super) fn outcome_unknown(&mut self, n: u32, error: Failure) -> DecideResult {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        let crate::plan::Kind::Call(call) = &step.kind else { return self.fail_attempt(n, error) };
        let (counted, restarts) = (live.counted_attempts(), live.restarts);
        let repeatable = self.is_repeatable(call);
        // One approval covers one execution. A repetition that can have an effect needs another one.
        let is_spent = live.approved && !repeatable;
        if let (Some(task), Some(RESTARTED), Some(step)) =
            (live.task.clone(), error.code.as_deref(), self.run.step_ref(n))
        {
            self.emit(Event::CallResumed { step, tool: call.full_name(), task });
            return Ok(());
        }
        // An attempt that a restart interrupted does not count.
        let restarted = error.is_restart();
        let left = |attempts: u32| restarted || counted < attempts;
        if restarted && restarts >= limits::RESTARTS {
            self.mark_uncertain(n, error);
            return Ok(());
        }
        if let Some(verify) = &call.verify {
            return self.start_probe(n, verify, error);
        }
        match call.on_uncertain.or(self.world.annotations(&call.full_name()).on_uncertain) {
            Some(OnUncertain::Fail) => return self.fail(n, error),
            Some(OnUncertain::Skip) => {
                return self.skip(n, "the outcome of the call is unknown");
            }
            Some(OnUncertain::Ask) => {
                self.mark_uncertain(n, error);
                return Ok(());
            }
            Some(OnUncertain::Retry) if left(limits::LOST_ATTEMPTS) && !is_spent => {
                return self.schedule_retry(n, error, &lost_retry(step.retry.as_ref()));
            }
            Some(OnUncertain::Retry) | None => {}
        }
        let named = !is_spent && step.retry.as_ref().is_some_and(|retry| retry.names(&error));
        match &step.retry {
            Some(retry) if left(retry.max_attempts) && (repeatable || named) => {
                self.schedule_retry(n, error, retry)
            }
            // A lost call that is safe to repeat is retried also without a policy.
            None if repeatable && error.kind == FailureKind::Lost && left(limits::LOST_ATTEMPTS) => {
                self.schedule_retry(n, error, &lost_retry(None))
            }
            _ if repeatable || named => self.fail(n, error),
            _ => {
                self.mark_uncertain(n, error);
                Ok(())
            }
        }
    }

    /// Whether repeating a call has no further effect: by the tool's annotations, by `effects` where there are none, or
    /// because the idempotency key reaches the tool.
    fn is_repeatable(&self, call: &Call) -> bool {
        let annotations = self.world.annotations(&call.full_name());
        call.idempotency_arg.is_some() || annotations.honours_key || annotations.is_repeatable(call.effects)
    }

    fn mark_uncertain(&mut self, n: u32, error: Failure) {
        if let Some(step) = self.run.step_ref(n) {
            self.emit(Event::StepUncertain { step, error });
        }
    }

    fn start_probe(&mut self, n: u32, verify: &Verify, error: Failure) -> DecideResult {
        let Some(scope) = self.run.live.get(&n).map(|live| live.scope) else { return Ok(()) };
        // The number of probes is bounded; after that, a human decides.
        let exhausted = self.run.live.get(&n).is_some_and(|live| {
            live.counted_attempts() >= limits::LOST_ATTEMPTS || live.probes >= limits::RESTARTS
        });
        let timeout = self.live(n).and_then(|(_, step)| step.timeout_ms).unwrap_or(limits::PROBE_MS);
        let until = self.now().saturating_add(i64::try_from(timeout).unwrap_or(i64::MAX));
        let args = match self.eval(scope, &verify.args)? {
            Ok(args) if !exhausted => Payload::new(args),
            _ => {
                self.mark_uncertain(n, error);
                return Ok(());
            }
        };
        if let Err(error) = self.permit_auxiliary(n, &verify.tool, &args)? {
            self.mark_uncertain(n, error);
            return Ok(());
        }
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        let (tool, args_hash) = (verify.tool.clone(), args.hash());
        let restarted = error.is_restart();
        let event = Event::VerifyStarted { step, tool, args: args_hash, until: Some(until), restarted };
        self.record_probe(event, args);
        Ok(())
    }

    /// Records the start of a probe. Its arguments are not buffered as input of the step: a repeated call sends
    /// the arguments of the step.
    pub(super) fn record_probe(&mut self, event: Event, args: Payload) {
        self.emit(event);
        if let Some(record) = self.records.last_mut() {
            record.payload = Some(args);
        }
    }

    /// Returns the failure of a call with an unknown outcome. If a restart interrupted it, a retry spends no attempt.
    fn lost_failure(&self, n: u32, message: &str) -> Failure {
        let lost = Failure::new(FailureKind::Lost, message);
        let restarted = self.run.live.get(&n).is_some_and(|live| live.restarted);
        if restarted { lost.code(RESTARTED) } else { lost }
    }

    /// Handles the result of a probe: the call took place, did not take place, or is still unknown.
    pub(super) fn probe_ended(&mut self, n: u32, result: Result<Payload, Failure>) -> DecideResult {
        let Some(scope) = self.run.live.get(&n).map(|live| live.scope) else { return Ok(()) };
        let verify = self.call_of(n).and_then(|call| call.verify.as_ref());
        let Some(verify) = verify.cloned() else { return Ok(()) };
        // A restart interrupted the probe: it is repeated.
        if let Err(error) = &result
            && error.is_restart()
        {
            return self.start_probe(n, &verify, error.clone());
        }
        let happened = match &result {
            Ok(output) => self.holds_with(scope, &verify.when, Bindings::probe(output.clone()))?,
            Err(error) => Err(error.clone()),
        };
        match (happened, result) {
            (Ok(true), Ok(output)) => self.complete(n, output, Some("verify")),
            (Ok(false), _) => {
                let lost = self.lost_failure(
                    n,
                    "the outcome was unknown, and the probe found that the call did not run",
                );
                self.schedule_retry(n, lost, &lost_retry(None))
            }
            (Err(error), _) | (Ok(true), Err(error)) => {
                self.mark_uncertain(n, error);
                Ok(())
            }
        }
    }

    /// Applies the decision of a human about a call with an unknown outcome.
    pub(super) fn resolve(&mut self, n: u32, resolution: Resolution, by: Actor) -> DecideResult {
        let uncertain = self.run.live.get(&n).is_some_and(|live| live.phase == Phase::Uncertain);
        let Some(step) = self.run.step_ref(n).filter(|_| uncertain) else { return Ok(()) };
        let how = match &resolution {
            Resolution::Happened(_) => Resolved::Happened,
            Resolution::Retry => Resolved::Retry,
            Resolution::Skip => Resolved::Skip,
            Resolution::Fail => Resolved::Fail,
        };
        let Actor { user, provenance } = by;
        self.emit(Event::UncertaintyResolved { step, how, by: user, provenance });
        let lost = self.lost_failure(n, "the outcome of the call was unknown");
        match resolution {
            Resolution::Happened(output) => self.complete(n, output, Some("resolution")),
            Resolution::Retry => self.schedule_retry(n, lost, &RetryPolicy::immediate()),
            Resolution::Skip => self.skip(n, "skipped after an unknown outcome"),
            Resolution::Fail => self.fail(n, lost),
        }
    }
}

/// The retry policy of a lost call: the step's policy, or else a first retry without delay and then backoff.
fn lost_retry(policy: Option<&RetryPolicy>) -> RetryPolicy {
    policy.cloned().unwrap_or_else(|| RetryPolicy {
        backoff: BackoffKind::Delays([0, 1_000, 5_000, 30_000].into()),
        max_delay_ms: 30_000,
        ..RetryPolicy::retries(limits::LOST_ATTEMPTS)
    })
}

impl RetryPolicy {
    /// Whether `retry_on` names this unknown outcome, which is consent to a repeated call.
    fn names(&self, error: &Failure) -> bool {
        let kinds = self.retry_on.as_deref().unwrap_or_default();
        kinds.contains(&error.kind) || kinds.contains(&FailureKind::Lost)
    }

    pub(super) fn immediate() -> Self {
        Self { backoff: BackoffKind::Fixed, initial_delay_ms: 0, ..Self::retries(1) }
    }
}
