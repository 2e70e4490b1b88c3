//! Calls: places, idempotency keys, attempts, and outcomes that nobody knows.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::task::Poll;

use serde_json::Value;
use steprail_core::limits::{CANCEL_GRACE_MS, LOST_ATTEMPTS, PROBE_MS, REFUSED_DELAYS_MS};
use steprail_core::plan::{Call, RetryPolicy, Verify};
use steprail_core::run::{Failure, FailureKind, Millis};
use steprail_core::spec::policy::{Effects, KeyScope, OnUncertain};

use super::time::Clock;
use super::values::invalid;
use super::{Called, Entry, Made, Run, Went, World, after, made};
use crate::common::oracle::{Reaction, Told, Verdict};

/// How many calls of one run may be in flight.
pub(super) struct Places {
    free: Cell<u32>,
    waiting: RefCell<BTreeSet<u32>>,
}

impl Places {
    pub(super) fn new(limit: u32) -> Self {
        Self { free: Cell::new(limit), waiting: RefCell::default() }
    }
}

/// A step that waits for a place, and then has it until this is dropped.
struct Place<'p> {
    places: &'p Places,
    clock: &'p Clock,
    n: u32,
    taken: bool,
}

impl Place<'_> {
    /// Takes a place if there is one.
    fn take(&mut self) -> bool {
        let free = self.places.free.get();
        if free > 0 {
            self.places.free.set(free - 1);
            self.places.waiting.borrow_mut().remove(&self.n);
            self.taken = true;
            self.clock.changed();
        }
        self.taken
    }

    /// Takes a place that nobody else wanted at this moment; the step that began first goes first.
    fn take_in_turn(&mut self) -> Poll<()> {
        let first = self.places.waiting.borrow().first() == Some(&self.n);
        if first && self.places.free.get() > 0 && self.clock.is_quiet() && self.take() {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.places.waiting.borrow_mut().remove(&self.n);
        self.places.free.set(self.places.free.get() + u32::from(self.taken));
        self.clock.changed();
    }
}

/// Who has which idempotency key: the run (none for all runs), the tool and the key.
#[derive(Default)]
pub(super) struct Keys(RefCell<BTreeMap<Key, Use>>);

type Key = (Option<String>, String, String);

struct Use {
    args: String,
    /// What the call gave, and how long that is kept.
    result: Option<(Value, Option<Millis>)>,
}

/// A key that is held until the step has ended.
struct Claim<'c> {
    world: &'c World<'c>,
    key: Key,
    ttl_secs: Option<u64>,
}

impl Claim<'_> {
    fn keep(&self, output: &Value) {
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

/// A key if the step has one, the arguments and a place; or what is known under the key.
type Prepared<'p> = Result<Result<(Option<Claim<'p>>, Value, Place<'p>), Value>, Failure>;

/// What became of asking for a key.
enum Asked<'a> {
    Free(Claim<'a>),
    Hit(Value),
    Busy(Key),
    Conflict,
}

/// What is known of an attempt.
enum End {
    Known(Result<Value, Failure>),
    /// Why it is unknown, and when the call answers after all.
    Unknown(Failure, Option<(Millis, Value)>),
}

/// What follows an attempt.
enum Next {
    Gives(Value),
    Again(Millis),
    /// It was not sent; the same attempt is made after a delay.
    Refused(Millis),
    Fails(Failure),
    Skips,
    Asks,
}

impl Run<'_> {
    /// Calls a tool as often as its policy says.
    pub(super) async fn call(&self, entry: &Entry<'_>, call: &Call) -> Result<Went, Failure> {
        let (claim, args, mut place) = match self.prepare(entry, call).await? {
            Ok(ready) => ready,
            Err(known) => return Ok(Went::On(known)),
        };
        let (mut attempt, mut refusals) = (1, 0);
        loop {
            let next = self.attempt_and_judge(entry, call, (attempt, refusals, &args), place).await;
            let delay = match next {
                Next::Gives(output) => {
                    claim.inspect(|claim| claim.keep(&output));
                    return Ok(Went::On(output));
                }
                Next::Fails(failure) => return Err(failure),
                Next::Skips => return Ok(Went::Skipped),
                Next::Again(delay) => {
                    (attempt, refusals) = (attempt + 1, 0);
                    delay
                }
                Next::Refused(delay) => {
                    refusals += 1;
                    delay
                }
                Next::Asks => unreachable!("a human has answered"),
            };
            self.world.clock.sleep(delay).await;
            place = self.place(entry.n).await;
        }
    }

    /// Waits for a place and for the idempotency key; what is known under the key is not asked for again.
    async fn prepare<'f>(&'f self, entry: &Entry<'_>, call: &Call) -> Prepared<'f> {
        loop {
            let place = self.place(entry.n).await;
            let (key, args) = self.arguments(entry, call)?;
            return Ok(match self.ask_for(call, key, &args) {
                None => Ok((None, args, place)),
                Some(Asked::Free(claim)) => Ok((Some(claim), args, place)),
                Some(Asked::Hit(output)) => Err(output),
                Some(Asked::Conflict) => return Err(invalid("").code("idempotency_conflict")),
                Some(Asked::Busy(key)) => {
                    drop(place);
                    self.key_is_free(&key).await;
                    continue;
                }
            });
        }
    }

    /// One attempt, a probe if nobody knows what it did, and a human if the probe does not know either.
    async fn attempt_and_judge(
        &self,
        entry: &Entry<'_>,
        call: &Call,
        (attempt, refusals, args): (u32, u32, &Value),
        place: Place<'_>,
    ) -> Next {
        let (failure, late) = match self.attempt(entry, call, (attempt, refusals), args).await {
            End::Known(Ok(output)) => return Next::Gives(output),
            End::Known(Err(failure)) if failure.kind == FailureKind::Transport => {
                let delay = REFUSED_DELAYS_MS[(refusals as usize).min(REFUSED_DELAYS_MS.len() - 1)];
                return Next::Refused(i64::try_from(delay).expect("a delay"));
            }
            End::Known(Err(failure)) => {
                return after(entry.step, attempt, failure).map_or_else(Next::Fails, Next::Again);
            }
            End::Unknown(failure, late) => (failure, late),
        };
        let next = match &call.verify {
            Some(verify) => self.probe(entry, verify, attempt).await,
            None => unknown(entry, call, attempt, failure),
        };
        drop(place);
        if matches!(next, Next::Asks) { self.ask(entry, attempt, late).await } else { next }
    }

    async fn place(&self, n: u32) -> Place<'_> {
        let mut place = Place { places: &self.places, clock: &self.world.clock, n, taken: false };
        if !place.take() {
            self.places.waiting.borrow_mut().insert(n);
            poll_fn(|_| place.take_in_turn()).await;
        }
        place
    }

    /// The idempotency key, if the step has one, and the arguments.
    pub(super) fn arguments(
        &self,
        entry: &Entry<'_>,
        call: &Call,
    ) -> Result<(Option<String>, Value), Failure> {
        let policy = call.idempotency.as_ref();
        let key = policy.map(|policy| self.text(entry.scope, &policy.key)).transpose()?;
        let mut args = self.value(entry.scope, &call.args)?;
        let Value::Object(map) = &mut args else { return Err(invalid("the arguments are no map")) };
        if let (Some(name), Some(key)) = (&call.idempotency_arg, &key) {
            map.insert(name.to_string(), key.as_str().into());
        }
        Ok((key, args))
    }

    fn ask_for(&self, call: &Call, key: Option<String>, args: &Value) -> Option<Asked<'_>> {
        let policy = call.idempotency.as_ref()?;
        let scope = (policy.scope == KeyScope::Workflow).then(|| self.prefix.clone());
        let key = (scope, call.full_name().to_string(), key?);
        let mut keys = self.world.keys.0.borrow_mut();
        let now = self.world.clock.now();
        let args = args.to_string();
        Some(match keys.get(&key) {
            Some(Use { result: Some((_, Some(until))), .. }) if *until <= now => {
                keys.insert(key.clone(), Use { args, result: None });
                Asked::Free(Claim { world: self.world, key, ttl_secs: policy.ttl_secs })
            }
            Some(used) if used.args != args => Asked::Conflict,
            Some(Use { result: Some((output, _)), .. }) => Asked::Hit(output.clone()),
            Some(_) => Asked::Busy(key),
            None => {
                keys.insert(key.clone(), Use { args, result: None });
                Asked::Free(Claim { world: self.world, key, ttl_secs: policy.ttl_secs })
            }
        })
    }

    async fn key_is_free(&self, key: &Key) {
        poll_fn(|_| {
            let keys = self.world.keys.0.borrow();
            match keys.get(key) {
                Some(Use { result: None, .. }) => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Makes a call: what the tool will do with it, and the note of it.
    fn begin(
        &self,
        entry: &Entry<'_>,
        tool: &str,
        (attempt, refusals): (u32, u32),
        args: &Value,
    ) -> (Reaction, Made<'_>) {
        let (path, tool) = (self.full_path(entry), tool.to_owned());
        let reaction = self.world.oracle.reaction(&path, (attempt, refusals), &tool);
        let at = self.world.clock.now();
        (reaction, made(self.world, Called { at, path, attempt, tool, args: args.to_string() }))
    }

    /// One attempt: the call, its deadline, and what it does when it is told to stop.
    async fn attempt(&self, entry: &Entry<'_>, call: &Call, attempt: (u32, u32), args: &Value) -> End {
        let (reaction, _made) = self.begin(entry, &call.full_name(), attempt, args);
        let clock = &self.world.clock;
        let timeout = entry.step.timeout_ms.map(|millis| i64::try_from(millis).expect("a timeout"));
        let Some(timeout) = timeout.filter(|timeout| *timeout <= reaction.takes) else {
            clock.sleep(reaction.takes).await;
            return match reaction.outcome {
                Err(failure) if matches!(failure.kind, FailureKind::Lost | FailureKind::Timeout) => {
                    End::Unknown(failure, None)
                }
                outcome => End::Known(outcome),
            };
        };
        let up = clock.now() + timeout;
        let (ends, output) = match reaction.told {
            Told::Stops(after) => (up + after, None),
            Told::Ends(after) => (up + after, Some(reaction.outcome)),
            Told::Ignores => (up - timeout + reaction.takes, Some(reaction.outcome)),
        };
        clock.until(ends.min(up + CANCEL_GRACE_MS)).await;
        match output {
            Some(Ok(output)) if ends < up + CANCEL_GRACE_MS => End::Known(Ok(output)),
            Some(Err(failure)) if ends < up + CANCEL_GRACE_MS && failure.kind == FailureKind::Transport => {
                End::Known(Err(Failure::new(FailureKind::Timeout, "")))
            }
            late => {
                let late = late.and_then(Result::ok).map(|output| (ends, output));
                End::Unknown(Failure::new(FailureKind::Timeout, ""), late)
            }
        }
    }

    /// Asks a tool whether a call took place.
    async fn probe(&self, entry: &Entry<'_>, verify: &Verify, attempt: u32) -> Next {
        let Some(args) = self.value(entry.scope, &verify.args).ok().filter(|_| attempt < LOST_ATTEMPTS)
        else {
            return Next::Asks;
        };
        let (reaction, _made) = self.begin(entry, &verify.tool, (attempt, 0), &args);
        let patience = i64::try_from(entry.step.timeout_ms.unwrap_or(PROBE_MS)).expect("a timeout");
        self.world.clock.sleep(reaction.takes.min(patience)).await;
        if reaction.takes >= patience {
            return Next::Asks;
        }
        let Ok(answer) = reaction.outcome else { return Next::Asks };
        match self.holds_of(entry.scope, &verify.when, answer.clone()) {
            Ok(true) => Next::Gives(answer),
            Ok(false) => Next::Again(lost_delay(attempt)),
            Err(_) => Next::Asks,
        }
    }

    /// A human says what became of a call, unless it answers before.
    async fn ask(&self, entry: &Entry<'_>, attempt: u32, late: Option<(Millis, Value)>) -> Next {
        let clock = &self.world.clock;
        let path = self.full_path(entry);
        let (after, verdict) = self.world.oracle.verdict(&path, attempt);
        let decided = clock.now() + after;
        // What it answered while a tool was asked comes too late.
        let late = late.filter(|(answers, _)| (clock.now()..=decided).contains(answers));
        if let Some((answers, output)) = late {
            clock.until(answers).await;
            return Next::Gives(output);
        }
        clock.until(decided).await;
        match verdict {
            Verdict::Happened(output) => Next::Gives(output),
            Verdict::Skip => Next::Skips,
            Verdict::Retry => Next::Again(0),
            Verdict::Fail => Next::Fails(Failure::new(FailureKind::Lost, "")),
        }
    }
}

/// A call with an unknown outcome is never repeated where that could hurt.
fn unknown(entry: &Entry<'_>, call: &Call, attempt: u32, failure: Failure) -> Next {
    let retry = entry.step.retry.as_ref();
    match call.on_uncertain {
        Some(OnUncertain::Ask) => return Next::Asks,
        Some(OnUncertain::Fail) => return Next::Fails(failure),
        Some(OnUncertain::Skip) => return Next::Skips,
        Some(OnUncertain::Retry) if attempt < LOST_ATTEMPTS => {
            return Next::Again(retry.map_or_else(|| lost_delay(attempt), |retry| delay(retry, attempt)));
        }
        Some(OnUncertain::Retry) | None => {}
    }
    let harmless = is_harmless(call);
    let named = retry.is_some_and(|retry| names_unknown(retry, &failure));
    match retry {
        Some(retry) if attempt < retry.max_attempts && (harmless || named) => {
            Next::Again(delay(retry, attempt))
        }
        None if harmless && failure.kind == FailureKind::Lost && attempt < LOST_ATTEMPTS => {
            Next::Again(lost_delay(attempt))
        }
        // Whoever names it agrees to calling more than once; what is left then is a failure.
        _ if harmless || named => Next::Fails(failure),
        _ => Next::Asks,
    }
}

/// A lost call is repeated at once, and then with growing delays.
fn lost_delay(attempt: u32) -> Millis {
    [0, 1_000, 5_000, 30_000][attempt as usize - 1]
}

fn delay(retry: &RetryPolicy, attempt: u32) -> Millis {
    i64::try_from(retry.next_delay(attempt + 1).as_millis()).expect("a delay")
}

/// By the step's own word, or by a key that reaches the tool.
fn is_harmless(call: &Call) -> bool {
    call.idempotency_arg.is_some() || matches!(call.effects, Some(Effects::Read | Effects::Idempotent))
}

/// Whether a policy names an unknown outcome; one that lists nothing does not.
fn names_unknown(retry: &RetryPolicy, failure: &Failure) -> bool {
    let kinds = retry.retry_on.as_deref().unwrap_or_default();
    kinds.contains(&FailureKind::Lost) || kinds.contains(&failure.kind)
}
