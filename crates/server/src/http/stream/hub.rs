//! Events as they are committed, read once for everybody who follows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steprail_engine::{Engine, Error, RunId, StoredEvent};
use tokio::sync::{Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

use crate::view;

/// Events that are read at once.
pub(super) const PAGE: usize = 256;
/// Events that followers of everything may be behind before they read the log themselves.
const ALL_FRAMES: usize = 1_024;
/// The same for followers of one run.
const RUN_FRAMES: usize = 32;
/// Followers that read the log at the same time.
const CATCHING_UP: usize = 1;
/// How long each of them takes for a page at least, if there are more.
pub(super) const PACE: Duration = Duration::from_millis(10);
/// Events of so many milliseconds are passed on together.
const TOGETHER: Duration = Duration::from_millis(20);

/// After this, a log that could not be read is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// An event, as it is sent.
#[derive(Debug)]
pub(crate) struct Frame {
    pub id: i64,
    pub run: RunId,
    pub seq: u64,
    /// Whose run it is.
    pub owner: String,
    /// What kind of event it is.
    pub kind: String,
    /// The event as JSON.
    pub json: String,
    /// Whether it is the end of its run.
    pub is_end: bool,
}

impl Frame {
    pub(super) fn new(stored: StoredEvent, owner: String) -> Self {
        let (id, run, seq) = (stored.id, stored.run, stored.seq);
        let is_end = stored.event.ends_run();
        let json = serde_json::to_string(&view::Event::from(stored)).unwrap_or_default();
        let kind = kind_of(&json).to_owned();
        Self { id, run, seq, owner, kind, json, is_end }
    }
}

/// The word after `"event":{"type":"`: events are tagged first.
fn kind_of(json: &str) -> &str {
    let after = json.split_once("\"event\":{\"type\":\"").map_or("", |(_, rest)| rest);
    after.split('"').next().unwrap_or_default()
}

/// Passes events on to followers. One that is too slow loses its place here, and finds it again in the log.
pub(crate) struct Hub {
    all: broadcast::Sender<Arc<Frame>>,
    runs: Mutex<HashMap<RunId, broadcast::Sender<Arc<Frame>>>>,
    pub(super) catching_up: Semaphore,
}

impl Hub {
    /// Begins to pass on.
    pub(crate) fn spawn(engine: Engine, stop: CancellationToken) -> Arc<Self> {
        let (all, _) = broadcast::channel(ALL_FRAMES);
        let hub = Arc::new(Self { all, runs: Mutex::default(), catching_up: Semaphore::new(CATCHING_UP) });
        let passing_on = hub.clone().pass_on(engine);
        tokio::spawn(stop.run_until_cancelled_owned(passing_on));
        hub
    }

    pub(super) fn follow_all(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.all.subscribe()
    }

    pub(super) fn follow_run(&self, run: RunId) -> broadcast::Receiver<Arc<Frame>> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.entry(run).or_insert_with(|| broadcast::channel(RUN_FRAMES).0).subscribe()
    }

    /// Somebody follows a run no longer.
    pub(super) fn leave_run(&self, run: RunId) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.get(&run).is_some_and(|followers| followers.receiver_count() == 0) {
            runs.remove(&run);
        }
    }

    fn is_followed(&self) -> bool {
        self.all.receiver_count() > 0 || !self.runs.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    async fn pass_on(self: Arc<Self>, engine: Engine) {
        let mut news = engine.news();
        let mut cursor = engine.cursor();
        loop {
            // Looked at before asking who follows: what is committed later is news again.
            let last = *news.borrow_and_update();
            if !self.is_followed() {
                cursor = last;
            } else if let Ok(next) = self.read(&engine, cursor, last).await {
                cursor = next;
            } else {
                // What was committed is still to be told.
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            if news.changed().await.is_err() {
                return;
            }
            tokio::time::sleep(TOGETHER).await;
        }
    }

    /// Passes on what was committed up to an event.
    async fn read(&self, engine: &Engine, mut cursor: i64, last: i64) -> Result<i64, Error> {
        while cursor < last {
            let page = engine.feed(cursor, PAGE, None).await?;
            let Some((end, _)) = page.last() else { return Ok(last) };
            cursor = end.id;
            for (stored, owner) in page {
                self.send(stored, owner);
            }
        }
        Ok(cursor)
    }

    fn send(&self, stored: StoredEvent, owner: String) {
        let of_run = self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&stored.run).cloned();
        if of_run.is_none() && self.all.receiver_count() == 0 {
            return;
        }
        let frame = Arc::new(Frame::new(stored, owner));
        // Nobody may be left to take it.
        if let Some(of_run) = of_run {
            let _ = of_run.send(frame.clone());
        }
        let _ = self.all.send(frame);
    }
}
