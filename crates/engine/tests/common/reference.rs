//! The reference interpreter: walks a plan recursively in virtual time. Cancelled futures are dropped.
//!
//! It is written from the documentation and shares only the plan and the evaluation of expressions with the
//! state machine. Simultaneous events happen in the order in which futures are polled; [`Ties`] changes that
//! order, to detect outcomes that depend on it.

mod call;
mod kinds;
mod time;
mod values;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;

use serde_json::{Value, json};
use steprail_core::expr::StepIx;
use steprail_core::plan::{BlockIx, Kind, Next, OnError, Plan, Step, Target};
use steprail_core::run::{Failure, FailureKind, Millis};

use super::oracle::{Called, Oracle, Outcome, RunTrace};
use call::{Keys, Slots};
pub(crate) use time::Ties;
use time::{Clock, Parts};
use values::{Ended, Scope, check_inputs, invalid};

/// A part of a run as a future in virtual time.
type Part<'p, T> = Pin<Box<dyn Future<Output = T> + 'p>>;

/// Runs a workflow that starts at `epoch`. `plans` has its sub-workflows by name.
pub(crate) fn interpret(
    plans: &BTreeMap<String, Plan>,
    name: &str,
    inputs: &Value,
    (oracle, epoch): (&Oracle, Millis),
    ties: Ties,
) -> RunTrace {
    let world = World {
        plans,
        oracle,
        clock: Clock::new(epoch, ties),
        calls: RefCell::default(),
        steps: RefCell::default(),
        keys: Keys::default(),
    };
    let plan = &plans[name];
    let inputs = check_inputs(plan, inputs).expect("inputs that fit");
    let outcome = world.clock.drive(world.run(plan, inputs, String::new()));
    let mut calls: Vec<Called> = world.calls.take().into_iter().flatten().collect();
    calls.sort();
    RunTrace { outcome, calls, steps: world.steps.take() }
}

/// The state that all runs share.
struct World<'w> {
    plans: &'w BTreeMap<String, Plan>,
    oracle: &'w Oracle,
    clock: Clock,
    calls: RefCell<Vec<Option<Called>>>,
    steps: RefCell<BTreeMap<String, &'static str>>,
    keys: Keys,
}

/// One run.
struct Run<'r> {
    world: &'r World<'r>,
    plan: &'r Plan,
    inputs: Value,
    /// Prefix of the paths of its steps: the step of the parent run.
    prefix: String,
    entered: Cell<u32>,
    slots: Slots,
    failure: RefCell<Option<Failure>>,
}

/// Why a block did not complete.
enum Stop {
    Failed(Failure),
    /// A denied approval cancelled the run.
    Cancelled,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The result of a step.
enum StepResult {
    Continue(Value),
    Skipped,
    /// Continues at another step.
    GoTo(Value, Target),
}

/// A step execution. Dropping it before its end cancels it.
struct Execution<'e> {
    scope: &'e Scope<'e>,
    at: StepIx,
    step: &'e Step,
    n: u32,
    path: String,
    /// Prefix of the paths of steps inside it.
    inside: String,
    ended: Cell<bool>,
}

impl Execution<'_> {
    fn end(&self, status: &'static str, output: Value, error: Value) {
        self.ended.set(true);
        self.scope.end(self.at, Ended { status, output, error, path: self.path.clone() });
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        if !self.ended.get() {
            self.end("cancelled", Value::Null, Value::Null);
        }
    }
}

/// A call in flight. A call that is cancelled at the time of its start is removed.
struct CallRecord<'m> {
    world: &'m World<'m>,
    at: Millis,
    index: usize,
}

fn record_call<'m>(world: &'m World<'m>, called: Called) -> CallRecord<'m> {
    let mut calls = world.calls.borrow_mut();
    let record = CallRecord { world, at: called.at, index: calls.len() };
    calls.push(Some(called));
    record
}

impl Drop for CallRecord<'_> {
    fn drop(&mut self) {
        if self.world.clock.now() == self.at {
            self.world.calls.borrow_mut()[self.index] = None;
        }
    }
}

impl World<'_> {
    fn run<'f>(&'f self, plan: &'f Plan, inputs: Value, prefix: String) -> Part<'f, Outcome> {
        Box::pin(async move {
            let run = Run {
                world: self,
                plan,
                inputs,
                prefix,
                entered: Cell::new(0),
                slots: Slots::new(plan.settings.limits.concurrency),
                failure: RefCell::default(),
            };
            let root = Scope::root();
            match run.run_root(&root).await {
                Ok(output) => Outcome::Completed(output),
                Err(Stop::Cancelled) => Outcome::Cancelled,
                Err(Stop::Failed(failure)) => run.on_failure(&root, failure).await,
            }
        })
    }
}

impl Run<'_> {
    /// Runs the root block and returns the output of the run.
    async fn run_root(&self, root: &Scope<'_>) -> Result<Value, Stop> {
        let last = self.block(root, Plan::ROOT).await?;
        match &self.plan.output {
            Some(template) => Ok(self.value(root, template)?),
            None => Ok(last),
        }
    }

    /// Runs `on_failure`. The run keeps its first failure.
    async fn on_failure(&self, root: &Scope<'_>, failure: Failure) -> Outcome {
        let Some(block) = self.plan.on_failure else { return Outcome::Failed(failure) };
        *self.failure.borrow_mut() = Some(failure.clone());
        let scope = Scope::inside(root, String::new());
        match self.block(&scope, block).await {
            Err(Stop::Cancelled) => Outcome::Cancelled,
            _ => Outcome::Failed(failure),
        }
    }

    /// Runs a block and returns the output of its last step.
    fn block<'f>(&'f self, scope: &'f Scope<'f>, block: BlockIx) -> Part<'f, Result<Value, Stop>> {
        let block = self.plan.block(block);
        let in_dag = |step: &StepIx| matches!(self.plan.step(*step).next, Next::Dependents(_));
        if block.steps.iter().any(in_dag) {
            return Box::pin(self.dag(scope, &block.entry));
        }
        Box::pin(self.sequence(scope, block.entry.first().copied()))
    }

    async fn sequence<'f>(&'f self, scope: &'f Scope<'f>, entry: Option<StepIx>) -> Result<Value, Stop> {
        let mut at = entry;
        let mut last = Value::Null;
        while let Some(step) = at {
            let jump;
            (last, jump) = self.step(scope, step).await?;
            let target = match jump {
                Some(target) => target,
                None => self.next_target(scope, step)?,
            };
            at = match target {
                Target::Step(next) => Some(next),
                Target::End => None,
            };
        }
        Ok(last)
    }

    /// Returns the step that follows a step that ended.
    fn next_target(&self, scope: &Scope<'_>, step: StepIx) -> Result<Target, Failure> {
        match &self.plan.step(step).next {
            Next::End | Next::Dependents(_) => Ok(Target::End),
            Next::Step(next) => Ok(Target::Step(*next)),
            Next::Choose { choices, otherwise } => {
                let failed = |failure| from_step(failure, &scope.path_of(step));
                for choice in choices {
                    if self.holds(scope, &choice.when).map_err(failed)? {
                        return Ok(choice.to);
                    }
                }
                otherwise.ok_or_else(|| failed(no_branch_matched()))
            }
        }
    }

    /// Runs a DAG: each step starts when its dependencies have ended. The last step in the definition gives the output.
    async fn dag<'f>(&'f self, scope: &'f Scope<'f>, entry: &'f [StepIx]) -> Result<Value, Stop> {
        let mut ended: BTreeMap<StepIx, Value> = BTreeMap::new();
        let mut parts = Parts::new(&self.world.clock);
        for step in entry {
            parts.add(*step, self.step(scope, *step));
        }
        while let Some((step, result)) = parts.next().await {
            ended.insert(step, result?.0);
            let Next::Dependents(waiting) = &self.plan.step(step).next else { continue };
            for next in waiting {
                if self.plan.step(*next).needs.iter().all(|need| ended.contains_key(need)) {
                    parts.add(*next, self.step(scope, *next));
                }
            }
        }
        Ok(ended.into_values().next_back().unwrap_or_default())
    }

    /// Runs a step. Returns its output, and the target if it does not continue with the next step.
    fn step<'f>(
        &'f self,
        scope: &'f Scope<'f>,
        at: StepIx,
    ) -> Part<'f, Result<(Value, Option<Target>), Stop>> {
        Box::pin(async move {
            let ended = self.run_step(scope, at).await;
            // Other events at this time may come before the next step.
            self.world.clock.turn().await;
            ended
        })
    }

    async fn run_step<'f>(
        &'f self,
        scope: &'f Scope<'f>,
        at: StepIx,
    ) -> Result<(Value, Option<Target>), Stop> {
        let entry = self.enter(scope, at)?;
        let (status, output, error, jump) = match self.after_approval(&entry).await {
            Ok(StepResult::Continue(output)) => ("done", output, Value::Null, Ok(None)),
            Ok(StepResult::GoTo(output, target)) => ("done", output, Value::Null, Ok(Some(target))),
            Ok(StepResult::Skipped) => ("skipped", Value::Null, Value::Null, Ok(None)),
            Err(Stop::Cancelled) => return Err(Stop::Cancelled),
            Err(Stop::Failed(failure)) => {
                let error = json!(failure);
                let jump = match entry.step.on_error {
                    OnError::Fail => Err(from_step(failure, &entry.path).into()),
                    OnError::Continue => Ok(None),
                    OnError::Goto(target) => Ok(Some(target)),
                };
                ("failed", Value::Null, error, jump)
            }
        };
        self.world.steps.borrow_mut().insert(self.full_path(&entry), status);
        entry.end(status, output.clone(), error);
        jump.map(|target| (output, target))
    }

    /// Returns a path that is unique across runs.
    fn full_path(&self, execution: &Execution<'_>) -> String {
        format!("{}{}", self.prefix, execution.path)
    }

    /// Creates an execution, within the limits of the run.
    fn enter<'f>(&'f self, scope: &'f Scope<'f>, at: StepIx) -> Result<Execution<'f>, Failure> {
        let (step, limits) = (self.plan.step(at), &self.plan.settings.limits);
        let visits = scope.visits(at);
        let again = if visits == 0 { String::new() } else { format!("#{}", visits + 1) };
        let path = format!("{}{}{again}", scope.prefix(), step.id);
        if self.entered.get() >= limits.step_runs || visits >= limits.loop_visits {
            return Err(from_step(Failure::new(FailureKind::Limit, ""), &path));
        }
        scope.visit(at);
        let n = self.entered.get() + 1;
        self.entered.set(n);
        let inside = if again.is_empty() { scope.prefix().to_owned() } else { format!("{path}.") };
        Ok(Execution { scope, at, step, n, path, inside, ended: Cell::new(false) })
    }

    /// Runs a step after its condition and its `needs_human` gate.
    async fn after_approval(&self, execution: &Execution<'_>) -> Result<StepResult, Stop> {
        if let Some(condition) = &execution.step.condition
            && !self.holds(execution.scope, &condition.when)?
        {
            return Ok(StepResult::Skipped);
        }
        if execution.step.needs_human.is_some() {
            if let Kind::Call(call) = &execution.step.kind {
                self.arguments(execution, call)?;
            }
            let answer = self.gate(execution, None).await;
            if answer["approved"] == false {
                return Err(Stop::Cancelled);
            }
        }
        self.perform(execution).await
    }
}

/// Sets the step that failed first.
fn from_step(mut failure: Failure, path: &str) -> Failure {
    failure.step.get_or_insert_with(|| path.into());
    failure
}

fn no_branch_matched() -> Failure {
    invalid("").code("no_branch_matched")
}

/// Returns the delay before the next attempt, or the failure if there is none.
fn retry_delay(step: &Step, attempt: u32, failure: Failure) -> Result<Millis, Failure> {
    let covered = |kinds: &[FailureKind]| {
        kinds.contains(&failure.kind) || (failure.transient && kinds.contains(&FailureKind::Transient))
    };
    match &step.retry {
        Some(retry) if attempt < retry.max_attempts => match retry.retry_on.as_deref() {
            None if matches!(
                failure.kind,
                FailureKind::Permission | FailureKind::Cancelled | FailureKind::Limit
            ) =>
            {
                Err(failure)
            }
            Some(kinds) if !covered(kinds) => Err(failure),
            _ => Ok(i64::try_from(retry.next_delay(attempt + 1).as_millis()).expect("a delay")),
        },
        _ => Err(failure),
    }
}
