//! Events as they are committed, for readers that each have their own place in the log.

use std::collections::VecDeque;

use steprail_store::{Reads, RunId, StoredEvent};
use tokio::sync::watch;

use crate::error::Error;
use crate::limits::FEED_PAGE;
use crate::reading::Reading;

/// Events after a cursor, in order, without gaps or repetitions. A slow reader slows nobody: it reads from
/// the log at its own pace.
pub struct Subscription {
    reading: Reading,
    last_event: watch::Receiver<i64>,
    run: Option<RunId>,
    cursor: i64,
    page: VecDeque<StoredEvent>,
}

impl Subscription {
    pub(crate) fn new(
        reading: Reading,
        last_event: watch::Receiver<i64>,
        run: Option<RunId>,
        cursor: i64,
    ) -> Self {
        Self { reading, last_event, run, cursor, page: VecDeque::new() }
    }

    /// The place after the last event that was read. A new subscription with it goes on from there: it counts
    /// the events of the run, or of all runs.
    pub fn cursor(&self) -> i64 {
        self.page.front().map_or(self.cursor, |next| self.place(next) - 1)
    }

    fn place(&self, event: &StoredEvent) -> i64 {
        match self.run {
            Some(_) => i64::try_from(event.seq).unwrap_or(i64::MAX),
            None => event.id,
        }
    }

    /// The next event. It waits until there is one, and gives none when the engine is gone.
    pub async fn next(&mut self) -> Result<Option<StoredEvent>, Error> {
        loop {
            if let Some(event) = self.page.pop_front() {
                return Ok(Some(event));
            }
            self.last_event.borrow_and_update();
            self.page = self.read().await?.into();
            if let Some(last) = self.page.back() {
                self.cursor = self.place(last);
            } else if self.last_event.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    async fn read(&self) -> Result<Vec<StoredEvent>, Error> {
        let (run, cursor) = (self.run, self.cursor);
        let ask = move |readers: &dyn Reads| {
            if let Some(run) = run {
                let page = readers.events(run, u64::try_from(cursor).unwrap_or_default(), FEED_PAGE)?;
                return Ok(page.events);
            }
            let page = readers.feed(cursor, FEED_PAGE, None)?;
            page.events.into_iter().map(|(event, _)| event.read()).collect()
        };
        self.reading.read(ask).await
    }
}
