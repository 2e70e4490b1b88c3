//! Somebody who follows a run, or everything that they may see: from a cursor on, without a gap or a repetition.

use std::collections::VecDeque;
use std::sync::Arc;

use steprail_engine::{Error, Right, RunId, User};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::hub::{Frame, Hub, PACE, PAGE};

/// A place in the log, and what comes after it.
pub(crate) struct Follower {
    user: User,
    hub: Arc<Hub>,
    run: Option<RunId>,
    cursor: i64,
    live: Option<broadcast::Receiver<Arc<Frame>>>,
    /// What was read from the log and not given yet.
    page: VecDeque<Frame>,
    /// Whether what comes next is in the log and not on its way.
    is_behind: bool,
}

impl Follower {
    /// Follows one run after the event with a number.
    pub(crate) async fn of_run(hub: Arc<Hub>, user: User, run: RunId, after: u64) -> Result<Self, Error> {
        user.row(run).await?;
        let live = Some(hub.follow_run(run));
        let cursor = i64::try_from(after).unwrap_or(i64::MAX);
        Ok(Self { user, hub, run: Some(run), cursor, live, page: VecDeque::new(), is_behind: true })
    }

    /// Follows everything that a user may see, after a cursor.
    pub(crate) fn of_all(hub: Arc<Hub>, user: User, after: i64) -> Self {
        let live = Some(hub.follow_all());
        Self { user, hub, run: None, cursor: after, live, page: VecDeque::new(), is_behind: true }
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

    /// The next event. Nothing when the server ends.
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<Frame>>, Error> {
        loop {
            if let Some(frame) = self.page.pop_front() {
                self.cursor = self.place(&frame);
                return Ok(Some(Arc::new(frame)));
            }
            if self.is_behind {
                self.read().await?;
                continue;
            }
            let Some(live) = &mut self.live else { return Ok(None) };
            match live.recv().await {
                Ok(frame) if self.place(&frame) <= self.cursor => {}
                // What is between was lost on the way.
                Ok(frame) if self.run.is_some() && self.place(&frame) > self.cursor + 1 => {
                    self.is_behind = true;
                }
                Ok(frame) => {
                    self.cursor = self.place(&frame);
                    if self.sees(&frame) {
                        return Ok(Some(frame));
                    }
                }
                Err(RecvError::Lagged(_)) => self.is_behind = true,
                Err(RecvError::Closed) => return Ok(None),
            }
        }
    }

    fn place(&self, frame: &Frame) -> i64 {
        match self.run {
            Some(_) => i64::try_from(frame.seq).unwrap_or(i64::MAX),
            None => frame.id,
        }
    }

    fn sees(&self, frame: &Frame) -> bool {
        self.run.is_some() || frame.owner == self.user.principal().id || self.user.may(Right::View)
    }

    /// Reads on in the log; at its end, what comes next is on its way.
    async fn read(&mut self) -> Result<(), Error> {
        let _place = self.hub.catching_up.acquire().await.map_err(|_| Error::Stopped)?;
        let page: Vec<Frame> = if let Some(run) = self.run {
            let after = u64::try_from(self.cursor).unwrap_or_default();
            let page = self.user.events(run, after, PAGE).await?;
            page.into_iter().map(|stored| Frame::new(stored, String::new())).collect()
        } else {
            let page = self.user.feed(self.cursor, PAGE).await?;
            page.into_iter().map(|(stored, owner)| Frame::new(stored, owner)).collect()
        };
        self.is_behind = page.len() == PAGE;
        self.page = page.into();
        if self.is_behind {
            // Those who are far behind catch up at a pace that leaves the machine to the work.
            tokio::time::sleep(PACE).await;
        }
        Ok(())
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
