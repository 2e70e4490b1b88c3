//! Audit of budgets: the counters are compared with the calls that the log counts for them.

use std::collections::BTreeMap;

use rusqlite::Connection;
use steprail_core::run::{BudgetUse, Event, Millis};

use super::policy;
use crate::{BudgetCount, RunId, StoreError};

/// The calls of the log, counted as the counters count them.
#[derive(Default)]
pub(super) struct CountedCalls(BTreeMap<(String, String), BTreeMap<Millis, u64>>);

impl CountedCalls {
    /// Counts the calls of a log row for budgets of users and tools.
    pub(super) fn follow_row(&mut self, body: &str, hashes: &[u8]) -> Result<(), StoreError> {
        let budgets = policy::budgets_of_others(body, hashes)?;
        budgets.iter().for_each(|(rule, budget)| self.count(rule, budget));
        Ok(())
    }

    /// Counts the call of an event for the budget of its run.
    pub(super) fn follow_run(&mut self, event: &Event) {
        if let Some((rule, budget)) = policy::budget_use(event).filter(|(_, of)| policy::is_run(&of.subject))
        {
            self.count(rule, budget);
        }
    }

    fn count(&mut self, rule: &str, budget: &BudgetUse) {
        let windows = self.0.entry((budget.subject.to_string(), rule.to_owned())).or_default();
        windows.retain(|start, _| *start >= budget.start);
        *windows.entry(budget.start).or_default() += 1;
    }

    /// Continues with the counts that a purge recorded: the log no longer contains all calls before it.
    pub(super) fn purged(&mut self, counts: Vec<BudgetCount>) {
        for BudgetCount { subject, rule, .. } in &counts {
            self.0.remove(&(subject.clone(), rule.clone()));
        }
        for BudgetCount { subject, rule, start, count } in counts {
            self.0.entry((subject, rule)).or_default().insert(start, count);
        }
    }

    /// Differences from the counters of users and tools.
    pub(super) fn differences(self, connection: &Connection) -> Result<Vec<String>, StoreError> {
        Ok(self.compare(policy::counters_of_others(connection)?))
    }

    /// Differences from the counters of a run.
    pub(super) fn run_differences(
        self,
        connection: &Connection,
        run: RunId,
    ) -> Result<Vec<String>, StoreError> {
        Ok(self.compare(policy::counters_of_run(connection, run)?))
    }

    fn compare(self, counters: Vec<BudgetCount>) -> Vec<String> {
        let windows = |((subject, rule), windows): ((String, String), BTreeMap<Millis, u64>)| {
            let of = move |(start, count)| ((subject.clone(), rule.clone(), start), count);
            windows.into_iter().map(of)
        };
        let mut expected: BTreeMap<_, u64> = self.0.into_iter().flat_map(windows).collect();
        let mut found = Vec::new();
        for BudgetCount { subject, rule, start, count } in counters {
            let counted = expected.remove(&(subject.clone(), rule.clone(), start)).unwrap_or_default();
            if counted != count {
                found.push(format!(
                    "the budget {rule} of {subject}: the counter is {count}, and the log has {counted} calls"
                ));
            }
        }
        let missing = |((subject, rule, _), counted)| {
            format!("the budget {rule} of {subject}: the counter is missing, and the log has {counted} calls")
        };
        found.extend(expected.into_iter().map(missing));
        found
    }
}
