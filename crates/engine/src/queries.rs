//! Queries of an engine about runs, events and approvals.

use serde::Serialize;
use steprail_core::run::{Event, Restored, RunStatus};
use steprail_store::{
    Approval, EventPage, ListRuns, RawEvent, Reads, RunId, RunRow, StepRow, StoreError, StoredEvent,
    UnknownCall,
};
use tokio::sync::watch;

use crate::engine::Engine;
use crate::error::Error;
use crate::feed::Subscription;
use crate::kernel::no_run;
use crate::limits::WAIT_EVENTS;

/// A run with its steps, open approvals and unknown outcomes.
#[derive(Debug, Clone, Serialize)]
pub struct RunView {
    /// The run without its steps.
    #[serde(flatten)]
    pub run: RunRow,
    /// All attempts of all step executions.
    pub steps: Vec<StepRow>,
    /// Open approvals of the run and of the runs that it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// Calls with unknown outcomes of the run and of the runs that it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_calls: Vec<UnknownCall>,
    /// The restore that interrupted the run, with the calls that may have been executed since the backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
}

/// The restore that interrupted a run: the last interruption among its last events.
fn restored(readers: &dyn Reads, row: &RunRow) -> Result<Option<Restored>, StoreError> {
    if row.status != RunStatus::Interrupted {
        return Ok(None);
    }
    let after = row.seq.saturating_sub(WAIT_EVENTS as u64);
    let page = readers.events(row.run_id, after, WAIT_EVENTS)?;
    let mut interruptions = page.events.into_iter().rev().filter_map(|stored| match stored.event {
        Event::RunInterrupted { restored } => Some(restored),
        _ => None,
    });
    Ok(interruptions.next().flatten().map(|restored| *restored))
}

impl Engine {
    /// Returns a run with its steps and open approvals.
    pub async fn status(&self, run: RunId) -> Result<RunView, Error> {
        let view = self.read(move |readers| {
            let Some(row) = readers.run(run)? else { return Ok(None) };
            let approvals = readers.run_approvals(run)?;
            let unknown_calls = readers.unknown_calls(run)?;
            let (steps, restored) = (readers.steps(run)?, restored(readers, &row)?);
            Ok(Some(RunView { run: row, steps, approvals, unknown_calls, restored }))
        });
        view.await?.ok_or_else(|| no_run(run))
    }

    /// Returns a run without its steps.
    pub async fn row(&self, run: RunId) -> Result<RunRow, Error> {
        self.read(move |readers| readers.run(run)).await?.ok_or_else(|| no_run(run))
    }

    /// Returns runs, newest first.
    pub async fn list(&self, list: ListRuns) -> Result<Vec<RunRow>, Error> {
        self.read(move |readers| readers.runs(&list)).await
    }

    /// Returns the events of a run with sequence numbers above `after`.
    pub async fn events(
        &self,
        run: RunId,
        after: u64,
        limit: usize,
    ) -> Result<EventPage<StoredEvent>, Error> {
        self.read(move |readers| readers.events(run, after, limit)).await
    }

    /// Returns the events of all runs, or of the runs of one user, after a cursor. Each comes with the id of the user who
    /// started its run.
    pub async fn feed(
        &self,
        after: i64,
        limit: usize,
        user: Option<String>,
    ) -> Result<EventPage<(RawEvent, String)>, Error> {
        self.read(move |readers| readers.feed(after, limit, user.as_deref())).await
    }

    /// Subscribes to the events of one run or of all runs, after a cursor.
    pub fn subscribe(&self, run: Option<RunId>, cursor: i64) -> Subscription {
        Subscription::new(self.0.read_pool.clone(), self.0.last_event.clone(), run, cursor)
    }

    /// The cursor of the last committed event of all runs. A subscription after it delivers only new events.
    pub fn cursor(&self) -> i64 {
        *self.0.last_event.borrow()
    }

    /// Watches [`Engine::cursor`], which changes with every commit that has events.
    pub fn watch_cursor(&self) -> watch::Receiver<i64> {
        self.0.last_event.clone()
    }

    /// Returns open approvals, oldest first.
    pub async fn approvals(&self, limit: usize) -> Result<Vec<Approval>, Error> {
        self.approvals_of(None, limit).await
    }

    /// Returns open approvals of the runs of one user or of all users, oldest first.
    pub(crate) async fn approvals_of(
        &self,
        user: Option<String>,
        limit: usize,
    ) -> Result<Vec<Approval>, Error> {
        self.read(move |readers| readers.open_approvals(user.as_deref(), limit)).await
    }

    /// Returns open approvals of a run and of the runs that it waits for.
    pub async fn run_approvals(&self, run: RunId) -> Result<Vec<Approval>, Error> {
        self.read(move |readers| readers.run_approvals(run)).await
    }
}
