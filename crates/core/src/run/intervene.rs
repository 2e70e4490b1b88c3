//! Interventions: changes that a human makes to a run in progress.

use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::input::{Edit, Intervention};
use super::parts::{Ending, StepRef};
use super::phase::Phase;

impl Decision<'_> {
    pub(super) fn intervene(&mut self, intervention: Intervention, by: Box<str>) -> DecideResult {
        match intervention {
            Intervention::SetArguments { path, args } => {
                let gate = self.run.find(&path).filter(|(_, live)| matches!(live.phase, Phase::Gate { .. }));
                let gate = gate.map(|(n, _)| n);
                self.emit(Event::ArgumentsEdited { path, args, by });
                match gate {
                    Some(n) => self.renew_approval(n),
                    None => Ok(()),
                }
            }
            Intervention::SetValue(Edit { id, value }) => {
                self.emit(Event::ValueSet { id, value, by });
                Ok(())
            }
            Intervention::Skip { path } => match self.changeable(&path) {
                Some(n) => self.skip(n, &format!("skipped by {by}")),
                None => Ok(()),
            },
            Intervention::SupplyResult { path, output } => match self.changeable(&path) {
                Some(n) if self.run.members_of(n).next().is_none() => self.complete(n, output, Some(&by)),
                Some(n) => self.end_step(n, Ending::Completed { output: output.value().clone(), by }),
                None => Ok(()),
            },
        }
    }

    /// Finds an execution that a human may end.
    fn changeable(&self, path: &str) -> Option<u32> {
        self.run.find(path).map(|(n, _)| n).filter(|n| !self.run.is_doomed(*n))
    }

    /// Replaces an open approval, because the arguments changed.
    fn renew_approval(&mut self, n: u32) -> DecideResult {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        if !step.needs_human {
            return Ok(());
        }
        let step_ref = StepRef { n, path: live.path.clone(), attempt: live.attempt };
        let entry = Attempt { step_ref, scope: live.scope, step: live.step };
        self.request_approval(&entry)
    }
}
