//! The state of the policy in memory: counters of budgets, the freeze and remembered approvals.

use std::collections::BTreeMap;

use steprail_core::run::{BudgetUse, Event, Millis, Started};

use crate::{PolicyChange, PolicyState, RunCommit, RunId};

/// The rows of the policy.
#[derive(Debug, Clone, Default)]
pub(super) struct PolicyTables {
    pub state: PolicyState,
    /// Calls by subject, rule and start of the window.
    counters: BTreeMap<(String, String, Millis), u64>,
}

impl PolicyTables {
    pub(super) fn counter(&self, subject: &str, rule: &str, start: Millis) -> u64 {
        self.counters.get(&(subject.to_owned(), rule.to_owned(), start)).copied().unwrap_or_default()
    }

    /// Counts the calls of a decision. Windows that have ended are deleted.
    pub(super) fn count(&mut self, run: &RunCommit) {
        for record in &run.records {
            let Event::StepStarted { what: Started::Call { policy: Some(policy), .. }, .. } = &record.event
            else {
                continue;
            };
            let Some(BudgetUse { subject, start }) = &policy.budget else { continue };
            let (subject, rule) = (subject.to_string(), policy.rule.rule.to_string());
            self.counters.retain(|(of, by, at), _| (of, by) != (&subject, &rule) || at >= start);
            *self.counters.entry((subject, rule, *start)).or_default() += 1;
        }
    }

    /// Deletes the counters of a run.
    pub(super) fn forget_run(&mut self, run: RunId) {
        let subject = format!("run:{run}");
        self.counters.retain(|(of, _, _), _| *of != subject);
    }

    pub(super) fn apply(&mut self, change: &PolicyChange, now: Millis) {
        match change {
            PolicyChange::Freeze(freeze) => self.state.freeze = Some(freeze.clone()),
            PolicyChange::Unfreeze { .. } => self.state.freeze = None,
            PolicyChange::Remember(remembered) => {
                self.state.remembered.retain(|known| known.until > now && known.id != remembered.id);
                self.state.remembered.push((**remembered).clone());
                self.state.remembered.sort_by(|one, other| one.id.cmp(&other.id));
            }
            PolicyChange::Revoke { id, .. } => self.state.remembered.retain(|known| known.id != *id),
        }
    }
}
