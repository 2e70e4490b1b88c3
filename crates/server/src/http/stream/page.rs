//! Events as they are sent: written once for everybody who follows.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use serde::Serialize;
use steprail_engine::{Event, RawEvent, RunId, StoredEvent};

use crate::view;

/// An event, as it is sent.
#[derive(Debug)]
pub(crate) struct Frame {
    pub id: i64,
    pub run: RunId,
    pub seq: u64,
    /// Whose run it is.
    pub owner: String,
    /// The event as JSON.
    pub json: String,
    /// Where its kind stands there.
    kind: Range<usize>,
}

impl Frame {
    pub(super) fn new<E: Serialize>(stored: StoredEvent<E>, owner: String) -> Self {
        let (id, run, seq) = (stored.id, stored.run, stored.seq);
        let json = serde_json::to_string(&view::Event::from(stored)).unwrap_or_default();
        let kind = kind_in(&json);
        Self { id, run, seq, owner, json, kind }
    }

    /// What kind of event it is.
    pub(crate) fn kind(&self) -> &str {
        self.json.get(self.kind.clone()).unwrap_or_default()
    }

    /// What happened.
    pub(super) fn event(&self) -> Option<Event> {
        let event: view::Event = serde_json::from_str(&self.json).ok()?;
        Some(event.event)
    }

    /// Whether it is the end of its run.
    fn is_end(&self) -> bool {
        Event::ENDS.contains(&self.kind())
    }

    /// Its place in its run.
    pub(super) fn in_run(&self) -> i64 {
        i64::try_from(self.seq).unwrap_or(i64::MAX)
    }

    /// Its place among all.
    pub(super) fn in_all(&self) -> i64 {
        self.id
    }
}

/// The word after this: events are tagged first.
fn kind_in(json: &str) -> Range<usize> {
    const BEFORE: &str = "\"event\":{\"type\":\"";
    let begin = json.find(BEFORE).map_or(json.len(), |at| at + BEFORE.len());
    begin..json[begin..].find('"').map_or(json.len(), |length| begin + length)
}

/// What counts as the place of an event: in its run, or among all.
pub(super) type Place = fn(&Frame) -> i64;

/// Events that come after one another, shared by those who get them.
pub(crate) struct Page {
    frames: Vec<Arc<Frame>>,
    place: Place,
    sse: OnceLock<Bytes>,
}

impl Page {
    pub(super) fn new(place: Place, frames: Vec<Arc<Frame>>) -> Arc<Self> {
        Arc::new(Self { frames, place, sse: OnceLock::new() })
    }

    /// Events of all runs, each with whose run it is.
    pub(super) fn of_all(events: impl IntoIterator<Item = (RawEvent, String)>) -> Arc<Self> {
        let frames = events.into_iter().map(|(stored, owner)| Arc::new(Frame::new(stored, owner)));
        Self::new(Frame::in_all, frames.collect())
    }

    pub(crate) fn frames(&self) -> &[Arc<Frame>] {
        &self.frames
    }

    pub(super) fn first(&self) -> Option<i64> {
        self.frames.first().map(|frame| (self.place)(frame))
    }

    pub(super) fn last(&self) -> Option<i64> {
        self.frames.last().map(|frame| (self.place)(frame))
    }

    pub(super) fn bytes(&self) -> usize {
        self.frames.iter().map(|frame| frame.json.len()).sum()
    }

    /// Whether a run ends on it.
    pub(super) fn has_end(&self) -> bool {
        self.frames.iter().any(|frame| frame.is_end())
    }

    /// Those of its events that come after a place and that somebody may see. The page itself, where that is all.
    pub(super) fn after(self: Arc<Self>, cursor: i64, sees: impl Fn(&Frame) -> bool) -> Arc<Self> {
        let is_wanted = |frame: &Arc<Frame>| (self.place)(frame) > cursor && sees(frame);
        if self.frames.iter().all(is_wanted) {
            return self;
        }
        Self::new(self.place, self.frames.iter().filter(|frame| is_wanted(frame)).cloned().collect())
    }

    /// Its events as server-sent events.
    pub(super) fn sse(&self) -> Bytes {
        let write = || {
            let mut text = String::with_capacity(self.bytes() + 64 * self.frames.len());
            for frame in &self.frames {
                let (id, kind, json) = ((self.place)(frame), frame.kind(), &frame.json);
                text.push_str(&format!("id: {id}\nevent: {kind}\ndata: {json}\n\n"));
            }
            text.into()
        };
        self.sse.get_or_init(write).clone()
    }
}
