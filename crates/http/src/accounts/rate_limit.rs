//! Rate limit on failed authentication, per address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use steprail_core::run::Millis;

/// Failures before the limit applies.
const BURST: i64 = 10;
/// One more failure is allowed after each interval.
const INTERVAL_MS: i64 = 3_000;
/// The maximum number of addresses that are tracked.
const ADDRESSES: usize = 10_000;

/// A leaky bucket per address: the time at which its failures have drained.
#[derive(Debug, Default)]
pub(crate) struct FailureLimiter(Mutex<HashMap<IpAddr, Millis>>);

impl FailureLimiter {
    /// Seconds until the address may try again, or `None` if it is below the limit.
    pub(crate) fn retry_after_secs(&self, address: IpAddr, now: Millis) -> Option<u64> {
        let drained_at = *self.lock().get(&address)?;
        let excess = drained_at - now - (BURST - 1) * INTERVAL_MS;
        u64::try_from(excess).ok().filter(|excess| *excess > 0).map(|excess| excess.div_ceil(1_000))
    }

    /// Records a failure.
    pub(crate) fn record(&self, address: IpAddr, now: Millis) {
        let mut buckets = self.lock();
        if buckets.len() >= ADDRESSES {
            buckets.retain(|_, drained_at| *drained_at > now);
        }
        // When the table is full, new addresses are not tracked: evicting others would lift their limit.
        if buckets.len() < ADDRESSES || buckets.contains_key(&address) {
            let drained_at = buckets.entry(address).or_insert(now);
            *drained_at = ((*drained_at).max(now) + INTERVAL_MS).min(now + (BURST + 1) * INTERVAL_MS);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Millis>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::FailureLimiter;

    #[test]
    fn ten_failures_then_one_per_interval() {
        let limiter = FailureLimiter::default();
        let (address, other) = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
        for _ in 0..10 {
            assert_eq!(limiter.retry_after_secs(address, 0), None);
            limiter.record(address, 0);
        }
        assert_eq!(limiter.retry_after_secs(address, 0), Some(3));
        assert_eq!(limiter.retry_after_secs(other, 0), None, "other addresses are not limited");
        assert_eq!(limiter.retry_after_secs(address, 3_000), None);
        limiter.record(address, 3_000);
        assert_eq!(limiter.retry_after_secs(address, 3_000), Some(3));
    }
}
