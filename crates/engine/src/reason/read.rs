//! Reads the facts of reasons: for each run a few indexed queries and the end of its log.

use std::collections::BTreeMap;

use steprail_core::limits::RUN_DEPTH;
use steprail_core::run::{Millis, RunStatus};
use steprail_store::{After, Freeze, ListSteps, Reads, RunId, RunRow, StepFilter, StoreError};

use super::waits::{Facts, Tail};
use super::{ReasonKind, RunReason};
use crate::engine::Engine;
use crate::error::Error;
use crate::limits::{REASON_CHILDREN, REASON_EVENTS, REASON_WAITS, WAIT_EVENTS};
use crate::user::User;

/// What is the same for all runs of a list.
struct Reader<'a> {
    readers: &'a dyn Reads,
    freeze: Option<Freeze>,
    damaged: BTreeMap<RunId, String>,
    /// Whether the reason of one run is read, not those of a list.
    is_single: bool,
    now: Millis,
}

impl Engine {
    /// Why runs wait or how they ended; `None` for a run that works or has completed. Reads the end of their logs, not all of
    /// them.
    pub async fn reasons(&self, rows: Vec<RunRow>) -> Result<Vec<(RunRow, Option<RunReason>)>, Error> {
        let damaged = self.0.damaged.borrow().iter().map(|(run, error)| (*run, error.to_string())).collect();
        let (freeze, now) = (self.policy().freeze(), self.now());
        self.read(move |readers| {
            let reader = Reader { readers, freeze, damaged, is_single: rows.len() == 1, now };
            let with_reason = |row: RunRow| reader.reason(&row, 0).map(|reason| (row, reason));
            rows.into_iter().map(with_reason).collect()
        })
        .await
    }

    /// Why a run waits or how it ended; `None` if it works or has completed.
    pub async fn reason(&self, row: RunRow) -> Result<Option<RunReason>, Error> {
        let reasons = self.reasons(vec![row]).await?;
        Ok(reasons.into_iter().next().and_then(|(_, reason)| reason))
    }
}

impl User {
    /// Why runs that the user may see wait or how they ended. See [`Engine::reasons`].
    pub async fn reasons(&self, rows: Vec<RunRow>) -> Result<Vec<(RunRow, Option<RunReason>)>, Error> {
        self.engine().reasons(rows).await
    }

    /// Why a run that the user may see waits or how it ended.
    pub async fn reason(&self, row: RunRow) -> Result<Option<RunReason>, Error> {
        self.engine().reason(row).await
    }
}

impl Reader<'_> {
    fn reason(&self, row: &RunRow, depth: u32) -> Result<Option<RunReason>, StoreError> {
        let damage = self.damaged.get(&row.run_id).cloned();
        if row.status == RunStatus::Completed && damage.is_none() {
            return Ok(None);
        }
        let is_unfinished = !row.status.is_terminal();
        // The approvals of a sub-workflow are among those of the run that was asked for.
        let is_open = is_unfinished && depth == 0;
        let (approvals, unknown_calls) = if is_open {
            let approvals = self.readers.run_approvals(row.run_id, REASON_WAITS)?;
            (approvals, self.readers.unknown_calls(row.run_id, REASON_WAITS)?)
        } else {
            (Vec::new(), Vec::new())
        };
        let mut tail = self.tail(row, REASON_EVENTS)?;
        if is_unfinished && tail.has_no_waits() && approvals.is_empty() && unknown_calls.is_empty() {
            tail = self.older_waits(row)?;
        }
        // The time of the first one is in the log of its run.
        if let Some(call) = unknown_calls.first().filter(|call| call.run_id != row.run_id)
            && let Some(below) = self.readers.run(call.run_id)?
        {
            tail.add_uncertain(self.tail(&below, REASON_EVENTS)?);
        }
        let children = self.children(&tail, depth)?;
        let freeze = self.freeze.as_ref();
        let (approvals, unknown_calls) = (&approvals[..], &unknown_calls[..]);
        Ok(Facts { row, approvals, unknown_calls, tail: &tail, children, freeze, damage, now: self.now }
            .reason())
    }

    fn tail(&self, row: &RunRow, events: usize) -> Result<Tail, StoreError> {
        let after = row.seq.saturating_sub(events as u64);
        Ok(Tail::of(&self.readers.events(row.run_id, After::Seq(after), events)?.events))
    }

    /// The waits of a run whose last events say nothing about them. Only for a single run its steps are searched.
    fn older_waits(&self, row: &RunRow) -> Result<Tail, StoreError> {
        let mut tail = self.tail(row, WAIT_EVENTS)?;
        if tail.has_no_waits() && self.is_single {
            let filter = StepFilter::Open;
            let list = ListSteps { filter, limit: REASON_WAITS, brief: true, ..ListSteps::default() };
            tail.add_steps(&self.readers.steps(row.run_id, &list)?.steps);
        }
        Ok(tail)
    }

    /// The reasons of the first sub-workflows that have no approvals.
    fn children(&self, tail: &Tail, depth: u32) -> Result<Vec<RunReason>, StoreError> {
        let mut reasons = Vec::new();
        if depth >= RUN_DEPTH {
            return Ok(reasons);
        }
        for child in tail.children.iter().take(REASON_CHILDREN) {
            let Some(row) = self.readers.run(*child)? else { continue };
            let Some(reason) = self.reason(&row, depth + 1)? else { continue };
            // A run that pauses for its approvals is not paused by anyone. They are known already.
            let is_pause_for_approvals = reason.kind == ReasonKind::Paused && reason.by.is_none();
            if row.status.is_terminal() || is_pause_for_approvals {
                continue;
            }
            let run_id = reason.run_id.or(Some(*child));
            reasons.push(RunReason { run_id, ..reason });
        }
        Ok(reasons)
    }
}
