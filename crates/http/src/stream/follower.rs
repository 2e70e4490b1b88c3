//! A follower of one run or of all visible runs: events after a cursor, without gaps or repetitions.

use std::sync::Arc;

use steprail_engine::{After, Cursor, Error, RunId, SubscriptionSlot, User, Visibility};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::batch::{Batch, Frame};
use super::hub::Hub;
use super::page_cache::PAGE;

/// A cursor in the log and the events after it.
pub(crate) struct Follower {
    user: User,
    hub: Arc<Hub>,
    run: Option<RunId>,
    cursor: Cursor,
    /// The sequence number at the cursor in the log of the run, once it is known.
    seq: Option<u64>,
    live: Option<broadcast::Receiver<Arc<Batch>>>,
    /// Whether the next events must be read from the log instead of the broadcast.
    is_behind: bool,
    /// When the bandwidth limit allows the next batch.
    throttled_until: Option<Instant>,
    /// The slot in the quota of the user.
    _slot: SubscriptionSlot,
}

impl Follower {
    /// Follows one run, which the user may view, after a cursor.
    pub(crate) async fn of_run(hub: Arc<Hub>, user: User, run: RunId, cursor: Cursor) -> Result<Self, Error> {
        hub.check_cursor(cursor).await?;
        let slot = user.open_subscription()?;
        let live = Some(hub.follow_run(run));
        let seq = (cursor == Cursor::START).then_some(0);
        Ok(Self {
            user,
            hub,
            run: Some(run),
            cursor,
            seq,
            live,
            is_behind: true,
            throttled_until: None,
            _slot: slot,
        })
    }

    /// Follows every run that the user may view, after a cursor.
    pub(crate) async fn of_all(hub: Arc<Hub>, user: User, cursor: Cursor) -> Result<Self, Error> {
        hub.check_cursor(cursor).await?;
        let slot = user.open_subscription()?;
        let live = Some(hub.follow_all());
        // A new follower waits as long as the others.
        let throttled_until = Some(hub.bandwidth.charge(0));
        Ok(Self {
            user,
            hub,
            run: None,
            cursor,
            seq: None,
            live,
            is_behind: true,
            throttled_until,
            _slot: slot,
        })
    }

    /// Continues with the current rights of the user. Returns false if the run is not visible any more.
    pub(crate) async fn renew(&mut self, user: User) -> bool {
        self.user = user;
        match self.run {
            Some(run) => self.user.row(run).await.is_ok(),
            None => true,
        }
    }

    pub(crate) fn user(&self) -> &User {
        &self.user
    }

    /// The cursor after the last event, delivered or filtered out.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The next events, or `None` when the hub has stopped. Cancellation-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<Batch>>, Error> {
        let ended = self.hub.ended.clone();
        ended.run_until_cancelled(self.next_page()).await.transpose()
    }

    async fn next_page(&mut self) -> Result<Arc<Batch>, Error> {
        loop {
            if let Some(until) = self.throttled_until {
                tokio::time::sleep_until(until).await;
                self.throttled_until = None;
            }
            let page = if self.is_behind { Some(self.read().await?) } else { self.receive().await };
            let new = page.map(|page| self.advance(&page)).filter(|new| !new.frames().is_empty());
            if let Some(new) = new {
                return Ok(new);
            }
        }
    }

    /// The next broadcast batch, or `None` if the follower lagged and lost some.
    async fn receive(&mut self) -> Option<Arc<Batch>> {
        let received = match &mut self.live {
            Some(live) => live.recv().await.ok(),
            None => None,
        };
        let page = received.filter(|page| !self.is_gap(page));
        self.is_behind = page.is_none();
        page
    }

    /// Advances the cursor to the end of a batch. Returns its events that are new and visible.
    fn advance(&mut self, page: &Arc<Batch>) -> Arc<Batch> {
        let visible = if self.run.is_none() { self.user.visibility() } else { Visibility::default() };
        let new = page.clone().after(self.cursor, |frame| visible.includes_starter(&frame.starter));
        if let Some(last) = page.last().filter(|last| last.cursor > self.cursor) {
            (self.cursor, self.seq) = (last.cursor, Some(last.seq));
        }
        if self.run.is_none() {
            // Reading the log counts, even if all events are filtered out.
            let bytes = if self.is_behind { page.bytes() } else { new.bytes() };
            self.throttled_until = Some(self.hub.bandwidth.charge(bytes));
        }
        new
    }

    /// Whether events of the run between the cursor and a batch may have been lost. Its sequence numbers have no gaps.
    fn is_gap(&self, page: &Batch) -> bool {
        let follows = |first: u64| self.seq.is_some_and(|seq| first <= seq + 1);
        self.run.is_some() && page.frames().first().is_some_and(|first| !follows(first.seq))
    }

    /// Reads the log after the cursor. At its end, the broadcast continues.
    async fn read(&mut self) -> Result<Arc<Batch>, Error> {
        let (page, has_more) = if let Some(run) = self.run {
            let after = self.seq.map_or(After::Cursor(self.cursor), After::Seq);
            let page = self.user.events(run, after, PAGE).await?;
            let frames = page.events.into_iter().map(|stored| Arc::new(Frame::new(stored, Arc::default())));
            (Batch::new(frames.collect()), page.next.is_some())
        } else {
            self.hub.page(self.cursor).await?
        };
        self.is_behind = has_more;
        Ok(page)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The receiver must be gone before the hub counts the remaining ones.
        self.live = None;
        if let Some(run) = self.run {
            self.hub.leave_run(run);
        }
    }
}
