//! `workflow`: another run, and waiting for it.

use super::decide::{Decided, Decision, Entry};
use super::parts::Started;
use super::state::Phase;
use super::world::Child;
use super::{Failure, Payload};
use crate::plan::Workflow;

impl Decision<'_> {
    pub(super) fn begin_workflow(&mut self, at: &Entry, workflow: &Workflow) -> Decided {
        let inputs = match self.eval(at.scope, &workflow.inputs)? {
            Ok(inputs) => Payload::new(inputs),
            Err(error) => return self.fail_entry(at, error),
        };
        let child = Child { step: &at.step_ref, definition: &workflow.name, inputs: &inputs };
        match self.world.spawn(&child)? {
            Ok(run) => {
                let what = Started::Workflow { definition: workflow.name.clone(), run, input: inputs.hash() };
                self.started(at, what, Some(inputs));
                Ok(())
            }
            Err(error) => self.fail_entry(at, error),
        }
    }

    /// The run that a step waits for ended.
    pub(super) fn child_ended(&mut self, n: u32, attempt: u32, outcome: Result<Payload, Failure>) -> Decided {
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
