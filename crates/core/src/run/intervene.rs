//! Interventions: changes that a human makes to a run in progress.

use super::decide::{Attempt, DecideResult, Decision};
use super::event::Event;
use super::input::{Edit, Intervention};
use super::parts::StepRef;
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
            Intervention::Skip { path } => {
                if let Some((n, _)) = self.run.find(&path) {
                    self.skip(n, &format!("skipped by {by}"));
                }
                Ok(())
            }
            Intervention::SupplyResult { path, output } => match self.run.find(&path).map(|(n, _)| n) {
                Some(n) => {
                    self.cancel_blocks(n);
                    self.complete(n, output, Some(&by))
                }
                None => Ok(()),
            },
        }
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
