//! Queries of an engine about runs, events and approvals.

use std::sync::Arc;

use serde::Serialize;
use steprail_core::run::{Event, Restored, RunStatus, StepStatus};
use steprail_store::{
    After, Approval, Cursor, EventPage, ListRuns, ListSteps, RawEvent, Reads, RunId, RunRow, Starter,
    StepCounts, StepCursor, StepFilter, StepPage, StepRow, StoreError, StoredEvent, UnknownCall, Visibility,
};
use tokio::sync::watch;

use crate::engine::Engine;
use crate::error::Error;
use crate::feed::{Changes, Position, Subscription};
use crate::kernel::no_run;
use crate::limits::{RUN_APPROVALS, STATUS_ITEMS, WAIT_EVENTS};

/// A run with a page of its steps, open approvals and unknown outcomes; at most [`STATUS_ITEMS`] of each.
#[derive(Debug, Clone, Serialize)]
pub struct RunView {
    /// The run without its steps.
    #[serde(flatten)]
    pub run: RunRow,
    /// Attempts of step executions: the first page, or those that were asked for.
    pub steps: Vec<StepRow>,
    /// Where the next page of steps begins, if one follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_next: Option<StepCursor>,
    /// The number of attempts of all step executions.
    #[serde(flatten)]
    pub step_counts: StepCounts,
    /// The first attempts that wait and have no open approval.
    #[serde(skip)]
    pub open_steps: Vec<StepRow>,
    /// Open approvals of the run and of the runs that it waits for, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// Calls with unknown outcomes of the run and of the runs that it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_calls: Vec<UnknownCall>,
    /// Whether there are more approvals, calls with unknown outcomes or steps that wait.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more_waiting: bool,
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

/// Reads a run with some of its steps.
fn read_view(readers: &dyn Reads, run: RunId, list: &ListSteps) -> Result<Option<RunView>, StoreError> {
    let Some(row) = readers.run(run)? else { return Ok(None) };
    let restored = restored(readers, &row)?;
    let page = readers.steps(run, list)?;
    let is_complete = list.filter == StepFilter::All && list.after.is_none() && !page.has_more;
    let step_counts = if is_complete { StepCounts::of(&page.steps) } else { readers.step_counts(run)? };
    // The end of a run ends its steps, and those of the runs that it waits for.
    let (approvals, unknown_calls) = if row.status.is_terminal() {
        (Vec::new(), Vec::new())
    } else {
        (readers.run_approvals(run, STATUS_ITEMS + 1)?, readers.unknown_calls(run, STATUS_ITEMS + 1)?)
    };
    let (approvals, more_approvals) = cut(approvals);
    let (unknown_calls, more_calls) = cut(unknown_calls);
    let (open_steps, more_steps) = open_steps(readers, &row, &step_counts)?;
    Ok(Some(RunView {
        run: row,
        steps_next: page.next().filter(|_| !list.last),
        steps: page.steps,
        step_counts,
        open_steps,
        approvals,
        unknown_calls,
        more_waiting: more_approvals || more_calls || more_steps,
        damage: None,
        restored,
    }))
}

/// Cuts a list to [`STATUS_ITEMS`]. Returns whether it was longer.
fn cut<T>(mut list: Vec<T>) -> (Vec<T>, bool) {
    let is_longer = list.len() > STATUS_ITEMS;
    list.truncate(STATUS_ITEMS);
    (list, is_longer)
}

/// The first steps of a run that wait, and whether there are more.
fn open_steps(
    readers: &dyn Reads,
    row: &RunRow,
    counts: &StepCounts,
) -> Result<(Vec<StepRow>, bool), StoreError> {
    let is_open = |status: &StepStatus| counts.with(*status) > 0;
    let has_open = [StepStatus::Waiting, StepStatus::Ready, StepStatus::Pending].iter().any(is_open);
    if row.status.is_terminal() || !has_open {
        return Ok((Vec::new(), false));
    }
    let list =
        ListSteps { filter: StepFilter::Open, limit: STATUS_ITEMS, brief: true, ..ListSteps::default() };
    let page = readers.steps(row.run_id, &list)?;
    Ok((page.steps, page.has_more))
}

impl Engine {
    /// Returns a run with its first steps and open approvals.
    pub async fn status(&self, run: RunId) -> Result<RunView, Error> {
        self.status_with(run, ListSteps { limit: STATUS_ITEMS, ..ListSteps::default() }).await
    }

    /// Returns a run with a page of its steps and open approvals.
    pub async fn status_with(&self, run: RunId, list: ListSteps) -> Result<RunView, Error> {
        let view = self.read(move |readers| read_view(readers, run, &list));
        let view = view.await?.ok_or_else(|| no_run(run))?;
        let damage = self.0.damaged.borrow().get(&view.run.run_id).map(ToString::to_string);
        Ok(RunView { damage, ..view })
    }

    /// Returns a page of the steps of a run.
    pub async fn steps(&self, run: RunId, list: ListSteps) -> Result<StepPage, Error> {
        self.read(move |readers| readers.steps(run, &list)).await
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

    /// Returns the events after a cursor of the runs that a reader may see, each with the starter of its run. A cursor
    /// beyond the end of the log is an error.
    pub async fn feed(
        &self,
        after: Cursor,
        limit: usize,
        visible: Visibility,
    ) -> Result<EventPage<(RawEvent, Arc<Starter>)>, Error> {
        self.check_cursor(after).await?;
        self.read(move |readers| readers.feed(after, limit, &visible)).await
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
        self.visible_approvals(Visibility::default(), limit).await
    }

    /// Returns open approvals of the runs that a reader may see, oldest first.
    pub(crate) async fn visible_approvals(
        &self,
        visible: Visibility,
        limit: usize,
    ) -> Result<Vec<Approval>, Error> {
        self.read(move |readers| readers.open_approvals(&visible, limit)).await
    }

    /// Returns the last approval of a step of a run, by its path: open or decided.
    pub async fn last_approval(&self, run: RunId, path: &str) -> Result<Option<Approval>, Error> {
        let path = path.to_owned();
        self.read(move |readers| readers.last_approval(run, &path)).await
    }

    /// Returns open approvals of a run and of the runs that it waits for, oldest first; at most 1,000.
    pub async fn run_approvals(&self, run: RunId) -> Result<Vec<Approval>, Error> {
        self.read(move |readers| readers.run_approvals(run, RUN_APPROVALS)).await
    }
}
