//! Subscriptions: events as they are committed, each reader with its own cursor.

use std::collections::VecDeque;

use steprail_store::{Reads, RunId, StoredEvent};
use tokio::sync::watch;

use crate::error::Error;
use crate::limits::FEED_PAGE;
use crate::quotas::SubscriptionSlot;
use crate::read_pool::ReadPool;

/// Delivers the events after a cursor in order, without gaps or repetitions. It reads from the log, so a slow reader does
/// not hold up the engine or other readers.
pub struct Subscription {
    read_pool: ReadPool,
    last_event: watch::Receiver<i64>,
    run: Option<RunId>,
    cursor: i64,
    page: VecDeque<StoredEvent>,
    /// The slot in the quota of the user; `None` if the subscription acts as no user.
    _slot: Option<SubscriptionSlot>,
}

impl Subscription {
    pub(crate) fn new(
        read_pool: ReadPool,
        last_event: watch::Receiver<i64>,
        run: Option<RunId>,
        cursor: i64,
    ) -> Self {
        Self { read_pool, last_event, run, cursor, page: VecDeque::new(), _slot: None }
    }

    /// The same subscription, counted in the quota of a user while it is open.
    pub(crate) fn counted_by(self, slot: SubscriptionSlot) -> Self {
        Self { _slot: Some(slot), ..self }
    }

    /// The cursor after the last event that was returned. A new subscription with it continues there. It is a sequence
    /// number of the run, or an event id if the subscription covers all runs.
    pub fn cursor(&self) -> i64 {
        self.page.front().map_or(self.cursor, |next| self.cursor_of(next) - 1)
    }

    fn cursor_of(&self, event: &StoredEvent) -> i64 {
        match self.run {
            Some(_) => i64::try_from(event.seq).unwrap_or(i64::MAX),
            None => event.id,
        }
    }

    /// Waits for the next event. Returns `None` when the engine has stopped.
    pub async fn next(&mut self) -> Result<Option<StoredEvent>, Error> {
        loop {
            if let Some(event) = self.page.pop_front() {
                return Ok(Some(event));
            }
            self.last_event.borrow_and_update();
            self.page = self.read().await?.into();
            if let Some(last) = self.page.back() {
                self.cursor = self.cursor_of(last);
            } else if self.last_event.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    async fn read(&self) -> Result<Vec<StoredEvent>, Error> {
        let (run, cursor) = (self.run, self.cursor);
        let query = move |readers: &dyn Reads| {
            if let Some(run) = run {
                let page = readers.events(run, u64::try_from(cursor).unwrap_or_default(), FEED_PAGE)?;
                return Ok(page.events);
            }
            let page = readers.feed(cursor, FEED_PAGE, None)?;
            page.events.into_iter().map(|(event, _)| event.read()).collect()
        };
        self.read_pool.read(query).await
    }
}
