//! Pages of the steps of a run in memory.

use steprail_core::run::StepStatus;

use super::reads::step_row;
use super::tables::{RunTables, StepEntry};
use crate::page::PAGE_BYTES;
use crate::{ListSteps, StepCursor, StepFilter, StepPage, StepRow, StoreError};

pub(super) fn page(run: &RunTables, list: &ListSteps) -> Result<StepPage, StoreError> {
    let after = list.after.map_or((0, 0), StepCursor::position);
    let is_listed =
        |(at, step): &(&(u32, u32), &StepEntry)| **at > after && matches(run, &list.filter, **at, step);
    let mut listed: Vec<_> = run.steps.iter().filter(is_listed).collect();
    if list.last {
        listed.reverse();
    }
    let (mut steps, mut bytes, mut has_more) = (Vec::<StepRow>::new(), 0, false);
    for ((n, attempt), step) in listed {
        if steps.len() >= list.limit || bytes >= PAGE_BYTES {
            has_more = true;
            break;
        }
        let mut row = step_row(*n, *attempt, step)?;
        if list.brief {
            (row.input, row.output) = (None, None);
        }
        bytes +=
            [&row.input, &row.output].into_iter().flatten().map(|value| value.get().len()).sum::<usize>();
        steps.push(row);
    }
    if list.last {
        steps.reverse();
    }
    Ok(StepPage { steps, has_more })
}

fn matches(run: &RunTables, filter: &StepFilter, (n, attempt): (u32, u32), step: &StepEntry) -> bool {
    match filter {
        StepFilter::All => true,
        StepFilter::Status(status) => step.status == *status,
        StepFilter::Named(names) => names.iter().any(|name| **name == *step.path || **name == *step.id),
        StepFilter::Open => {
            let is_asked = |approval: &crate::Approval| approval.n == n && approval.status == "open";
            let waits = matches!(step.status, StepStatus::Waiting | StepStatus::Ready | StepStatus::Pending);
            waits && !run.approvals.values().any(is_asked)
        }
        StepFilter::Notable => {
            let is_last = run.steps.range((n, attempt + 1)..=(n, u32::MAX)).next().is_none();
            let is_empty = step.output.as_ref().is_some_and(|output| output.json() == "[]");
            (&*step.kind == "foreach" && is_empty) || (step.status == StepStatus::Failed && is_last)
        }
    }
}
