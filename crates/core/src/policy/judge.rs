//! Judges calls, and explains verdicts.

use std::fmt;
use std::sync::Arc;

use super::facts::Values;
use super::{Action, CallFacts, Policy, Verdict};
use crate::budget::Budget;

/// The first condition of a rule that does not hold for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// No pattern of `tools` matches.
    Tools,
    /// An annotation has another value, which is this one.
    Annotation(&'static str, bool),
    /// The user is not in `principals`.
    Principals,
    /// `by` is different.
    By,
    /// No pattern of `clients` matches.
    Clients,
    /// No pattern of `workflows` matches.
    Workflows,
    /// `calls` is different.
    Calls,
    /// `when` is false.
    When,
    /// `when` cannot be evaluated. The rule denies the call.
    Error(String),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tools => out.write_str("`tools` does not match"),
            Self::Annotation(name, actual) => write!(out, "the tool has `{name}: {actual}`"),
            Self::Principals => out.write_str("the user is not in `principals`"),
            Self::By => out.write_str("`by` does not match"),
            Self::Clients => out.write_str("`clients` does not match"),
            Self::Workflows => out.write_str("`workflows` does not match"),
            Self::Calls => out.write_str("`calls` does not match"),
            Self::When => out.write_str("`when` is false"),
            Self::Error(reason) => write!(out, "`when` cannot be evaluated: {reason}"),
        }
    }
}

/// A rule that was compared with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked<'p> {
    /// Name of the rule.
    pub rule: &'p str,
    /// Why it did not match; `None` for the rule that decided.
    pub mismatch: Option<Mismatch>,
}

impl Policy {
    /// Returns the verdict about a call. The evaluation of conditions is charged to the budget.
    pub fn judge(&self, facts: &CallFacts, budget: &mut Budget) -> Verdict {
        let values = Values::new(facts, &self.zone);
        for at in self.index.candidates(facts.tool) {
            let Some(rule) = self.rules.get(*at as usize) else { continue };
            match rule.matcher.check(facts, &values, budget) {
                Ok(()) => return self.verdict(&rule.name, rule.action.clone()),
                Err(Mismatch::Error(reason)) => return self.unusable(&rule.name, &reason),
                Err(_) => {}
            }
        }
        self.verdict(&self.default_name, self.default.clone())
    }

    /// Returns the verdict about a call, and all rules up to the one that decided.
    pub fn explain(&self, facts: &CallFacts, budget: &mut Budget) -> (Verdict, Vec<Checked<'_>>) {
        let values = Values::new(facts, &self.zone);
        let mut checked = Vec::new();
        for rule in &self.rules {
            let result = rule.matcher.check(facts, &values, budget);
            checked.push(Checked { rule: &rule.name, mismatch: result.clone().err() });
            match result {
                Ok(()) => return (self.verdict(&rule.name, rule.action.clone()), checked),
                Err(Mismatch::Error(reason)) => return (self.unusable(&rule.name, &reason), checked),
                Err(_) => {}
            }
        }
        (self.verdict(&self.default_name, self.default.clone()), checked)
    }

    fn verdict(&self, rule: &Arc<str>, action: Action) -> Verdict {
        Verdict { rule: rule.clone(), version: self.version.clone(), action }
    }

    /// The verdict of a rule whose condition cannot be evaluated.
    fn unusable(&self, rule: &Arc<str>, reason: &str) -> Verdict {
        let reason = format!("the condition of the rule cannot be evaluated: {reason}");
        self.verdict(rule, Action::Deny(reason.into()))
    }
}
