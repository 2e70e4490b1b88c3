//! How fast followers may be served: what they are sent leaves the machine to the work.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What a byte costs: all followers of everything get 32 MB in a second together, and the rest later.
const NANOS_PER_BYTE: u64 = 30;
/// How long somebody waits at most for what others got.
const LONGEST: Duration = Duration::from_secs(1);

/// What was given, as the time that it takes.
pub(super) struct Pace(Mutex<Instant>);

impl Pace {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Somebody was given so many bytes. Tells when they may ask for more.
    pub(super) fn charge(&self, bytes: usize) -> Instant {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let takes = Duration::from_nanos(bytes.saturating_mul(NANOS_PER_BYTE));
        let now = Instant::now();
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *free = ((*free).max(now) + takes).min(now + LONGEST);
        *free
    }
}
