//! Subscriptions: events as they are committed, each reader with its own position.

use std::collections::VecDeque;

use steprail_store::{After, Cursor, Reads, RunId, StoreError, StoredEvent, Visibility};
use tokio::sync::watch;

use crate::error::Error;
use crate::limits::FEED_PAGE;
use crate::quotas::SubscriptionSlot;
use crate::read_pool::ReadPool;

/// Delivers the events after a cursor in order, without gaps or repetitions. It reads from the log, so a slow reader does
/// not hold up the engine or other readers. A new subscription with the cursor of an event continues after that event.
pub struct Subscription {
    read_pool: ReadPool,
    changes: Changes,
    /// Where the next page begins.
    position: Position,
    page: VecDeque<StoredEvent>,
    /// The slot in the quota of the user; `None` if the subscription acts as no user.
    _slot: Option<SubscriptionSlot>,
}

/// What wakes a subscription.
pub(crate) enum Changes {
    /// Every commit with events.
    OfAll(watch::Receiver<Cursor>),
    /// Commits of one run.
    OfRun(watch::Receiver<()>),
}

impl Changes {
    /// Marks the changes so far as seen. Called before a read, so that no later change is missed.
    fn mark_seen(&mut self) {
        match self {
            Self::OfAll(receiver) => drop(receiver.borrow_and_update()),
            Self::OfRun(receiver) => drop(receiver.borrow_and_update()),
        }
    }

    /// Waits for the next change. False when the engine has stopped.
    async fn changed(&mut self) -> bool {
        match self {
            Self::OfAll(receiver) => receiver.changed().await.is_ok(),
            Self::OfRun(receiver) => receiver.changed().await.is_ok(),
        }
    }
}

/// A position in the log of all runs or of one run.
#[derive(Clone, Copy)]
pub(crate) enum Position {
    OfAll(Cursor),
    OfRun(RunId, After),
}

impl Position {
    /// The position after an event.
    fn after(self, event: &StoredEvent) -> Self {
        match self {
            Self::OfAll(_) => Self::OfAll(event.cursor),
            Self::OfRun(run, _) => Self::OfRun(run, After::Seq(event.seq)),
        }
    }

    /// The events of the next page.
    fn read(self, readers: &dyn Reads) -> Result<Vec<StoredEvent>, StoreError> {
        match self {
            Self::OfAll(cursor) => {
                let page = readers.feed(cursor, FEED_PAGE, &Visibility::default())?;
                page.events.into_iter().map(|(event, _)| event.read()).collect()
            }
            Self::OfRun(run, after) => Ok(readers.events(run, after, FEED_PAGE)?.events),
        }
    }
}

impl Subscription {
    pub(crate) fn new(read_pool: ReadPool, changes: Changes, position: Position) -> Self {
        Self { read_pool, changes, position, page: VecDeque::new(), _slot: None }
    }

    /// The same subscription, counted in the quota of a user while it is open.
    pub(crate) fn counted_by(self, slot: SubscriptionSlot) -> Self {
        Self { _slot: Some(slot), ..self }
    }

    /// Waits for the next event. Returns `None` when the engine has stopped.
    pub async fn next(&mut self) -> Result<Option<StoredEvent>, Error> {
        loop {
            if let Some(event) = self.page.pop_front() {
                return Ok(Some(event));
            }
            self.changes.mark_seen();
            let position = self.position;
            self.page = self.read_pool.read(move |readers| position.read(readers)).await?.into();
            if let Some(last) = self.page.back() {
                self.position = position.after(last);
            } else if !self.changes.changed().await {
                return Ok(None);
            }
        }
    }
}
