//! Interventions: changes that a human makes to a run in progress.

use super::decide::{DecideResult, Decision};
use super::event::Event;
use super::input::{Actor, Edit, Intervention};
use super::parts::Ending;

impl Decision<'_> {
    pub(super) fn intervene(&mut self, intervention: Intervention, by: Actor) -> DecideResult {
        let Actor { user: by, provenance } = by;
        match intervention {
            Intervention::SetArguments { path, args } => {
                self.emit(Event::ArgumentsEdited { path, args, by, provenance });
                self.renew_stale_gates()
            }
            Intervention::SetValue(Edit { id, value }) => {
                self.emit(Event::ValueSet { id, value, by, provenance });
                self.renew_stale_gates()
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
}
