//! What a human changes in a run that is under way.

use super::decide::{Decided, Decision, Entry};
use super::event::Event;
use super::input::{Edit, Intervention};
use super::parts::StepRef;
use super::state::Phase;

impl Decision<'_> {
    pub(super) fn intervene(&mut self, intervention: Intervention, by: Box<str>) -> Decided {
        match intervention {
            Intervention::SetArguments { path, args } => {
                let gate = self.run.find(&path).filter(|(_, live)| matches!(live.phase, Phase::Gate { .. }));
                let gate = gate.map(|(n, _)| n);
                self.emit(Event::ArgumentsEdited { path, args, by });
                match gate {
                    Some(n) => self.ask_again(n),
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

    /// The arguments changed after the question was asked: the old question is void.
    fn ask_again(&mut self, n: u32) -> Decided {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        if !step.needs_human {
            return Ok(());
        }
        let step_ref = StepRef { n, path: live.path.clone(), attempt: live.attempt };
        let entry = Entry { step_ref, scope: live.scope, step: live.step };
        self.gate_before(&entry)
    }
}
