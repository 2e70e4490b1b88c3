//! Events as they are committed, read once for everybody who follows.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steprail_engine::{Engine, Error, RunId};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::page::{Frame, Page};
use super::shelf::{PAGE, Shelf};

/// Pages that a follower may be behind before it reads the log.
const PAGES: usize = 16;
/// Bytes that are gathered before they are passed on to those who follow a run.
const ROUND_BYTES: usize = 16 * 1024 * 1024;
/// Events of so many milliseconds are passed on together,
const TOGETHER: Duration = Duration::from_millis(20);
/// and of so many more for everybody who was told of a run.
const FOR_EACH: Duration = Duration::from_micros(500);
/// After this, a log that could not be read is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Pages for those who follow.
type Pages = broadcast::Sender<Arc<Page>>;

/// Passes events on to followers. One that is too slow loses its place here, and finds it again in the log.
pub(crate) struct Hub {
    engine: Engine,
    all: Pages,
    runs: Mutex<HashMap<RunId, Pages>>,
    shelf: Shelf,
    pub(super) pace: Pace,
    /// Nothing is passed on any more.
    pub(super) ended: CancellationToken,
}

impl Hub {
    /// Begins to pass on.
    pub(crate) fn spawn(engine: Engine, stop: CancellationToken) -> Arc<Self> {
        let (all, _) = broadcast::channel(PAGES);
        let (runs, shelf, pace) = (Mutex::default(), Shelf::default(), Pace::new());
        let hub = Arc::new(Self { engine, all, runs, shelf, pace, ended: CancellationToken::new() });
        let passing_on = hub.clone();
        tokio::spawn(async move {
            stop.run_until_cancelled(passing_on.pass_on()).await;
            passing_on.ended.cancel();
        });
        hub
    }

    pub(super) fn follow_all(&self) -> broadcast::Receiver<Arc<Page>> {
        self.all.subscribe()
    }

    pub(super) fn follow_run(&self, run: RunId) -> broadcast::Receiver<Arc<Page>> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.entry(run).or_insert_with(|| broadcast::channel(PAGES).0).subscribe()
    }

    /// Somebody follows a run no longer.
    pub(super) fn leave_run(&self, run: RunId) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.get(&run).is_some_and(|followers| followers.receiver_count() == 0) {
            runs.remove(&run);
        }
    }

    /// The place after the last event.
    pub(super) fn cursor(&self) -> i64 {
        self.engine.cursor()
    }

    /// The page of the log with the first event after a cursor, and whether there is more.
    pub(super) async fn page(&self, cursor: i64) -> Result<(Arc<Page>, bool), Error> {
        self.shelf.page(&self.engine, cursor).await
    }

    fn followers(&self, run: RunId) -> Option<Pages> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&run).cloned()
    }

    fn has_followers(&self, run: RunId) -> bool {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&run)
    }

    fn is_followed(&self) -> bool {
        self.all.receiver_count() > 0 || !self.runs.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    async fn pass_on(&self) {
        let mut news = self.engine.watch_cursor();
        let mut cursor = self.engine.cursor();
        loop {
            // Looked at before asking who follows: what is committed later is news again.
            let last = *news.borrow_and_update();
            if !self.is_followed() {
                cursor = last;
                self.shelf.clear().await;
            } else if let Ok((next, told)) = self.round(cursor, last).await {
                cursor = next;
                tokio::time::sleep(TOGETHER + FOR_EACH * told).await;
            } else {
                // What was committed is still to be told.
                tokio::time::sleep(AGAIN).await;
            }
            if cursor >= last && news.changed().await.is_err() {
                return;
            }
        }
    }

    /// Passes on what was committed up to an event. Gives how far it came, and how many were told of runs.
    async fn round(&self, mut cursor: i64, last: i64) -> Result<(i64, u32), Error> {
        let mut of_runs: BTreeMap<RunId, Vec<Arc<Frame>>> = BTreeMap::new();
        let mut bytes = 0;
        while cursor < last && bytes < ROUND_BYTES {
            let events = self.engine.feed(cursor, PAGE, None).await?.events;
            cursor = events.last().map_or(last, |(stored, _)| stored.id);
            // Asked after reading: whoever comes later finds these in the log.
            let is_for_all = self.all.receiver_count() > 0;
            let is_wanted = |run: RunId| is_for_all || self.has_followers(run);
            let page = Page::of_all(events.into_iter().filter(|(stored, _)| is_wanted(stored.run)));
            bytes += page.bytes();
            for frame in page.frames().iter().filter(|frame| self.has_followers(frame.run)) {
                of_runs.entry(frame.run).or_default().push(frame.clone());
            }
            if is_for_all {
                // Nobody may be left to take it.
                let _ = self.all.send(page);
            }
        }
        let mut told = 0;
        for (run, frames) in of_runs {
            if let Some(followers) = self.followers(run) {
                told += followers.send(Page::new(Frame::in_run, frames)).unwrap_or_default();
            }
        }
        Ok((cursor, u32::try_from(told).unwrap_or(u32::MAX)))
    }
}
