//! Queries of the steps of a run. They search the primary key of `step_runs`; a filter reads the rows of the run.

use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};
use steprail_core::run::StepStatus;

use super::rows;
use crate::page::PAGE_BYTES;
use crate::{ListSteps, RunId, StepCounts, StepFilter, StepPage, StepRow, StoreError};

pub(super) fn page(connection: &Connection, run: RunId, list: &ListSteps) -> Result<StepPage, StoreError> {
    let (n, attempt) = list.after.map_or((0, 0), crate::StepCursor::position);
    let limit = i64::try_from(list.limit).unwrap_or(i64::MAX).saturating_add(1);
    let mut values: Vec<Value> = vec![run.to_string().into(), n.into(), attempt.into(), limit.into()];
    let filter = condition(&list.filter, &mut values)?;
    let columns = if list.brief { rows::BRIEF_STEP } else { rows::STEP };
    let order = if list.last { "DESC" } else { "ASC" };
    let sql = format!(
        "SELECT {columns} FROM step_runs s WHERE s.run_id = (SELECT id FROM runs WHERE run_id = ?1)
         AND (s.n, s.attempt) > (?2, ?3) {filter} ORDER BY s.n {order}, s.attempt {order} LIMIT ?4"
    );
    let (mut steps, mut bytes, mut has_more) = (Vec::new(), 0, false);
    rows::each(connection, &sql, params_from_iter(values), |row| {
        has_more = steps.len() >= list.limit || bytes >= PAGE_BYTES;
        if !has_more {
            let step = rows::step(row)?;
            bytes += size(&step);
            steps.push(step);
        }
        Ok(!has_more)
    })?;
    if list.last {
        steps.reverse();
    }
    Ok(StepPage { steps, has_more })
}

fn condition(filter: &StepFilter, values: &mut Vec<Value>) -> Result<&'static str, StoreError> {
    Ok(match filter {
        StepFilter::All => "",
        StepFilter::Status(status) => {
            values.push(status.name().to_owned().into());
            "AND s.status = ?5"
        }
        StepFilter::Named(names) => {
            values.push(serde_json::to_string(names)?.into());
            "AND (s.path IN (SELECT value FROM json_each(?5)) OR s.step_id IN (SELECT value FROM json_each(?5)))"
        }
        StepFilter::Open => {
            "AND (s.status = 'waiting' OR s.status = 'ready' OR s.status = 'pending')
             AND NOT EXISTS (SELECT 1 FROM approvals a WHERE a.run_id = s.run_id AND a.n = s.n AND a.status = 'open')"
        }
        StepFilter::Notable => {
            "AND ((s.kind = 'foreach' AND s.output_json = '[]') OR (s.status = 'failed' AND NOT EXISTS
             (SELECT 1 FROM step_runs o WHERE o.run_id = s.run_id AND o.n = s.n AND o.attempt > s.attempt)))"
        }
    })
}

/// The bytes of the values of an attempt.
fn size(step: &StepRow) -> usize {
    [&step.input, &step.output].into_iter().flatten().map(|value| value.get().len()).sum()
}

/// Counts the attempts of a run. Counting here instead of with GROUP BY avoids a sort.
pub(super) fn counts(connection: &Connection, run: RunId) -> Result<StepCounts, StoreError> {
    let sql = "SELECT status, attempt FROM step_runs WHERE run_id = (SELECT id FROM runs WHERE run_id = ?1)";
    let mut counts = StepCounts::default();
    rows::each(connection, sql, params![run.to_string()], |row| {
        let status: StepStatus = rows::step_status(row.get_ref(0)?.as_str().map_err(rows::damaged)?)?;
        counts.add(status, row.get(1)?);
        Ok(true)
    })?;
    Ok(counts)
}
