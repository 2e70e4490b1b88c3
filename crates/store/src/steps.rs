//! Lists of the steps of a run, which are read page by page.

use std::collections::BTreeMap;

use serde::Serialize;
use steprail_core::run::StepStatus;

use crate::{StepCursor, StepRow};

/// Which attempts of the steps of a run to list, in the order of their start: by default the first hundred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListSteps {
    /// Only these attempts.
    pub filter: StepFilter,
    /// Only attempts after this one, from the end of the previous page.
    pub after: Option<StepCursor>,
    /// Whether the page has the last attempts instead of the first ones.
    pub last: bool,
    /// The maximum number of attempts.
    pub limit: usize,
    /// Whether inputs and outputs, which may be large, are left out.
    pub brief: bool,
}

impl Default for ListSteps {
    fn default() -> Self {
        Self { filter: StepFilter::All, after: None, last: false, limit: 100, brief: false }
    }
}

/// A filter of attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepFilter {
    /// All attempts.
    All,
    /// Attempts with a status.
    Status(StepStatus),
    /// Attempts of the steps with one of these ids or paths.
    Named(Vec<String>),
    /// Attempts that wait and have no open approval.
    Open,
    /// What a reader of an ended run should know: last attempts that failed, and `foreach` steps without items.
    Notable,
}

/// A part of the steps of a run: a page has a limited number of attempts and of bytes.
#[derive(Debug, Clone)]
pub struct StepPage {
    /// The attempts, in the order of their start.
    pub steps: Vec<StepRow>,
    /// Whether further attempts match.
    pub has_more: bool,
}

impl StepPage {
    /// Where the next page begins, if one follows.
    pub fn next(&self) -> Option<StepCursor> {
        self.steps.last().filter(|_| self.has_more).map(StepRow::cursor)
    }
}

/// The number of attempts of the steps of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StepCounts {
    /// All attempts.
    #[serde(rename = "steps_total")]
    pub total: u64,
    /// Attempts after the first one of their step.
    pub retries: u64,
    /// Attempts with each status that occurs.
    #[serde(rename = "steps_by_status")]
    pub by_status: BTreeMap<StepStatus, u64>,
}

impl StepCounts {
    /// Counts attempts that were read.
    pub fn of(steps: &[StepRow]) -> Self {
        let mut counts = Self::default();
        steps.iter().for_each(|step| counts.add(step.status, step.attempt));
        counts
    }

    pub(crate) fn add(&mut self, status: StepStatus, attempt: u32) {
        self.total += 1;
        self.retries += u64::from(attempt > 1);
        *self.by_status.entry(status).or_default() += 1;
    }

    /// The number of attempts with a status.
    pub fn with(&self, status: StepStatus) -> u64 {
        self.by_status.get(&status).copied().unwrap_or_default()
    }
}
