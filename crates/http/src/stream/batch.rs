//! Batches of events, serialized once and shared by all followers.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use serde::Serialize;
use steprail_engine::{Cursor, Event, RawEvent, RunId, Starter, StoredEvent};

use crate::views;

/// A serialized event.
#[derive(Debug)]
pub(crate) struct Frame {
    pub cursor: Cursor,
    pub run: RunId,
    pub seq: u64,
    /// Who started the run; nobody in a stream of one run.
    pub starter: Arc<Starter>,
    /// The event as JSON.
    pub json: String,
    /// Position of the event type in `json`.
    kind: Range<usize>,
}

impl Frame {
    pub(super) fn new<E: Serialize>(stored: StoredEvent<E>, starter: Arc<Starter>) -> Self {
        let (cursor, run, seq) = (stored.cursor, stored.run, stored.seq);
        let json = serde_json::to_string(&views::Event::from(stored)).unwrap_or_default();
        let kind = kind_in(&json);
        Self { cursor, run, seq, starter, json, kind }
    }

    /// The event type.
    pub(crate) fn kind(&self) -> &str {
        self.json.get(self.kind.clone()).unwrap_or_default()
    }

    pub(super) fn event(&self) -> Option<Event> {
        let event: views::Event = serde_json::from_str(&self.json).ok()?;
        Some(event.event)
    }

    /// Whether it ends its run.
    fn is_end(&self) -> bool {
        Event::ENDS.contains(&self.kind())
    }
}

/// The position of the event type: the tag is the first field of an event.
fn kind_in(json: &str) -> Range<usize> {
    const BEFORE: &str = "\"event\":{\"type\":\"";
    let begin = json.find(BEFORE).map_or(json.len(), |at| at + BEFORE.len());
    begin..json[begin..].find('"').map_or(json.len(), |length| begin + length)
}

/// Consecutive events of one run or of all runs, shared by their receivers.
pub(crate) struct Batch {
    frames: Vec<Arc<Frame>>,
    sse: OnceLock<Bytes>,
}

impl Batch {
    pub(super) fn new(frames: Vec<Arc<Frame>>) -> Arc<Self> {
        Arc::new(Self { frames, sse: OnceLock::new() })
    }

    /// Events of all runs, each with the starter of its run.
    pub(super) fn of_all(events: impl IntoIterator<Item = (RawEvent, Arc<Starter>)>) -> Arc<Self> {
        let frames = events.into_iter().map(|(stored, starter)| Arc::new(Frame::new(stored, starter)));
        Self::new(frames.collect())
    }

    pub(crate) fn frames(&self) -> &[Arc<Frame>] {
        &self.frames
    }

    pub(super) fn last(&self) -> Option<&Frame> {
        self.frames.last().map(|frame| &**frame)
    }

    /// The cursor of its last event.
    pub(super) fn cursor(&self) -> Option<Cursor> {
        self.last().map(|last| last.cursor)
    }

    pub(super) fn bytes(&self) -> usize {
        self.frames.iter().map(|frame| frame.json.len()).sum()
    }

    /// Whether it contains the end of a run.
    pub(super) fn has_end(&self) -> bool {
        self.frames.iter().any(|frame| frame.is_end())
    }

    /// Its events after a cursor that `sees` accepts; itself if these are all.
    pub(super) fn after(self: Arc<Self>, cursor: Cursor, sees: impl Fn(&Frame) -> bool) -> Arc<Self> {
        let is_kept = |frame: &Arc<Frame>| frame.cursor > cursor && sees(frame);
        if self.frames.iter().all(is_kept) {
            return self;
        }
        Self::new(self.frames.iter().filter(|frame| is_kept(frame)).cloned().collect())
    }

    /// The events in SSE format, formatted once.
    pub(super) fn sse(&self) -> Bytes {
        let write = || {
            let mut text = String::with_capacity(self.bytes() + 64 * self.frames.len());
            for frame in &self.frames {
                let (id, kind, json) = (frame.cursor, frame.kind(), &frame.json);
                text.push_str(&format!("id: {id}\nevent: {kind}\ndata: {json}\n\n"));
            }
            text.into()
        };
        self.sse.get_or_init(write).clone()
    }
}
