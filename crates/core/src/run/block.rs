//! `parallel` and `branch` steps, and the start and end of blocks, including those of `foreach`.

use serde_json::{Map, Value};

use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::flow::no_branch_matched;
use super::parts::{Next, ScopeKey, Started};
use super::payload::fits;
use super::phase::{Phase, Progress};
use super::values::Evaluated;
use super::{Failure, Payload, WorldError};
use crate::plan::{Branch, Foreach, Kind, Parallel, Plan};
use crate::steps::OnFail;

impl Decision<'_> {
    pub(super) fn begin_parallel(&mut self, attempt: &Attempt, parallel: &Parallel) -> DecideResult {
        let branches = u32::try_from(parallel.branches.len()).unwrap_or(u32::MAX);
        self.emit_started(attempt, Started::Parallel { branches }, None);
        self.blocks_moved(attempt.n())
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
        self.emit_started(attempt, Started::Branch {}, None);
        let Some(index) = chosen.or(otherwise) else { return self.fail(attempt.n(), no_branch_matched()) };
        self.emit_branch_taken(&attempt.step_ref, Next::Case(index));
        self.enter_block(ScopeKey { n: attempt.n(), index })
    }

    /// Enters further blocks, up to the concurrency of the step.
    pub(super) fn enter_more(&mut self, n: u32) -> DecideResult {
        let Some((_, step)) = self.live(n) else { return Ok(()) };
        let concurrency = match &step.kind {
            Kind::Foreach(foreach) => foreach.concurrency,
            Kind::Parallel(parallel) => parallel.concurrency.unwrap_or(u32::MAX),
            _ => 1,
        };
        loop {
            let Some(Phase::Blocks(progress)) = self.run.live.get(&n).map(|live| &live.phase) else {
                return Ok(());
            };
            let open = u32::try_from(progress.open.len()).unwrap_or(u32::MAX);
            if progress.next >= progress.total || open >= concurrency {
                return Ok(());
            }
            let scope = ScopeKey { n, index: progress.next };
            let has_steps =
                self.block_of(scope).is_some_and(|block| !self.plan.block(block).entry.is_empty());
            if !has_steps {
                self.end_empty(scope);
                continue;
            }
            self.enter_block(scope)?;
            // The block was not entered, because the run has reached a limit.
            if !self.run.scopes.contains_key(&scope) {
                return Ok(());
            }
        }
    }

    /// Completes a block without steps.
    fn end_empty(&mut self, scope: ScopeKey) {
        if let Some(step) = self.run.step_ref(scope.n) {
            self.emit(Event::BlockCompleted { step, index: scope.index, result: None, error: None });
        }
    }

    /// Ends a block, and fails or continues the step that it belongs to.
    pub(super) fn block_ended(
        &mut self,
        scope: ScopeKey,
        result: Option<u32>,
        error: Option<Failure>,
    ) -> DecideResult {
        let Some(step) = self.run.step_ref(scope.n) else { return Ok(()) };
        let failed = error.clone();
        self.emit(Event::BlockCompleted { step, index: scope.index, result, error });
        match failed {
            Some(error) if !self.tolerates(scope.n) => self.fail(scope.n, error),
            _ => self.blocks_moved(scope.n),
        }
    }

    /// Enters further blocks, or completes the step if all have ended.
    pub(super) fn blocks_moved(&mut self, n: u32) -> DecideResult {
        self.enter_more(n)?;
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        let Phase::Blocks(progress) = &live.phase else { return Ok(()) };
        if progress.ended < progress.total {
            return Ok(());
        }
        let progress = progress.clone();
        let output = match &step.kind {
            Kind::Foreach(foreach) => self.list_of_results(&progress, foreach)?,
            Kind::Parallel(parallel) => self.map_of_results(&progress, parallel)?,
            _ => match progress.results.into_values().next() {
                Some(Ok(Some(n))) => Ok(self.output(n)?),
                _ => Ok(Payload::default()),
            },
        };
        match output {
            Ok(output) => self.complete(n, output, None),
            Err(error) => self.fail(n, error),
        }
    }

    fn tolerates(&self, n: u32) -> bool {
        let on_fail = match self.live(n).map(|(_, step)| &step.kind) {
            Some(Kind::Foreach(foreach)) => foreach.on_item_fail,
            Some(Kind::Parallel(parallel)) => parallel.on_any_fail,
            _ => OnFail::Abort,
        };
        on_fail == OnFail::Continue
    }

    fn list_of_results(&mut self, progress: &Progress, foreach: &Foreach) -> Evaluated<Payload> {
        let (mut list, mut bytes) = (Vec::with_capacity(progress.results.len()), 0);
        for result in progress.results.values() {
            list.push(self.result_value(result, foreach.on_item_fail, &mut bytes)?);
            // Checked in the loop, so that the list never grows far beyond the limit in memory.
            if let Err(error) = fits(&Value::Null, bytes) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(Payload::new(Value::Array(list))))
    }

    fn map_of_results(&mut self, progress: &Progress, parallel: &Parallel) -> Evaluated<Payload> {
        let (mut map, mut bytes) = (Map::new(), 0);
        for (index, result) in &progress.results {
            let name = branch_name(self.plan, parallel, *index);
            map.insert(name, self.result_value(result, parallel.on_any_fail, &mut bytes)?);
            if let Err(error) = fits(&Value::Null, bytes) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(Payload::new(Value::Object(map))))
    }

    fn result_value(
        &mut self,
        result: &Result<Option<u32>, Failure>,
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
