//! Queries of an engine about runs, events and approvals.

use serde::Serialize;
use steprail_core::run::{Event, Restored, RunStatus};
use steprail_store::{
    After, Approval, Cursor, EventPage, ListRuns, RawEvent, Reads, RunId, RunRow, StepRow, StoreError,
    StoredEvent, UnknownCall,
};
use tokio::sync::watch;

use crate::engine::Engine;
use crate::error::Error;
use crate::feed::{Changes, Position, Subscription};
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
    /// Why the run does not continue, if its stored state is damaged or its decision panicked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
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
    let page = readers.events(row.run_id, After::Seq(after), WAIT_EVENTS)?;
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
            // The end of a run ends its steps, and those of the runs that it waits for.
            let (approvals, unknown_calls) = if row.status.is_terminal() {
                (Vec::new(), Vec::new())
            } else {
                (readers.run_approvals(run)?, readers.unknown_calls(run)?)
            };
            let (steps, restored) = (readers.steps(run)?, restored(readers, &row)?);
            Ok(Some(RunView { run: row, steps, approvals, unknown_calls, damage: None, restored }))
        });
        let view = view.await?.ok_or_else(|| no_run(run))?;
        let damage = self.0.damaged.borrow().get(&view.run.run_id).map(ToString::to_string);
        Ok(RunView { damage, ..view })
    }

    /// Returns a run without its steps.
    pub async fn row(&self, run: RunId) -> Result<RunRow, Error> {
        self.read(move |readers| readers.run(run)).await?.ok_or_else(|| no_run(run))
    }

    /// Returns runs, newest first.
    pub async fn list(&self, list: ListRuns) -> Result<Vec<RunRow>, Error> {
        self.read(move |readers| readers.runs(&list)).await
    }

    /// Returns the events of a run after a position. A cursor beyond the end of the log is an error.
    pub async fn events(
        &self,
        run: RunId,
        after: After,
        limit: usize,
    ) -> Result<EventPage<StoredEvent>, Error> {
        if let After::Cursor(cursor) = after {
            self.check_cursor(cursor).await?;
        }
        self.read(move |readers| readers.events(run, after, limit)).await
    }

    /// Returns the events of all runs, or of the runs of one user, after a cursor. Each comes with the id of the user who
    /// started its run. A cursor beyond the end of the log is an error.
    pub async fn feed(
        &self,
        after: Cursor,
        limit: usize,
        user: Option<String>,
    ) -> Result<EventPage<(RawEvent, String)>, Error> {
        self.check_cursor(after).await?;
        self.read(move |readers| readers.feed(after, limit, user.as_deref())).await
    }

    /// Subscribes to the events of one run or of all runs, after a cursor. The cursor of an event continues after it.
    pub fn subscribe(&self, run: Option<RunId>, cursor: Cursor) -> Subscription {
        match run {
            Some(run) => self.subscribe_run(run, After::Cursor(cursor)),
            None => self.subscription(Position::OfAll(cursor)),
        }
    }

    /// Subscribes to the events of one run after a position.
    pub(crate) fn subscribe_run(&self, run: RunId, after: After) -> Subscription {
        self.subscription(Position::OfRun(run, after))
    }

    fn subscription(&self, position: Position) -> Subscription {
        let changes = match position {
            Position::OfAll(_) => Changes::OfAll(self.0.last_event.clone()),
            Position::OfRun(run, _) => Changes::OfRun(self.0.run_signals.watch(run)),
        };
        Subscription::new(self.0.read_pool.clone(), changes, position)
    }

    /// The cursor of the last committed event of all runs. A subscription after it delivers only new events.
    pub fn cursor(&self) -> Cursor {
        *self.0.last_event.borrow()
    }

    /// Watches [`Engine::cursor`], which changes with every commit that has events.
    pub fn watch_cursor(&self) -> watch::Receiver<Cursor> {
        self.0.last_event.clone()
    }

    /// Returns an error if a cursor is beyond the end of the log. It belongs to another database, or to this one before
    /// a restore.
    pub async fn check_cursor(&self, cursor: Cursor) -> Result<(), Error> {
        // Readers can see a commit before it is announced.
        let is_known = cursor <= self.cursor() || cursor <= self.read(|readers| readers.last_event()).await?;
        if is_known { Ok(()) } else { Err(Error::InvalidCursor(cursor)) }
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
