//! `parallel` and `branch` steps, and the start and end of blocks, including those of `foreach`.

use serde_json::{Map, Value};

use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::flow::no_branch_matched;
use super::owed::Collected;
use super::parts::{Next, ScopeKey, Started};
use super::payload::fits;
use super::phase::Phase;
use super::values::Evaluated;
use super::{Failure, Payload, WorldError};
use crate::plan::{Branch, Foreach, Kind, Parallel, Plan};
use crate::steps::OnFail;

impl Decision<'_> {
    pub(super) fn begin_parallel(&mut self, attempt: &Attempt, parallel: &Parallel) {
        let branches = u32::try_from(parallel.branches.len()).unwrap_or(u32::MAX);
        self.emit_started(attempt, Started::Parallel { branches }, None);
    }

    pub(super) fn begin_branch(&mut self, attempt: &Attempt, branch: &Branch) -> DecideResult {
        let mut chosen = None;
        for (index, case) in (0u32..).zip(&branch.cases) {
            match self.holds(attempt.scope, &case.when)? {
                Ok(true) => {
                    chosen = Some(index);
                    break;
                }
                Ok(false) => {}
                Err(error) => return self.fail_before_start(attempt, error),
            }
        }
        let otherwise = branch.otherwise.and_then(|_| u32::try_from(branch.cases.len()).ok());
        let Some(index) = chosen.or(otherwise) else {
            if branch.must_match {
                self.emit_started(attempt, Started::Branch {}, None);
                return self.fail(attempt.n(), no_branch_matched());
            }
            self.emit_started(attempt, Started::Pass {}, None);
            return self.complete(attempt.n(), Payload::default(), None);
        };
        self.emit_started(attempt, Started::Branch {}, None);
        self.emit_branch_taken(&attempt.step_ref, Next::Case(index));
        self.enter_block(ScopeKey { n: attempt.n(), index })
    }

    /// Makes the next transition of a step with blocks: it ends early, enters a block, or completes.
    pub(super) fn continue_step(&mut self, n: u32) -> DecideResult {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        if let Some(ending) = &live.ending {
            let ending = (**ending).clone();
            return self.end_step(n, ending);
        }
        let Phase::Blocks(progress) = &live.phase else { return Ok(()) };
        if !progress.is_complete() {
            let index = progress.next;
            return self.enter_block(ScopeKey { n, index });
        }
        let output = match &step.kind {
            Kind::Foreach(foreach) => self.list_of_results(n, foreach)?,
            Kind::Parallel(parallel) => self.map_of_results(n, parallel)?,
            _ => Some(self.result_of_branch(n)?),
        };
        match output {
            Some(Ok(output)) => self.complete(n, output, None),
            Some(Err(error)) => self.fail(n, error),
            None => Ok(()),
        }
    }

    /// Enters a block of a step: starts its first entry step. A block without steps ends at once.
    fn enter_block(&mut self, scope: ScopeKey) -> DecideResult {
        let plan = self.plan;
        let block = self.run.block_of(plan, scope).map(|block| plan.block(block));
        if let Some(first) = block.and_then(|block| block.entry.first()) {
            return self.enter(scope, *first);
        }
        self.block_ended(scope, None, None);
        Ok(())
    }

    /// Ends a block. The step that it belongs to continues, or fails with it.
    pub(super) fn block_ended(&mut self, scope: ScopeKey, result: Option<u32>, error: Option<Failure>) {
        if let Some(step) = self.run.step_ref(scope.n) {
            self.emit(Event::BlockCompleted { step, index: scope.index, result, error });
        }
    }

    /// Returns the output of a `foreach`; `None` if results are still to be read in further decisions.
    fn list_of_results(&mut self, n: u32, foreach: &Foreach) -> Result<Collection, WorldError> {
        let collected = self.collect(n, foreach.on_item_fail)?;
        Ok(collected.map(|values| values.map(|values| Payload::new(Value::Array(values)))))
    }

    fn map_of_results(&mut self, n: u32, parallel: &Parallel) -> Result<Collection, WorldError> {
        let collected = self.collect(n, parallel.on_any_fail)?;
        let named = |values: Vec<Value>| -> Map<String, Value> {
            (0..).zip(values).map(|(index, value)| (branch_name(self.plan, parallel, index), value)).collect()
        };
        Ok(collected.map(|values| values.map(|values| Payload::new(Value::Object(named(values))))))
    }

    fn result_of_branch(&mut self, n: u32) -> Evaluated<Payload> {
        let result = match &self.run.live.get(&n).map(|live| &live.phase) {
            Some(Phase::Blocks(progress)) => progress.results.values().next().cloned(),
            _ => None,
        };
        match result {
            Some(Ok(Some(n))) => self.output(n).map(Ok),
            _ => Ok(Ok(Payload::default())),
        }
    }

    /// Reads the results of the blocks of a step, as long as there is room. What was read is kept for the next decision.
    fn collect(
        &mut self,
        n: u32,
        on_fail: OnFail,
    ) -> Result<Option<Result<Vec<Value>, Failure>>, WorldError> {
        let mut collected = std::mem::take(&mut self.run.scratch.collected);
        if collected.n != n {
            collected = Collected { n, ..Collected::default() };
        }
        loop {
            let Some(Phase::Blocks(progress)) = self.run.live.get(&n).map(|live| &live.phase) else {
                return Ok(None);
            };
            let next = u32::try_from(collected.values.len()).unwrap_or(u32::MAX);
            if next >= progress.total {
                return Ok(Some(Ok(collected.values)));
            }
            let result = progress.results.get(&next).cloned().unwrap_or(Ok(None));
            if !self.has_room() {
                self.run.scratch.collected = collected;
                self.is_cut = true;
                return Ok(None);
            }
            self.reads += 1;
            let value = self.result_value(&result, on_fail, &mut collected.bytes)?;
            collected.values.push(value);
            // Checked in the loop, so that the list never grows far beyond the limit in memory.
            if let Err(error) = fits(&Value::Null, collected.bytes) {
                return Ok(Some(Err(error)));
            }
        }
    }

    fn result_value(
        &mut self,
        result: &Result<Option<u32>, Box<Failure>>,
        on_fail: OnFail,
        bytes: &mut usize,
    ) -> Result<Value, WorldError> {
        let output = match result {
            Ok(Some(n)) => {
                let output = self.output(*n)?;
                *bytes += output.json().len();
                output.value().clone()
            }
            _ => Value::Null,
        };
        Ok(match (on_fail, result) {
            (OnFail::Abort, _) => output,
            (OnFail::Continue, Ok(_)) => serde_json::json!({ "status": "done", "output": output }),
            (OnFail::Continue, Err(error)) => {
                serde_json::json!({ "status": "failed", "error": error })
            }
        })
    }
}

/// The output of a step with blocks, or why it cannot be formed; `None` while results are still to be read.
type Collection = Option<Result<Payload, Failure>>;

/// Returns the key of a branch's result: the name of the branch, the id of its only step, or its number.
fn branch_name(plan: &Plan, parallel: &Parallel, index: u32) -> String {
    let block = parallel.branches.get(index as usize).map(|block| plan.block(*block));
    match block {
        Some(block) => match (&block.name, block.steps.as_slice()) {
            (Some(name), _) => name.to_string(),
            (None, [only]) => plan.step(*only).id.to_string(),
            _ => index.to_string(),
        },
        None => index.to_string(),
    }
}
