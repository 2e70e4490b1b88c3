//! What each kind of step does.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use steprail_core::plan::{Approve, Branch, Foreach, Kind, OnDeny, Parallel, Sleep, Wait, Workflow};
use steprail_core::run::{Failure, FailureKind, Millis};
use steprail_core::spec::value::Period;
use steprail_core::steps::{OnFail, OnTimeout};

use super::time::Parts;
use super::values::{Scope, check_inputs, invalid};
use super::{Entry, Part, Run, Stop, Went, after, no_branch_matched};
use crate::common::oracle::{APPROVER, Outcome};

/// How blocks ended that ran at the same time.
type Results = BTreeMap<u32, Result<Value, Failure>>;

impl Run<'_> {
    pub(super) async fn perform(&self, entry: &Entry<'_>) -> Result<Went, Stop> {
        let timeout = entry.step.timeout_ms;
        let block: Part<'_, Result<Value, Stop>> = match &entry.step.kind {
            Kind::Call(call) => return Ok(self.call(entry, call).await?),
            Kind::Approve(approve) => return self.approve(entry, approve).await,
            Kind::Sleep(sleep) => return Ok(Went::On(self.sleep(entry, sleep).await?)),
            Kind::Workflow(workflow) => return Ok(Went::On(self.workflow(entry, workflow).await?)),
            Kind::Pass => return Ok(Went::On(Value::Null)),
            Kind::Foreach(foreach) => Box::pin(self.foreach(entry, foreach)),
            Kind::Parallel(parallel) => Box::pin(self.parallel(entry, parallel)),
            Kind::Branch(branch) => Box::pin(self.branch(entry, branch)),
            Kind::Wait(wait) => Box::pin(self.wait(entry, wait)),
        };
        match self.world.clock.within(timeout, block).await {
            Some(output) => Ok(Went::On(output?)),
            None => Err(timed_out().into()),
        }
    }

    async fn foreach(&self, entry: &Entry<'_>, foreach: &Foreach) -> Result<Value, Stop> {
        let Value::Array(items) = self.value(entry.scope, &foreach.items)? else {
            return Err(invalid("").into());
        };
        let count = u32::try_from(items.len()).expect("a number of items");
        if count > self.plan.settings.limits.foreach_items {
            return Err(Failure::new(FailureKind::Limit, "").into());
        }
        let enter = |index: u32| -> Part<'_, Result<Value, Stop>> {
            let item = items[index as usize].clone();
            let prefix = format!("{}[{index}].", entry.path);
            Box::pin(async move {
                let scope = Scope::item(entry.scope, prefix, entry.at, item);
                self.block(&scope, foreach.body).await
            })
        };
        let results = self.at_once(count, foreach.concurrency, foreach.on_item_fail, &enter).await?;
        Ok(results.into_values().map(|result| told(result, foreach.on_item_fail)).collect())
    }

    async fn parallel(&self, entry: &Entry<'_>, parallel: &Parallel) -> Result<Value, Stop> {
        let count = u32::try_from(parallel.branches.len()).expect("a number of branches");
        let enter = |index: u32| -> Part<'_, Result<Value, Stop>> {
            Box::pin(async move {
                let scope = Scope::inside(entry.scope, entry.inside.clone());
                self.block(&scope, parallel.branches[index as usize]).await
            })
        };
        let at_once = parallel.concurrency.unwrap_or(count);
        let results = self.at_once(count, at_once, parallel.on_any_fail, &enter).await?;
        let named = results
            .into_iter()
            .map(|(index, result)| (self.name_of(parallel, index), told(result, parallel.on_any_fail)));
        Ok(Value::Object(named.collect::<Map<_, _>>()))
    }

    /// What a branch is called: its name, its only step's id, or its number.
    fn name_of(&self, parallel: &Parallel, index: u32) -> String {
        let block = self.plan.block(parallel.branches[index as usize]);
        match (&block.name, block.steps.as_slice()) {
            (Some(name), _) => name.to_string(),
            (None, [only]) => self.plan.step(*only).id.to_string(),
            _ => index.to_string(),
        }
    }

    /// Runs blocks, some of them at the same time. One that fails stops all, unless failing is tolerated.
    async fn at_once<'f>(
        &'f self,
        count: u32,
        at_once: u32,
        on_fail: OnFail,
        enter: &dyn Fn(u32) -> Part<'f, Result<Value, Stop>>,
    ) -> Result<Results, Stop> {
        let mut results = Results::new();
        let mut parts = Parts::new(&self.world.clock);
        let mut rest = 0..count;
        loop {
            while parts.len() < at_once as usize
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

    async fn branch(&self, entry: &Entry<'_>, branch: &Branch) -> Result<Value, Stop> {
        let mut chosen = branch.otherwise;
        for case in &branch.cases {
            if self.holds(entry.scope, &case.when)? {
                chosen = Some(case.then);
                break;
            }
        }
        let chosen = chosen.ok_or_else(no_branch_matched)?;
        let scope = Scope::inside(entry.scope, entry.inside.clone());
        self.block(&scope, chosen).await
    }

    async fn approve(&self, entry: &Entry<'_>, approve: &Approve) -> Result<Went, Stop> {
        if let Some(prompt) = &approve.prompt {
            self.text(entry.scope, prompt)?;
        }
        let answer = self.gate(entry, Some(approve)).await;
        match approve.on_deny {
            _ if answer["approved"] == true => Ok(Went::On(answer)),
            OnDeny::Cancel => Err(Stop::Cancelled),
            OnDeny::Continue => Ok(Went::On(answer)),
            OnDeny::Goto(target) => Ok(Went::To(answer, target)),
            OnDeny::Fail => {
                let kind =
                    if answer["by"].is_null() { FailureKind::Timeout } else { FailureKind::Permission };
                Err(Failure::new(kind, "").code("denied").into())
            }
        }
    }

    /// Asks a human; a gate may have a time until which it is answered.
    pub(super) async fn gate(&self, entry: &Entry<'_>, approve: Option<&Approve>) -> Value {
        let decision = self.world.oracle.decision(&self.full_path(entry));
        let may_decide = approve.is_some_and(|approve| {
            let named = approve.approvers.iter().any(|approver| **approver == *decision.by);
            approve.allow_self && (approve.approvers.is_empty() || named)
        });
        let by = if may_decide { decision.by } else { APPROVER };
        let closes = approve.filter(|approve| approve.on_timeout == OnTimeout::Deny);
        let timeout = closes.and(entry.step.timeout_ms);
        let timeout = timeout.map(|millis| i64::try_from(millis).expect("a timeout"));
        if let Some(timeout) = timeout.filter(|timeout| *timeout <= decision.after) {
            self.world.clock.sleep(timeout).await;
            return json!({ "approved": false, "by": null, "reason": "timeout" });
        }
        self.world.clock.sleep(decision.after).await;
        let no = (!decision.approved).then(|| "denied".to_owned());
        json!({ "approved": decision.approved, "by": by, "reason": decision.reason.or(no) })
    }

    async fn sleep(&self, entry: &Entry<'_>, sleep: &Sleep) -> Result<Value, Failure> {
        let now = self.world.clock.now();
        let after = |millis: u64| now + i64::try_from(millis).expect("a length of time");
        let due: Millis = match sleep {
            Sleep::For(millis) => after(*millis),
            Sleep::Until(moment) => *moment,
            Sleep::ForComputed(template) => match self.text_value(entry.scope, template)? {
                Value::Number(secs) => after(secs.as_u64().ok_or_else(|| invalid(""))? * 1000),
                Value::String(text) => after(Period::parse(&text).map_err(|error| invalid(&error))?.millis),
                _ => return Err(invalid("")),
            },
            Sleep::UntilComputed(_) => unimplemented!("nothing generates it"),
        };
        self.world.clock.until(due).await;
        Ok(Value::Null)
    }

    async fn wait(&self, entry: &Entry<'_>, wait: &Wait) -> Result<Value, Stop> {
        let event = self.text(entry.scope, &wait.event)?;
        let correlate = wait.correlate.as_ref();
        let correlate = correlate.map(|template| self.value(entry.scope, template)).transpose()?;
        let after = self.world.oracle.signal(&self.full_path(entry));
        self.world.clock.sleep(after).await;
        Ok(self.world.oracle.payload(&event, correlate.as_ref()))
    }

    async fn workflow(&self, entry: &Entry<'_>, workflow: &Workflow) -> Result<Value, Failure> {
        for attempt in 1.. {
            let inputs = self.value(entry.scope, &workflow.inputs)?;
            let plan = self.world.plans.get(&*workflow.name);
            let plan = plan.ok_or_else(|| Failure::new(FailureKind::NotFound, ""))?;
            let inputs = check_inputs(plan, &inputs).ok_or_else(|| invalid(""))?;
            let prefix = format!("{}{}@{attempt}/", self.prefix, entry.path);
            let run = self.world.run(plan, inputs, prefix);
            let failure = match self.world.clock.within(entry.step.timeout_ms, run).await {
                Some(Outcome::Completed(output)) => return Ok(output),
                Some(Outcome::Failed(failure)) => failure,
                Some(Outcome::Cancelled) => Failure::new(FailureKind::Cancelled, ""),
                None => timed_out(),
            };
            self.world.clock.sleep(after(entry.step, attempt, failure)?).await;
        }
        unreachable!("attempts are bounded")
    }
}

fn timed_out() -> Failure {
    Failure::new(FailureKind::Timeout, "")
}

/// A result as the output of the whole shows it.
fn told(result: Result<Value, Failure>, on_fail: OnFail) -> Value {
    match (on_fail, result) {
        (OnFail::Abort, result) => result.unwrap_or_default(),
        (OnFail::Continue, Ok(output)) => json!({ "status": "done", "output": output }),
        (OnFail::Continue, Err(failure)) => json!({ "status": "failed", "error": failure }),
    }
}
