//! Somebody who follows a run, or everything that they may see: from a cursor on, without a gap or a repetition.

use std::sync::Arc;

use steprail_engine::{Error, Right, RunId, RunRow, User};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::hub::Hub;
use super::page::{Frame, Page};
use super::shelf::PAGE;

/// A place in the log, and what comes after it.
pub(crate) struct Follower {
    user: User,
    hub: Arc<Hub>,
    run: Option<RunId>,
    cursor: i64,
    live: Option<broadcast::Receiver<Arc<Page>>>,
    /// Whether what comes next is in the log and not on its way.
    is_behind: bool,
    /// When the next page may be asked for.
    rests_until: Option<Instant>,
}

impl Follower {
    /// Follows one run, which its user may see, after the event with a number.
    pub(crate) fn of_run(hub: Arc<Hub>, user: User, row: &RunRow, after: u64) -> Result<Self, Error> {
        let cursor = i64::try_from(after).unwrap_or(i64::MAX);
        need_past(cursor, i64::try_from(row.seq).unwrap_or(i64::MAX))?;
        let run = row.run_id;
        let live = Some(hub.follow_run(run));
        Ok(Self { user, hub, run: Some(run), cursor, live, is_behind: true, rests_until: None })
    }

    /// Follows everything that a user may see, after a cursor.
    pub(crate) fn of_all(hub: Arc<Hub>, user: User, after: i64) -> Result<Self, Error> {
        need_past(after, hub.cursor())?;
        let live = Some(hub.follow_all());
        // A new one waits as long as the others.
        let rests_until = Some(hub.pace.charge(0));
        Ok(Self { user, hub, run: None, cursor: after, live, is_behind: true, rests_until })
    }

    /// Goes on as somebody whose rights may have changed. False if they may no longer see the run.
    pub(crate) async fn renew(&mut self, user: User) -> bool {
        self.user = user;
        match self.run {
            Some(run) => self.user.row(run).await.is_ok(),
            None => true,
        }
    }

    /// Whoever follows.
    pub(crate) fn user(&self) -> &User {
        &self.user
    }

    /// The place after the last event that was given, or that is not for them.
    pub(crate) fn cursor(&self) -> i64 {
        self.cursor
    }

    /// The next events. Nothing when no more will come. What is not awaited to its end is not lost.
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<Page>>, Error> {
        let ended = self.hub.ended.clone();
        ended.run_until_cancelled(self.next_page()).await.transpose()
    }

    async fn next_page(&mut self) -> Result<Arc<Page>, Error> {
        loop {
            if let Some(until) = self.rests_until {
                tokio::time::sleep_until(until).await;
                self.rests_until = None;
            }
            let page = if self.is_behind { Some(self.read().await?) } else { self.receive().await };
            let new = page.map(|page| self.take(&page)).filter(|new| !new.frames().is_empty());
            if let Some(new) = new {
                return Ok(new);
            }
        }
    }

    /// Waits for what is on its way. Nothing if some of it was lost there.
    async fn receive(&mut self) -> Option<Arc<Page>> {
        let received = match &mut self.live {
            Some(live) => live.recv().await.ok(),
            None => None,
        };
        let page = received.filter(|page| !self.is_gap(page));
        self.is_behind = page.is_none();
        page
    }

    /// Goes on to the end of a page, and gives what is new there and for them.
    fn take(&mut self, page: &Arc<Page>) -> Arc<Page> {
        let sees_all = self.run.is_some() || self.user.may(Right::View);
        let own = &self.user.principal().id;
        let new = page.clone().after(self.cursor, |frame| sees_all || frame.owner == *own);
        self.cursor = page.last().map_or(self.cursor, |last| last.max(self.cursor));
        if self.run.is_none() {
            // What was only read has its price, too.
            let bytes = if self.is_behind { page.bytes() } else { new.bytes() };
            self.rests_until = Some(self.hub.pace.charge(bytes));
        }
        new
    }

    /// Whether events of the run between its last one and a page were lost on the way.
    fn is_gap(&self, page: &Page) -> bool {
        self.run.is_some() && page.first().is_some_and(|first| first > self.cursor + 1)
    }

    /// Reads on in the log; at its end, what comes next is on its way.
    async fn read(&mut self) -> Result<Arc<Page>, Error> {
        let (page, has_more) = if let Some(run) = self.run {
            let after = u64::try_from(self.cursor).unwrap_or_default();
            let stretch = self.user.events(run, after, PAGE).await?;
            let frames = stretch.events.into_iter().map(|stored| Arc::new(Frame::new(stored, String::new())));
            (Page::new(Frame::in_run, frames.collect()), stretch.has_more)
        } else {
            self.hub.page(self.cursor).await?
        };
        self.is_behind = has_more;
        Ok(page)
    }
}

/// Refuses a place that the log has not reached: it is one of another log, such as the one before a backup was restored.
fn need_past(cursor: i64, end: i64) -> Result<(), Error> {
    if cursor <= end {
        return Ok(());
    }
    Err(Error::Conflict(format!("the log ends at {end}: there is no event {cursor}; begin again without it")))
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Before it is counted who is left.
        self.live = None;
        if let Some(run) = self.run {
            self.hub.leave_run(run);
        }
    }
}
