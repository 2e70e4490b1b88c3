//! `workflow` steps: start a run of another definition and wait for its end.

use super::decide::{Attempt, DecideResult, Decision};
use super::parts::Started;
use super::phase::Phase;
use super::world::Child;
use super::{Failure, FailureKind, Payload};
use crate::plan::Workflow;

impl Decision<'_> {
    pub(super) fn begin_workflow(&mut self, attempt: &Attempt, workflow: &Workflow) -> DecideResult {
        if let Some(approved) = self.run.approved_workflows.get(&self.step(attempt.step).id).copied()
            && approved != self.world.workflow_hash(workflow)?
        {
            let message = format!(
                "the sub-workflow `{}` has changed since its approval; start a new run to have it approved",
                workflow.name
            );
            let stale = Failure::new(FailureKind::Permission, message).code("approval_stale");
            return self.fail_before_start(attempt, stale);
        }
        let inputs = match self.eval(attempt.scope, &workflow.inputs)? {
            Ok(inputs) => Payload::new(inputs),
            Err(error) => return self.fail_before_start(attempt, error),
        };
        let child = Child { step: &attempt.step_ref, workflow, inputs: &inputs };
        let mut part = self.budget.part().and_check_of(inputs.value());
        let spawned = self.world.spawn(&child, &mut part)?;
        self.budget.settle(&part);
        match spawned {
            Ok(run) => {
                let what = Started::Workflow { definition: workflow.name.clone(), run, input: inputs.hash() };
                self.emit_started(attempt, what, Some(inputs));
                Ok(())
            }
            Err(error) if part.is_exhausted() => {
                self.fail_before_start(attempt, Failure { kind: FailureKind::Limit, ..error })
            }
            Err(error) => self.fail_before_start(attempt, error),
        }
    }

    /// Ends a step with the outcome of its child run.
    pub(super) fn child_ended(
        &mut self,
        n: u32,
        attempt: u32,
        outcome: Result<Payload, Failure>,
    ) -> DecideResult {
        let waits = self
            .run
            .live
            .get(&n)
            .is_some_and(|live| live.attempt == attempt && matches!(live.phase, Phase::Child { .. }));
        match outcome {
            _ if !waits => Ok(()),
            Ok(output) => self.complete(n, output, None),
            Err(error) => self.fail_attempt(n, error),
        }
    }
}
