//! Broadcast of committed events: the log is read once for all followers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steprail_engine::{Cursor, Engine, Error, RunId, Visibility};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::bandwidth::Bandwidth;
use super::batch::{Batch, Frame};
use super::page_cache::{PAGE, PageCache};

/// Batches that a follower may lag behind before it falls back to the log.
const BATCHES: usize = 16;
/// The maximum number of bytes per round.
const ROUND_BYTES: usize = 16 * 1024 * 1024;
/// Interval between rounds,
const ROUND_INTERVAL: Duration = Duration::from_millis(20);
/// extended for each follower of a run that received events, so that batching grows with the number of readers.
const PER_RECEIVER: Duration = Duration::from_micros(500);
/// Delay before a failed read of the log is retried.
const RETRY: Duration = Duration::from_secs(1);

type Batches = broadcast::Sender<Arc<Batch>>;

/// Broadcasts events to followers. A follower that lags falls back to the log by its cursor, so backpressure never
/// reaches the engine.
pub(crate) struct Hub {
    engine: Engine,
    all: Batches,
    runs: Mutex<HashMap<RunId, Batches>>,
    page_cache: PageCache,
    pub(super) bandwidth: Bandwidth,
    /// Cancelled when the hub stops.
    pub(super) ended: CancellationToken,
}

impl Hub {
    pub(crate) fn spawn(engine: Engine, stop: CancellationToken) -> Arc<Self> {
        let (all, _) = broadcast::channel(BATCHES);
        let (runs, page_cache, bandwidth) = (Mutex::default(), PageCache::default(), Bandwidth::new());
        let hub =
            Arc::new(Self { engine, all, runs, page_cache, bandwidth, ended: CancellationToken::new() });
        let broadcasting = hub.clone();
        tokio::spawn(async move {
            stop.run_until_cancelled(broadcasting.broadcast()).await;
            broadcasting.ended.cancel();
        });
        hub
    }

    pub(super) fn follow_all(&self) -> broadcast::Receiver<Arc<Batch>> {
        self.all.subscribe()
    }

    pub(super) fn follow_run(&self, run: RunId) -> broadcast::Receiver<Arc<Batch>> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.entry(run).or_insert_with(|| broadcast::channel(BATCHES).0).subscribe()
    }

    /// Removes the channel of a run that has no followers left.
    pub(super) fn leave_run(&self, run: RunId) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.get(&run).is_some_and(|followers| followers.receiver_count() == 0) {
            runs.remove(&run);
        }
    }

    /// Returns an error if a cursor is beyond the end of the log.
    pub(super) async fn check_cursor(&self, cursor: Cursor) -> Result<(), Error> {
        self.engine.check_cursor(cursor).await
    }

    /// The page of the log with the first event after a cursor, and whether more follow.
    pub(super) async fn page(&self, cursor: Cursor) -> Result<(Arc<Batch>, bool), Error> {
        self.page_cache.page(&self.engine, cursor).await
    }

    fn followers(&self, run: RunId) -> Option<Batches> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&run).cloned()
    }

    fn has_followers(&self, run: RunId) -> bool {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&run)
    }

    fn is_followed(&self) -> bool {
        self.all.receiver_count() > 0 || !self.runs.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    async fn broadcast(&self) {
        let mut commits = self.engine.watch_cursor();
        let mut cursor = self.engine.cursor();
        loop {
            // Read before the check for followers: later commits wake the loop again.
            let last = *commits.borrow_and_update();
            if !self.is_followed() {
                cursor = last;
                self.page_cache.clear().await;
            } else if let Ok((next, receivers)) = self.round(cursor, last).await {
                cursor = next;
                tokio::time::sleep(ROUND_INTERVAL + PER_RECEIVER * receivers).await;
            } else {
                tokio::time::sleep(RETRY).await;
            }
            if cursor >= last && commits.changed().await.is_err() {
                return;
            }
        }
    }

    /// Broadcasts events up to `last`. Returns the new cursor and the number of receivers in streams of runs.
    async fn round(&self, mut cursor: Cursor, last: Cursor) -> Result<(Cursor, u32), Error> {
        let mut of_runs: BTreeMap<RunId, Vec<Arc<Frame>>> = BTreeMap::new();
        let mut bytes = 0;
        while cursor < last && bytes < ROUND_BYTES {
            let events = self.engine.feed(cursor, PAGE, Visibility::default()).await?.events;
            cursor = events.last().map_or(last, |(stored, _)| stored.cursor);
            // Checked after the read: followers that join later find these events in the log.
            let is_for_all = self.all.receiver_count() > 0;
            let is_wanted = |run: RunId| is_for_all || self.has_followers(run);
            let batch = Batch::of_all(events.into_iter().filter(|(stored, _)| is_wanted(stored.run)));
            bytes += batch.bytes();
            for frame in batch.frames().iter().filter(|frame| self.has_followers(frame.run)) {
                of_runs.entry(frame.run).or_default().push(frame.clone());
            }
            if is_for_all {
                // The last receiver may have left.
                let _ = self.all.send(batch);
            }
        }
        let mut receivers = 0;
        for (run, frames) in of_runs {
            if let Some(followers) = self.followers(run) {
                receivers += followers.send(Batch::new(frames)).unwrap_or_default();
            }
        }
        Ok((cursor, u32::try_from(receivers).unwrap_or(u32::MAX)))
    }
}
