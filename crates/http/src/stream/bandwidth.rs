//! Bandwidth limit of the streams of all runs, so that readers cannot starve the engine.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Cost of a byte: all followers together get about 32 MB/s.
const NANOS_PER_BYTE: u64 = 30;
/// The maximum delay of one follower.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// A leaky bucket: the time at which the bytes sent so far have drained.
pub(super) struct Bandwidth(Mutex<Instant>);

impl Bandwidth {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Charges bytes to the limit. Returns when the follower may read again.
    pub(super) fn charge(&self, bytes: usize) -> Instant {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let cost = Duration::from_nanos(bytes.saturating_mul(NANOS_PER_BYTE));
        let now = Instant::now();
        let mut drained_at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *drained_at = ((*drained_at).max(now) + cost).min(now + MAX_DELAY);
        *drained_at
    }
}
