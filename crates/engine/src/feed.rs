//! Subscriptions: events as they are committed, each reader with its own position.

use std::collections::VecDeque;

use steprail_store::{After, Cursor, Reads, RunId, StoreError, StoredEvent};
use tokio::sync::watch;

use crate::error::Error;
use crate::limits::FEED_PAGE;
use crate::read_pool::ReadPool;

/// Delivers the events after a cursor in order, without gaps or repetitions. It reads from the log, so a slow reader does
/// not hold up the engine or other readers. A new subscription with the cursor of an event continues after that event.
pub struct Subscription {
    read_pool: ReadPool,
    last_event: watch::Receiver<Cursor>,
    /// Where the next page begins.
    position: Position,
    page: VecDeque<StoredEvent>,
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
                let page = readers.feed(cursor, FEED_PAGE, None)?;
                page.events.into_iter().map(|(event, _)| event.read()).collect()
            }
            Self::OfRun(run, after) => Ok(readers.events(run, after, FEED_PAGE)?.events),
        }
    }
}

impl Subscription {
    pub(crate) fn new(read_pool: ReadPool, last_event: watch::Receiver<Cursor>, position: Position) -> Self {
        Self { read_pool, last_event, position, page: VecDeque::new() }
    }

    /// Waits for the next event. Returns `None` when the engine has stopped.
    pub async fn next(&mut self) -> Result<Option<StoredEvent>, Error> {
        loop {
            if let Some(event) = self.page.pop_front() {
                return Ok(Some(event));
            }
            self.last_event.borrow_and_update();
            let position = self.position;
            self.page = self.read_pool.read(move |readers| position.read(readers)).await?.into();
            if let Some(last) = self.page.back() {
                self.position = position.after(last);
            } else if self.last_event.changed().await.is_err() {
                return Ok(None);
            }
        }
    }
}
