//! Calls: concurrency slots, idempotency keys, attempts and unknown outcomes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::task::Poll;

use serde_json::Value;
use steprail_core::limits::{CANCEL_GRACE_MS, LOST_ATTEMPTS, PROBE_MS, REFUSED_DELAYS_MS};
use steprail_core::plan::{Call, FailureName, RetryPolicy, Verify};
use steprail_core::run::{Failure, FailureKind, Millis};
use steprail_core::spec::policy::{Effects, KeyScope, OnUncertain};

use super::time::Clock;
use super::values::invalid;
use super::{CallRecord, Called, Execution, Run, StepResult, World, record_call, retry_delay};
use crate::common::oracle::{OnCancel, Reaction, Verdict};

/// The concurrency slots of one run.
pub(super) struct Slots {
    free: Cell<u32>,
    waiting: RefCell<BTreeSet<u32>>,
}

impl Slots {
    pub(super) fn new(limit: u32) -> Self {
        Self { free: Cell::new(limit), waiting: RefCell::default() }
    }
}

/// The request of a step for a slot. An acquired slot is released on drop.
struct Slot<'p> {
    slots: &'p Slots,
    clock: &'p Clock,
    n: u32,
    taken: bool,
}

impl Slot<'_> {
    /// Acquires a slot if one is free.
    fn take(&mut self) -> bool {
        let free = self.slots.free.get();
        if free > 0 {
            self.slots.free.set(free - 1);
            self.slots.waiting.borrow_mut().remove(&self.n);
            self.taken = true;
            self.clock.changed();
        }
        self.taken
    }

    /// Acquires a slot if no other event is pending at this time. Steps are served in the order of their start.
    fn acquire_in_order(&mut self) -> Poll<()> {
        let first = self.slots.waiting.borrow().first() == Some(&self.n);
        if first && self.slots.free.get() > 0 && self.clock.is_quiet() && self.take() {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.slots.waiting.borrow_mut().remove(&self.n);
        self.slots.free.set(self.slots.free.get() + u32::from(self.taken));
        self.clock.changed();
    }
}

/// Idempotency keys in use, by run (`None` for the global scope), tool and key.
#[derive(Default)]
pub(super) struct Keys(RefCell<BTreeMap<Key, KeyUse>>);

type Key = (Option<String>, String, String);

struct KeyUse {
    args: String,
    /// The result of the call, and when it expires.
    result: Option<(Value, Option<Millis>)>,
}

/// A key that a step holds until it ends.
struct Claim<'c> {
    world: &'c World<'c>,
    key: Key,
    ttl_secs: Option<u64>,
}

impl Claim<'_> {
    fn store_result(&self, output: &Value) {
        let ttl =
            self.ttl_secs.map(|secs| self.world.clock.now() + i64::try_from(secs).expect("a ttl") * 1000);
        if let Some(used) = self.world.keys.0.borrow_mut().get_mut(&self.key) {
            used.result = Some((output.clone(), ttl));
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut keys = self.world.keys.0.borrow_mut();
        if keys.get(&self.key).is_some_and(|used| used.result.is_none()) {
            keys.remove(&self.key);
        }
        self.world.clock.changed();
    }
}

/// The claim of the step, its arguments and a slot; or the result that is stored under the key.
type Prepared<'p> = Result<Result<(Option<Claim<'p>>, Value, Slot<'p>), Value>, Failure>;

/// The result of a claim.
enum ClaimOutcome<'a> {
    Free(Claim<'a>),
    Hit(Value),
    Busy(Key),
    Conflict,
}

/// The outcome of an attempt.
enum AttemptOutcome {
    Known(Result<Value, Failure>),
    /// Why it is unknown, and the late result with its time, if one arrives.
    Unknown(Failure, Option<(Millis, Value)>),
}

/// What a step does after an attempt.
enum NextAction {
    Complete(Value),
    Retry(Millis),
    /// The call was not sent, and the same attempt is made after a delay.
    RetryUnsent(Millis),
    Fail(Failure),
    Skip,
    AskHuman,
}

impl Run<'_> {
    /// Calls a tool, and retries according to the policy of the step.
    pub(super) async fn call(&self, execution: &Execution<'_>, call: &Call) -> Result<StepResult, Failure> {
        let (claim, args, mut slot) = match self.prepare(execution, call).await? {
            Ok(ready) => ready,
            Err(known) => {
                self.check_result(execution, call, &known)?;
                return Ok(StepResult::Continue(known));
            }
        };
        let (mut attempt, mut refusals) = (1, 0);
        loop {
            let next = self.attempt_and_resolve(execution, call, (attempt, refusals, &args), slot).await;
            let delay = match next {
                NextAction::Complete(output) => {
                    claim.inspect(|claim| claim.store_result(&output));
                    return Ok(StepResult::Continue(output));
                }
                NextAction::Fail(failure) => return Err(failure),
                NextAction::Skip => return Ok(StepResult::Skipped),
                NextAction::Retry(delay) => {
                    (attempt, refusals) = (attempt + 1, 0);
                    delay
                }
                NextAction::RetryUnsent(delay) => {
                    refusals += 1;
                    delay
                }
                NextAction::AskHuman => unreachable!("a human has answered"),
            };
            self.world.clock.sleep(delay).await;
            slot = self.acquire_slot(execution.n).await;
        }
    }

    /// Waits for a slot and for the idempotency key. A stored result is reused.
    async fn prepare<'f>(&'f self, execution: &Execution<'_>, call: &Call) -> Prepared<'f> {
        loop {
            let slot = self.acquire_slot(execution.n).await;
            let (key, args) = self.arguments(execution, call)?;
            return Ok(match self.claim_key(call, key, &args) {
                None => Ok((None, args, slot)),
                Some(ClaimOutcome::Free(claim)) => Ok((Some(claim), args, slot)),
                Some(ClaimOutcome::Hit(output)) => Err(output),
                Some(ClaimOutcome::Conflict) => return Err(invalid("").code("idempotency_conflict")),
                Some(ClaimOutcome::Busy(key)) => {
                    drop(slot);
                    self.key_is_free(&key).await;
                    continue;
                }
            });
        }
    }

    /// Makes one attempt. If its outcome is unknown, probes it, and then asks a human.
    async fn attempt_and_resolve(
        &self,
        execution: &Execution<'_>,
        call: &Call,
        (attempt, refusals, args): (u32, u32, &Value),
        slot: Slot<'_>,
    ) -> NextAction {
        let (failure, late) = match self.attempt(execution, call, (attempt, refusals), args).await {
            AttemptOutcome::Known(Ok(output)) => return self.checked(execution, call, attempt, output),
            AttemptOutcome::Known(Err(failure)) if failure.kind == FailureKind::Transport => {
                let delay = REFUSED_DELAYS_MS[(refusals as usize).min(REFUSED_DELAYS_MS.len() - 1)];
                return NextAction::RetryUnsent(i64::try_from(delay).expect("a delay"));
            }
            AttemptOutcome::Known(Err(failure)) => {
                return retry_delay(execution.step, attempt, failure)
                    .map_or_else(NextAction::Fail, NextAction::Retry);
            }
            AttemptOutcome::Unknown(failure, late) => (failure, late),
        };
        let next = match &call.verify {
            Some(verify) => self.probe(execution, verify, attempt).await,
            None => unknown(execution, call, attempt, failure),
        };
        drop(slot);
        if matches!(next, NextAction::AskHuman) {
            self.ask(execution, call, attempt, late).await
        } else {
            next
        }
    }

    /// A result that `expect` or `fail_if` rejects is a failure of the attempt.
    fn checked(&self, execution: &Execution<'_>, call: &Call, attempt: u32, output: Value) -> NextAction {
        match self.check_result(execution, call, &output) {
            Ok(()) => NextAction::Complete(output),
            Err(failure) => {
                retry_delay(execution.step, attempt, failure).map_or_else(NextAction::Fail, NextAction::Retry)
            }
        }
    }

    fn check_result(&self, execution: &Execution<'_>, call: &Call, output: &Value) -> Result<(), Failure> {
        for check in &call.checks {
            if self.holds_of(execution.scope, &check.when, output.clone())? != check.expected {
                let failure = Failure::new(FailureKind::UnexpectedResult, "");
                return Err(match &check.name {
                    Some(FailureName::Named(name)) => failure.code(name),
                    Some(FailureName::Transient) => failure.transient(),
                    None => failure,
                });
            }
        }
        Ok(())
    }

    async fn acquire_slot(&self, n: u32) -> Slot<'_> {
        let mut slot = Slot { slots: &self.slots, clock: &self.world.clock, n, taken: false };
        if !slot.take() {
            self.slots.waiting.borrow_mut().insert(n);
            poll_fn(|_| slot.acquire_in_order()).await;
        }
        slot
    }

    /// Returns the idempotency key, if the step has one, and the arguments.
    pub(super) fn arguments(
        &self,
        execution: &Execution<'_>,
        call: &Call,
    ) -> Result<(Option<String>, Value), Failure> {
        let policy = call.idempotency.as_ref();
        let key = policy.map(|policy| self.text(execution.scope, &policy.key)).transpose()?;
        let mut args = self.value(execution.scope, &call.args)?;
        let Value::Object(map) = &mut args else { return Err(invalid("the arguments are not a map")) };
        if let (Some(name), Some(key)) = (&call.idempotency_arg, &key) {
            map.insert(name.to_string(), key.as_str().into());
        }
        Ok((key, args))
    }

    fn claim_key(&self, call: &Call, key: Option<String>, args: &Value) -> Option<ClaimOutcome<'_>> {
        let policy = call.idempotency.as_ref()?;
        let scope = (policy.scope == KeyScope::Workflow).then(|| self.prefix.clone());
        let key = (scope, call.full_name().to_string(), key?);
        let mut keys = self.world.keys.0.borrow_mut();
        let now = self.world.clock.now();
        let args = args.to_string();
        Some(match keys.get(&key) {
            Some(KeyUse { result: Some((_, Some(until))), .. }) if *until <= now => {
                keys.insert(key.clone(), KeyUse { args, result: None });
                ClaimOutcome::Free(Claim { world: self.world, key, ttl_secs: policy.ttl_secs })
            }
            Some(used) if used.args != args => ClaimOutcome::Conflict,
            Some(KeyUse { result: Some((output, _)), .. }) => ClaimOutcome::Hit(output.clone()),
            Some(_) => ClaimOutcome::Busy(key),
            None => {
                keys.insert(key.clone(), KeyUse { args, result: None });
                ClaimOutcome::Free(Claim { world: self.world, key, ttl_secs: policy.ttl_secs })
            }
        })
    }

    async fn key_is_free(&self, key: &Key) {
        poll_fn(|_| {
            let keys = self.world.keys.0.borrow();
            match keys.get(key) {
                Some(KeyUse { result: None, .. }) => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Starts a call. Returns the behaviour of the tool, and the record of the call.
    fn begin(
        &self,
        execution: &Execution<'_>,
        tool: &str,
        (attempt, refusals): (u32, u32),
        args: &Value,
    ) -> (Reaction, CallRecord<'_>) {
        let (path, tool) = (self.full_path(execution), tool.to_owned());
        let reaction = self.world.oracle.reaction(&path, (attempt, refusals), &tool);
        let at = self.world.clock.now();
        (reaction, record_call(self.world, Called { at, path, attempt, tool, args: args.to_string() }))
    }

    /// Makes one attempt: the call, its deadline, and its behaviour when it is cancelled.
    async fn attempt(
        &self,
        execution: &Execution<'_>,
        call: &Call,
        attempt: (u32, u32),
        args: &Value,
    ) -> AttemptOutcome {
        let (reaction, _record) = self.begin(execution, &call.full_name(), attempt, args);
        let clock = &self.world.clock;
        let timeout = execution.step.timeout_ms.map(|millis| i64::try_from(millis).expect("a timeout"));
        let Some(timeout) = timeout.filter(|timeout| *timeout <= reaction.takes) else {
            clock.sleep(reaction.takes).await;
            return match reaction.outcome {
                Err(failure) if matches!(failure.kind, FailureKind::Lost | FailureKind::Timeout) => {
                    AttemptOutcome::Unknown(failure, None)
                }
                outcome => AttemptOutcome::Known(outcome),
            };
        };
        let deadline = clock.now() + timeout;
        let (ends, output) = match reaction.told {
            OnCancel::Stops(after) => (deadline + after, None),
            OnCancel::Ends(after) => (deadline + after, Some(reaction.outcome)),
            OnCancel::Ignores => (deadline - timeout + reaction.takes, Some(reaction.outcome)),
        };
        clock.until(ends.min(deadline + CANCEL_GRACE_MS)).await;
        match output {
            Some(Ok(output)) if ends < deadline + CANCEL_GRACE_MS => AttemptOutcome::Known(Ok(output)),
            Some(Err(failure))
                if ends < deadline + CANCEL_GRACE_MS && failure.kind == FailureKind::Transport =>
            {
                AttemptOutcome::Known(Err(Failure::new(FailureKind::Timeout, "")))
            }
            late => {
                let late = late.and_then(Result::ok).map(|output| (ends, output));
                AttemptOutcome::Unknown(Failure::new(FailureKind::Timeout, ""), late)
            }
        }
    }

    /// Probes whether a call took effect.
    async fn probe(&self, execution: &Execution<'_>, verify: &Verify, attempt: u32) -> NextAction {
        let Some(args) = self.value(execution.scope, &verify.args).ok().filter(|_| attempt < LOST_ATTEMPTS)
        else {
            return NextAction::AskHuman;
        };
        let (reaction, _record) = self.begin(execution, &verify.tool, (attempt, 0), &args);
        let timeout = i64::try_from(execution.step.timeout_ms.unwrap_or(PROBE_MS)).expect("a timeout");
        self.world.clock.sleep(reaction.takes.min(timeout)).await;
        if reaction.takes >= timeout {
            return NextAction::AskHuman;
        }
        let Ok(answer) = reaction.outcome else { return NextAction::AskHuman };
        match self.holds_of(execution.scope, &verify.when, answer.clone()) {
            Ok(true) => NextAction::Complete(answer),
            Ok(false) => NextAction::Retry(lost_delay(attempt)),
            Err(_) => NextAction::AskHuman,
        }
    }

    /// Waits for the decision of a human, or for a late result.
    async fn ask(
        &self,
        execution: &Execution<'_>,
        call: &Call,
        attempt: u32,
        late: Option<(Millis, Value)>,
    ) -> NextAction {
        let clock = &self.world.clock;
        let path = self.full_path(execution);
        let (after, verdict) = self.world.oracle.verdict(&path, attempt);
        let decided = clock.now() + after;
        // A result that arrived during the probe is ignored.
        let late = late.filter(|(arrives_at, _)| (clock.now()..=decided).contains(arrives_at));
        if let Some((arrives_at, output)) = late {
            clock.until(arrives_at).await;
            return self.checked(execution, call, attempt, output);
        }
        clock.until(decided).await;
        match verdict {
            Verdict::Happened(output) => NextAction::Complete(output),
            Verdict::Skip => NextAction::Skip,
            Verdict::Retry => {
                // The approval covered the first call. The answer to the same question is the same.
                if execution.step.needs_human.is_some() {
                    self.gate(execution, None).await;
                }
                NextAction::Retry(0)
            }
            Verdict::Fail => NextAction::Fail(Failure::new(FailureKind::Lost, "")),
        }
    }
}

/// Decides what follows an unknown outcome. The call is repeated only with consent.
fn unknown(execution: &Execution<'_>, call: &Call, attempt: u32, failure: Failure) -> NextAction {
    let retry = execution.step.retry.as_ref();
    let repeatable = is_repeatable(call);
    // One approval covers one execution. A repetition that can have an effect is decided by a human.
    let is_spent = execution.step.needs_human.is_some() && !repeatable;
    match call.on_uncertain {
        Some(OnUncertain::Ask) => return NextAction::AskHuman,
        Some(OnUncertain::Fail) => return NextAction::Fail(failure),
        Some(OnUncertain::Skip) => return NextAction::Skip,
        Some(OnUncertain::Retry) if attempt < LOST_ATTEMPTS && !is_spent => {
            return NextAction::Retry(
                retry.map_or_else(|| lost_delay(attempt), |retry| delay(retry, attempt)),
            );
        }
        Some(OnUncertain::Retry) | None => {}
    }
    let named = !is_spent && retry.is_some_and(|retry| names_unknown(retry, &failure));
    match retry {
        Some(retry) if attempt < retry.max_attempts && (repeatable || named) => {
            NextAction::Retry(delay(retry, attempt))
        }
        None if repeatable && failure.kind == FailureKind::Lost && attempt < LOST_ATTEMPTS => {
            NextAction::Retry(lost_delay(attempt))
        }
        // Repeating was allowed, but no attempt is left: the step fails.
        _ if repeatable || named => NextAction::Fail(failure),
        _ => NextAction::AskHuman,
    }
}

/// Returns the delay before a lost call is repeated: zero at first, then growing.
fn lost_delay(attempt: u32) -> Millis {
    [0, 1_000, 5_000, 30_000][attempt as usize - 1]
}

fn delay(retry: &RetryPolicy, attempt: u32) -> Millis {
    i64::try_from(retry.next_delay(attempt + 1).as_millis()).expect("a delay")
}

/// Whether a call is safe to repeat: by `effects`, or by a key that reaches the tool.
fn is_repeatable(call: &Call) -> bool {
    call.idempotency_arg.is_some() || matches!(call.effects, Some(Effects::Read | Effects::Idempotent))
}

/// Whether `retry_on` names an unknown outcome.
fn names_unknown(retry: &RetryPolicy, failure: &Failure) -> bool {
    let kinds = retry.retry_on.as_deref().unwrap_or_default();
    kinds.contains(&FailureKind::Lost) || kinds.contains(&failure.kind)
}
