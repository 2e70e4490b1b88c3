//! A call whose outcome is unknown: never repeated silently where it could hurt.

use super::decide::{Decided, Decision};
use super::event::Event;
use super::input::Resolution;
use super::parts::Resolved;
use super::state::Phase;
use super::values::Fetched;
use super::{Failure, FailureKind, Payload};
use crate::limits;
use crate::plan::{BackoffKind, Call, RetryPolicy, Verify};
use crate::spec::policy::OnUncertain;

/// The code of a call that was lost because the engine was started anew.
pub const RESTARTED: &str = "restarted";

impl Decision<'_> {
    /// The outcome of a call is unknown: it timed out, the connection was lost, or the engine died.
    pub(super) fn lost(&mut self, n: u32, error: Failure) -> Decided {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        let crate::plan::Kind::Call(call) = &step.kind else { return self.fail_attempt(n, error) };
        let (counted, restarts) = (live.counted_attempts(), live.restarts);
        if let (Some(task), Some(RESTARTED), Some(step)) =
            (live.task.clone(), error.code.as_deref(), self.run.step_ref(n))
        {
            self.emit(Event::CallResumed { step, tool: call.full_name(), task });
            return Ok(());
        }
        // An attempt that a restart cut off does not count.
        let restarted = error.is_restart();
        let left = |attempts: u32| restarted || counted < attempts;
        if restarted && restarts >= limits::RESTARTS {
            self.uncertain(n, error);
            return Ok(());
        }
        if let Some(verify) = &call.verify {
            return self.ask_verify(n, verify, error);
        }
        match call.on_uncertain.or(self.world.annotations(&call.full_name()).on_uncertain) {
            Some(OnUncertain::Fail) => return self.fail(n, error),
            Some(OnUncertain::Skip) => {
                self.skip(n, "the outcome of the call is unknown");
                return Ok(());
            }
            Some(OnUncertain::Ask) => {
                self.uncertain(n, error);
                return Ok(());
            }
            Some(OnUncertain::Retry) if left(limits::LOST_ATTEMPTS) => {
                return self.schedule_retry(n, error, &lost_retry(step.retry.as_ref()));
            }
            Some(OnUncertain::Retry) | None => {}
        }
        let harmless = self.is_harmless(call);
        let named = step.retry.as_ref().is_some_and(|retry| retry.names(&error));
        match &step.retry {
            Some(retry) if left(retry.max_attempts) && (harmless || named) => {
                self.schedule_retry(n, error, retry)
            }
            // Nothing was hurt by a call that is known to be harmless; a lost one is worth another try.
            None if harmless && error.kind == FailureKind::Lost && left(limits::LOST_ATTEMPTS) => {
                self.schedule_retry(n, error, &lost_retry(None))
            }
            _ if harmless || named => self.fail(n, error),
            _ => {
                self.uncertain(n, error);
                Ok(())
            }
        }
    }

    /// Whether repeating a call changes nothing more: by the tool's annotations, by `effects` where there are none, or
    /// because the idempotency key reaches the tool.
    fn is_harmless(&self, call: &Call) -> bool {
        let annotations = self.world.annotations(&call.full_name());
        call.idempotency_arg.is_some() || annotations.honours_key || annotations.is_repeatable(call.effects)
    }

    fn uncertain(&mut self, n: u32, error: Failure) {
        if let Some(step) = self.run.step_ref(n) {
            self.emit(Event::StepUncertain { step, error });
        }
    }

    fn ask_verify(&mut self, n: u32, verify: &Verify, error: Failure) -> Decided {
        let Some(scope) = self.run.live.get(&n).map(|live| live.scope) else { return Ok(()) };
        // A probe cannot be asked for ever: a call that is never seen to have happened goes to a human.
        let asked_often = self.run.live.get(&n).is_some_and(|live| {
            live.counted_attempts() >= limits::LOST_ATTEMPTS || live.probes >= limits::RESTARTS
        });
        let timeout = self.live(n).and_then(|(_, step)| step.timeout_ms).unwrap_or(limits::PROBE_MS);
        let until = self.now().saturating_add(i64::try_from(timeout).unwrap_or(i64::MAX));
        let args = match self.eval(scope, &verify.args)? {
            Ok(args) if !asked_often => Payload::new(args),
            _ => {
                self.uncertain(n, error);
                return Ok(());
            }
        };
        // The probe takes the place of the call that was cut off.
        let Some(step) = self.run.step_ref(n) else { return Ok(()) };
        let (tool, args_hash) = (verify.tool.clone(), args.hash());
        let restarted = error.is_restart();
        let event = Event::VerifyStarted { step, tool, args: args_hash, until: Some(until), restarted };
        self.records_probe(event, args);
        Ok(())
    }

    /// A probe's arguments go with its call only: the step's own arguments stay what they are.
    pub(super) fn records_probe(&mut self, event: Event, args: Payload) {
        self.emit(event);
        if let Some(record) = self.records.last_mut() {
            record.payload = Some(args);
        }
    }

    /// Why a call is repeated whose outcome was unknown. If a restart cut it off, the repetition costs no attempt.
    fn lost_call(&self, n: u32, message: &str) -> Failure {
        let lost = Failure::new(FailureKind::Lost, message);
        let restarted = self.run.live.get(&n).is_some_and(|live| live.restarted);
        if restarted { lost.code(RESTARTED) } else { lost }
    }

    /// The probe answered: the call took place, it did not, or nobody knows.
    pub(super) fn verified(&mut self, n: u32, answer: Result<Payload, Failure>) -> Decided {
        let Some(scope) = self.run.live.get(&n).map(|live| live.scope) else { return Ok(()) };
        let verify = self.call_of(n).and_then(|call| call.verify.as_ref());
        let Some(verify) = verify.cloned() else { return Ok(()) };
        // A restart cut the probe off: it is asked again.
        if let Err(error) = &answer
            && error.is_restart()
        {
            return self.ask_verify(n, &verify, error.clone());
        }
        let happened = match &answer {
            Ok(answer) => self.holds_with(scope, &verify.when, Fetched::probe(answer.clone()))?,
            Err(error) => Err(error.clone()),
        };
        match (happened, answer) {
            (Ok(true), Ok(answer)) => self.complete(n, answer, Some("verify")),
            (Ok(false), _) => {
                let lost = self.lost_call(n, "the call was cut off, and a probe says it never ran");
                self.schedule_retry(n, lost, &lost_retry(None))
            }
            (Err(error), _) | (Ok(true), Err(error)) => {
                self.uncertain(n, error);
                Ok(())
            }
        }
    }

    /// A human says what happened.
    pub(super) fn resolve(&mut self, n: u32, resolution: Resolution, by: Box<str>) -> Decided {
        let uncertain = self.run.live.get(&n).is_some_and(|live| live.phase == Phase::Uncertain);
        let Some(step) = self.run.step_ref(n).filter(|_| uncertain) else { return Ok(()) };
        let how = match &resolution {
            Resolution::Happened(_) => Resolved::Happened,
            Resolution::Retry => Resolved::Retry,
            Resolution::Skip => Resolved::Skip,
            Resolution::Fail => Resolved::Fail,
        };
        self.emit(Event::UncertaintyResolved { step, how, by });
        let lost = self.lost_call(n, "the outcome of the call was unknown");
        match resolution {
            Resolution::Happened(output) => self.complete(n, output, Some("resolution")),
            Resolution::Retry => self.schedule_retry(n, lost, &RetryPolicy::at_once()),
            Resolution::Skip => {
                self.skip(n, "somebody decided so after an unknown outcome");
                Ok(())
            }
            Resolution::Fail => self.fail(n, lost),
        }
    }
}

/// When a lost call is repeated: by the step's policy, else at once and then with growing delays.
fn lost_retry(policy: Option<&RetryPolicy>) -> RetryPolicy {
    policy.cloned().unwrap_or_else(|| RetryPolicy {
        backoff: BackoffKind::Delays([0, 1_000, 5_000, 30_000].into()),
        max_delay_ms: 30_000,
        ..RetryPolicy::retries(limits::LOST_ATTEMPTS)
    })
}

impl RetryPolicy {
    /// Whether the policy names this unknown outcome, so that its author accepts a repeated call.
    fn names(&self, error: &Failure) -> bool {
        let kinds = self.retry_on.as_deref().unwrap_or_default();
        kinds.contains(&error.kind) || kinds.contains(&FailureKind::Lost)
    }

    pub(super) fn at_once() -> Self {
        Self { backoff: BackoffKind::Fixed, initial_delay_ms: 0, ..Self::retries(1) }
    }
}
