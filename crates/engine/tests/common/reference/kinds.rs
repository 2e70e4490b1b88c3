//! The behaviour of each step kind.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use steprail_core::plan::{Approve, Branch, Foreach, Kind, OnDeny, Parallel, Sleep, Wait, Workflow};
use steprail_core::run::{Failure, FailureKind, Millis};
use steprail_core::spec::value::DurationSpec;
use steprail_core::steps::{OnFail, OnTimeout};

use super::time::Parts;
use super::values::{Scope, check_inputs, invalid};
use super::{Execution, Part, Run, StepResult, Stop, no_branch_matched, retry_delay};
use crate::common::oracle::{APPROVER, Outcome};

/// The results of concurrent blocks.
type Results = BTreeMap<u32, Result<Value, Failure>>;

impl Run<'_> {
    pub(super) async fn perform(&self, execution: &Execution<'_>) -> Result<StepResult, Stop> {
        let timeout = execution.step.timeout_ms;
        let block: Part<'_, Result<Value, Stop>> = match &execution.step.kind {
            Kind::Call(call) => return Ok(self.call(execution, call).await?),
            Kind::Approve(approve) => return self.approve(execution, approve).await,
            Kind::Sleep(sleep) => return Ok(StepResult::Continue(self.sleep(execution, sleep).await?)),
            Kind::Workflow(workflow) => {
                return Ok(StepResult::Continue(self.workflow(execution, workflow).await?));
            }
            Kind::Let(values) => return Ok(StepResult::Continue(self.compute(execution.scope, values)?)),
            Kind::Pass => return Ok(StepResult::Continue(Value::Null)),
            Kind::Foreach(foreach) => Box::pin(self.foreach(execution, foreach)),
            Kind::Parallel(parallel) => Box::pin(self.parallel(execution, parallel)),
            Kind::Branch(branch) => Box::pin(self.branch(execution, branch)),
            Kind::Wait(wait) => Box::pin(self.wait(execution, wait)),
        };
        match self.world.clock.within(timeout, block).await {
            Some(output) => Ok(StepResult::Continue(output?)),
            None => Err(timed_out().into()),
        }
    }

    async fn foreach(&self, execution: &Execution<'_>, foreach: &Foreach) -> Result<Value, Stop> {
        let Value::Array(items) = self.value(execution.scope, &foreach.items)? else {
            return Err(invalid("").into());
        };
        let count = u32::try_from(items.len()).expect("a number of items");
        if count > self.plan.settings.limits.foreach_items {
            return Err(Failure::new(FailureKind::Limit, "").into());
        }
        let enter = |index: u32| -> Part<'_, Result<Value, Stop>> {
            let item = items[index as usize].clone();
            let prefix = format!("{}[{index}].", execution.path);
            Box::pin(async move {
                let scope = Scope::item(execution.scope, prefix, execution.at, item);
                self.block(&scope, foreach.body).await
            })
        };
        let results = self.run_concurrently(count, foreach.concurrency, foreach.on_item_fail, &enter).await?;
        Ok(results.into_values().map(|result| block_result(result, foreach.on_item_fail)).collect())
    }

    async fn parallel(&self, execution: &Execution<'_>, parallel: &Parallel) -> Result<Value, Stop> {
        let count = u32::try_from(parallel.branches.len()).expect("a number of branches");
        let enter = |index: u32| -> Part<'_, Result<Value, Stop>> {
            Box::pin(async move {
                let scope = Scope::inside(execution.scope, execution.inside.clone());
                self.block(&scope, parallel.branches[index as usize]).await
            })
        };
        let limit = parallel.concurrency.unwrap_or(count);
        let results = self.run_concurrently(count, limit, parallel.on_any_fail, &enter).await?;
        let named = results.into_iter().map(|(index, result)| {
            (self.name_of(parallel, index), block_result(result, parallel.on_any_fail))
        });
        Ok(Value::Object(named.collect::<Map<_, _>>()))
    }

    /// Returns the key of a branch's result: its name, the id of its only step, or its number.
    fn name_of(&self, parallel: &Parallel, index: u32) -> String {
        let block = self.plan.block(parallel.branches[index as usize]);
        match (&block.name, block.steps.as_slice()) {
            (Some(name), _) => name.to_string(),
            (None, [only]) => self.plan.step(*only).id.to_string(),
            _ => index.to_string(),
        }
    }

    /// Runs blocks concurrently, up to a limit. A failed block cancels the others, unless failures are tolerated.
    async fn run_concurrently<'f>(
        &'f self,
        count: u32,
        limit: u32,
        on_fail: OnFail,
        enter: &dyn Fn(u32) -> Part<'f, Result<Value, Stop>>,
    ) -> Result<Results, Stop> {
        let mut results = Results::new();
        let mut parts = Parts::new(&self.world.clock);
        let mut rest = 0..count;
        loop {
            while parts.len() < limit as usize
                && let Some(index) = rest.next()
            {
                parts.add(index, enter(index));
            }
            let Some((index, result)) = parts.next().await else { return Ok(results) };
            let result = match result {
                Err(Stop::Failed(failure)) if on_fail == OnFail::Continue => Err(failure),
                other => Ok(other?),
            };
            results.insert(index, result);
        }
    }

    async fn branch(&self, execution: &Execution<'_>, branch: &Branch) -> Result<Value, Stop> {
        let mut chosen = branch.otherwise;
        for case in &branch.cases {
            if self.holds(execution.scope, &case.when)? {
                chosen = Some(case.then);
                break;
            }
        }
        let chosen = match chosen {
            Some(chosen) => chosen,
            None if branch.must_match => return Err(no_branch_matched().into()),
            None => return Ok(Value::Null),
        };
        let scope = Scope::inside(execution.scope, execution.inside.clone());
        self.block(&scope, chosen).await
    }

    async fn approve(&self, execution: &Execution<'_>, approve: &Approve) -> Result<StepResult, Stop> {
        if let Some(prompt) = &approve.gate.prompt {
            self.text(execution.scope, prompt)?;
        }
        let answer = self.gate(execution, Some(approve)).await;
        let expired = answer["by"].is_null();
        match approve.after_denial(expired && approve.gate.rules.on_timeout_goto.is_some()) {
            _ if answer["approved"] == true => Ok(StepResult::Continue(answer)),
            _ if expired && approve.gate.rules.on_timeout == OnTimeout::Fail => Err(timed_out().into()),
            OnDeny::Cancel => Err(Stop::Cancelled),
            OnDeny::Continue => Ok(StepResult::Continue(answer)),
            OnDeny::Goto(target) => Ok(StepResult::GoTo(answer, target)),
            OnDeny::Fail => {
                let kind = if expired { FailureKind::Timeout } else { FailureKind::Permission };
                Err(Failure::new(kind, "").code("denied").into())
            }
        }
    }

    /// Waits for a decision at a gate, until its deadline.
    pub(super) async fn gate(&self, execution: &Execution<'_>, approve: Option<&Approve>) -> Value {
        let decision = self.world.oracle.decision(&self.full_path(execution));
        let may_decide = approve.is_some_and(|approve| {
            let named = approve.gate.rules.approvers.iter().any(|approver| **approver == *decision.by);
            approve.gate.rules.allow_self && (approve.gate.rules.approvers.is_empty() || named)
        });
        let by = if may_decide { decision.by } else { APPROVER };
        let closes = approve.filter(|approve| approve.gate.rules.closes_on_timeout());
        let timeout = closes.and(execution.step.timeout_ms);
        let timeout = timeout.map(|millis| i64::try_from(millis).expect("a timeout"));
        if let Some(timeout) = timeout.filter(|timeout| *timeout <= decision.after) {
            self.world.clock.sleep(timeout).await;
            return json!({ "approved": false, "by": null, "reason": "timeout" });
        }
        self.world.clock.sleep(decision.after).await;
        let no = (!decision.approved).then(|| "denied".to_owned());
        json!({ "approved": decision.approved, "by": by, "reason": decision.reason.or(no) })
    }

    async fn sleep(&self, execution: &Execution<'_>, sleep: &Sleep) -> Result<Value, Failure> {
        let now = self.world.clock.now();
        let after = |millis: u64| now + i64::try_from(millis).expect("a duration");
        let due: Millis = match sleep {
            Sleep::For(millis) => after(*millis),
            Sleep::Until(moment) => *moment,
            Sleep::ForComputed(template) => match self.text_value(execution.scope, template)? {
                Value::Number(secs) => after(secs.as_u64().ok_or_else(|| invalid(""))? * 1000),
                Value::String(text) => {
                    after(DurationSpec::parse(&text).map_err(|error| invalid(&error))?.millis)
                }
                _ => return Err(invalid("")),
            },
            Sleep::UntilComputed(_) => unimplemented!("nothing generates it"),
        };
        self.world.clock.until(due).await;
        Ok(Value::Null)
    }

    async fn wait(&self, execution: &Execution<'_>, wait: &Wait) -> Result<Value, Stop> {
        let event = self.text(execution.scope, &wait.event)?;
        let correlate = wait.correlate.as_ref();
        let correlate = correlate.map(|template| self.value(execution.scope, template)).transpose()?;
        let after = self.world.oracle.signal(&self.full_path(execution));
        self.world.clock.sleep(after).await;
        Ok(self.world.oracle.payload(&event, correlate.as_ref()))
    }

    async fn workflow(&self, execution: &Execution<'_>, workflow: &Workflow) -> Result<Value, Failure> {
        for attempt in 1.. {
            let inputs = self.value(execution.scope, &workflow.inputs)?;
            let plan = self.world.plans.get(&*workflow.name);
            let plan = plan.ok_or_else(|| Failure::new(FailureKind::NotFound, ""))?;
            let inputs = check_inputs(plan, &inputs).ok_or_else(|| invalid(""))?;
            let prefix = format!("{}{}@{attempt}/", self.prefix, execution.path);
            let run = self.world.run(plan, inputs, prefix);
            let failure = match self.world.clock.within(execution.step.timeout_ms, run).await {
                Some(Outcome::Completed(output)) => return Ok(output),
                Some(Outcome::Failed(failure)) => failure,
                Some(Outcome::Cancelled) => Failure::new(FailureKind::Cancelled, ""),
                None => timed_out(),
            };
            self.world.clock.sleep(retry_delay(execution.step, attempt, failure)?).await;
        }
        unreachable!("attempts are bounded")
    }
}

fn timed_out() -> Failure {
    Failure::new(FailureKind::Timeout, "")
}

/// Returns the result of a block as it appears in the output of the step.
fn block_result(result: Result<Value, Failure>, on_fail: OnFail) -> Value {
    match (on_fail, result) {
        (OnFail::Abort, result) => result.unwrap_or_default(),
        (OnFail::Continue, Ok(output)) => json!({ "status": "done", "output": output }),
        (OnFail::Continue, Err(failure)) => json!({ "status": "failed", "error": failure }),
    }
}
