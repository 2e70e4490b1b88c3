//! Wrong factors per link: whoever holds a forwarded link can neither guess the factor of its recipient nor lock them out.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use steprail_core::run::Millis;

use super::token::Link;
use crate::limits::{COUNTED_LINKS, LINK_FAILURES};

/// Wrong factors by the id of the link, with the time at which the link expires.
#[derive(Default)]
pub(crate) struct LinkAttempts(Mutex<HashMap<Box<str>, (u32, Millis)>>);

impl LinkAttempts {
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, (u32, Millis)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an attempt before it is verified, so that parallel ones cannot exceed the limit. Returns whether it is allowed.
    pub(super) fn begin(&self, link: &Link, now: Millis) -> bool {
        let mut counts = self.lock();
        if counts.len() >= COUNTED_LINKS {
            counts.retain(|_, (_, expires_at)| *expires_at > now);
        }
        if counts.len() >= COUNTED_LINKS && !counts.contains_key(&link.id) {
            return false;
        }
        let (count, _) = counts.entry(link.id.clone()).or_insert((0, link.expires_at));
        *count = count.saturating_add(1);
        *count <= LINK_FAILURES
    }

    /// The factor was right.
    pub(super) fn succeed(&self, link: &Link) {
        self.lock().remove(&link.id);
    }
}
