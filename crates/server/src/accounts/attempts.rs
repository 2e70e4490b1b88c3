//! Who tries to guess: after some refused attempts, further ones from the same place have to wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use steprail_core::run::Millis;

/// Attempts that may be refused at once.
const BURST: i64 = 10;
/// Milliseconds after which one more is allowed.
const PAUSE_MS: i64 = 3_000;
/// Places that are remembered.
const PLACES: usize = 10_000;

/// Refused attempts, by where they came from: for each, until when its attempts are used up.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<HashMap<IpAddr, Millis>>);

impl Attempts {
    /// Seconds until somewhere may try again, if it has tried too often.
    pub(crate) fn must_wait(&self, place: IpAddr, now: Millis) -> Option<u64> {
        let used = *self.lock().get(&place)?;
        let over = used - now - (BURST - 1) * PAUSE_MS;
        u64::try_from(over).ok().filter(|over| *over > 0).map(|over| over.div_ceil(1_000))
    }

    /// An attempt was refused.
    pub(crate) fn refused(&self, place: IpAddr, now: Millis) {
        let mut places = self.lock();
        if places.len() >= PLACES {
            places.retain(|_, used| *used > now);
        }
        // With so many places at once, whoever comes next is not remembered; those who are stay so.
        if places.len() < PLACES || places.contains_key(&place) {
            let used = places.entry(place).or_insert(now);
            *used = ((*used).max(now) + PAUSE_MS).min(now + (BURST + 1) * PAUSE_MS);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Millis>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::Attempts;

    #[test]
    fn after_ten_refusals_each_further_attempt_waits() {
        let attempts = Attempts::default();
        let (here, there) = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
        for _ in 0..10 {
            assert_eq!(attempts.must_wait(here, 0), None);
            attempts.refused(here, 0);
        }
        assert_eq!(attempts.must_wait(here, 0), Some(3));
        assert_eq!(attempts.must_wait(there, 0), None, "others need not wait");
        assert_eq!(attempts.must_wait(here, 3_000), None);
        attempts.refused(here, 3_000);
        assert_eq!(attempts.must_wait(here, 3_000), Some(3));
    }
}
