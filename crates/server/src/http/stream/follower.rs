//! Somebody who follows a run, or everything that they may see: from a cursor on, without a gap or a repetition.

use std::sync::Arc;

use steprail_engine::{Error, Right, RunId, User};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
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
    /// Follows one run after the event with a number.
    pub(crate) async fn of_run(hub: Arc<Hub>, user: User, run: RunId, after: u64) -> Result<Self, Error> {
        user.row(run).await?;
        let live = Some(hub.follow_run(run));
        let cursor = i64::try_from(after).unwrap_or(i64::MAX);
        Ok(Self { user, hub, run: Some(run), cursor, live, is_behind: true, rests_until: None })
    }

    /// Follows everything that a user may see, after a cursor.
    pub(crate) fn of_all(hub: Arc<Hub>, user: User, after: i64) -> Self {
        let live = Some(hub.follow_all());
        Self { user, hub, run: None, cursor: after, live, is_behind: true, rests_until: None }
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

    /// The next events. Nothing when the server ends. What is not awaited to its end is not lost.
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<Page>>, Error> {
        loop {
            if let Some(until) = self.rests_until {
                tokio::time::sleep_until(until).await;
                self.rests_until = None;
            }
            let page = if self.is_behind {
                self.read().await?
            } else {
                let Some(live) = &mut self.live else { return Ok(None) };
                match live.recv().await {
                    Ok(page) if self.is_gap(&page) => {
                        self.is_behind = true;
                        continue;
                    }
                    Ok(page) => page,
                    Err(RecvError::Lagged(_)) => {
                        self.is_behind = true;
                        continue;
                    }
                    Err(RecvError::Closed) => return Ok(None),
                }
            };
            let new = page.clone().after(self.cursor, |frame| self.sees(frame));
            self.cursor = page.last().map_or(self.cursor, |last| last.max(self.cursor));
            if self.run.is_none() {
                self.rests_until = Some(self.hub.pace.charge(new.bytes()));
            }
            if !new.frames().is_empty() {
                return Ok(Some(new));
            }
        }
    }

    /// Whether events of the run between its last one and a page were lost on the way.
    fn is_gap(&self, page: &Page) -> bool {
        self.run.is_some() && page.first().is_some_and(|first| first > self.cursor + 1)
    }

    fn sees(&self, frame: &Frame) -> bool {
        self.run.is_some() || frame.owner == self.user.principal().id || self.user.may(Right::View)
    }

    /// Reads on in the log; at its end, what comes next is on its way.
    async fn read(&mut self) -> Result<Arc<Page>, Error> {
        let page = if let Some(run) = self.run {
            let after = u64::try_from(self.cursor).unwrap_or_default();
            let page = self.user.events(run, after, PAGE).await?;
            let frames = page.into_iter().map(|stored| Arc::new(Frame::new(stored, String::new())));
            Page::new(Frame::in_run, frames.collect())
        } else {
            self.hub.page(self.cursor).await?
        };
        self.is_behind = page.frames().len() == PAGE;
        Ok(page)
    }
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
