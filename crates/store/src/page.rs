//! Pages of events, for every store.

use crate::{Cursor, EventPage};

/// Bytes of events, or of values of steps, after which a page ends.
pub(crate) const PAGE_BYTES: usize = 1024 * 1024;

/// Collects a page of events: at most `limit`, and no more once they have [`PAGE_BYTES`].
pub(crate) struct PageBuilder<T> {
    events: Vec<T>,
    limit: usize,
    bytes: usize,
    last: Option<Cursor>,
    is_full: bool,
}

impl<T> PageBuilder<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { events: Vec::new(), limit, bytes: 0, last: None, is_full: false }
    }

    /// Adds the events of a row. Returns whether the page takes more.
    pub(crate) fn add(&mut self, bytes: usize, events: impl Iterator<Item = (Cursor, T)>) -> bool {
        for (cursor, event) in events {
            if self.events.len() >= self.limit || self.bytes >= PAGE_BYTES {
                self.is_full = true;
                return false;
            }
            self.last = Some(cursor);
            self.events.push(event);
        }
        self.bytes += bytes;
        true
    }

    /// Ends the page at a position before the end of the log.
    pub(crate) fn stop_at(mut self, cursor: Cursor) -> EventPage<T> {
        (self.last, self.is_full) = (Some(cursor), true);
        self.finish()
    }

    pub(crate) fn finish(self) -> EventPage<T> {
        EventPage { events: self.events, next: self.last.filter(|_| self.is_full) }
    }
}
