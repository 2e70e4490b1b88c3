//! When a failed delivery is tried again, and when it becomes a dead letter.

use steprail_core::run::Millis;

use crate::channel::Retry;
use crate::limits::{BACKOFF_MAX_MS, BACKOFF_MS, DEAD_LETTER_MS, RETRY_AFTER_MAX_MS};

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another attempt at this time.
    At(Millis),
    /// No further attempt, unless an operator re-sends the message.
    DeadLetter,
}

/// A failed attempt of a delivery.
#[derive(Debug, Clone, Copy)]
pub struct FailedAttempt<'d> {
    /// Identifies the delivery. It spreads the retries of many deliveries.
    pub id: &'d str,
    /// Attempts so far, at least 1.
    pub attempts: u32,
    /// The time of the first attempt.
    pub first: Millis,
    /// The current time.
    pub now: Millis,
    /// What the channel said.
    pub retry: Retry,
}

/// The delay doubles with each attempt up to a limit, plus up to an eighth that depends on the id. It is never shorter than
/// the service asked for. A time after the limit of the delivery is moved to that limit, so that the last attempt is late.
pub fn next_attempt(failed: FailedAttempt<'_>) -> Next {
    let Retry::After(asked) = failed.retry else { return Next::DeadLetter };
    let last = failed.first.saturating_add(DEAD_LETTER_MS);
    if failed.now >= last {
        return Next::DeadLetter;
    }
    let doublings = failed.attempts.saturating_sub(1).min(20);
    let delay = (BACKOFF_MS << doublings).min(BACKOFF_MAX_MS);
    let delay = delay + spread(failed.id, failed.attempts) % (delay / 8);
    let asked = asked.map_or(0, |asked| i64::try_from(asked.as_millis()).unwrap_or(i64::MAX));
    let delay = delay.max(asked.min(RETRY_AFTER_MAX_MS));
    Next::At(failed.now.saturating_add(delay).min(last))
}

/// The shortest time that this number of failed attempts takes. A caller that does not store the time of the first attempt
/// computes it from this.
pub fn shortest_time(attempts: u32) -> Millis {
    let doublings = 0..attempts.saturating_sub(1).min(20);
    let doubled: Millis = doublings.map(|doublings| (BACKOFF_MS << doublings).min(BACKOFF_MAX_MS)).sum();
    let further = Millis::from(attempts.saturating_sub(21));
    doubled.saturating_add(further.saturating_mul(BACKOFF_MAX_MS))
}

/// FNV-1a over the id and the attempt, as a positive number.
fn spread(id: &str, attempts: u32) -> i64 {
    let bytes = id.bytes().chain(attempts.to_le_bytes());
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, step);
    i64::try_from(hash >> 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn failed(attempts: u32, now: Millis, retry: Retry) -> FailedAttempt<'static> {
        FailedAttempt { id: "n1", attempts, first: 0, now, retry }
    }

    /// The times of all attempts while a channel is down.
    fn attempts(id: &str) -> Vec<Millis> {
        let (mut now, mut times) = (0, vec![0]);
        loop {
            let attempts = u32::try_from(times.len()).unwrap();
            let failed = FailedAttempt { id, attempts, first: 0, now, retry: Retry::After(None) };
            match next_attempt(failed) {
                Next::At(at) => now = at,
                Next::DeadLetter => return times,
            }
            times.push(now);
        }
    }

    #[test]
    fn survives_an_outage_of_a_day_and_ends_after_three() {
        let times = attempts("n1");
        let day = 24 * 3_600_000;
        let after_a_day = times.iter().find(|at| **at >= day).unwrap();
        assert!(*after_a_day < day + 2 * BACKOFF_MAX_MS, "{after_a_day}");
        assert_eq!(*times.last().unwrap(), DEAD_LETTER_MS);
        assert!(times.len() < 400, "{}", times.len());
    }

    #[test]
    fn attempts_alone_end_the_delivery_after_three_days_at_the_earliest() {
        let (mut now, mut attempts) = (1_000_000, 1);
        let start = now;
        while let Next::At(at) = {
            let first = now - shortest_time(attempts);
            assert!(first >= start, "no shorter than the attempts took");
            next_attempt(FailedAttempt { id: "n1", attempts, first, now, retry: Retry::After(None) })
        } {
            (now, attempts) = (at, attempts + 1);
        }
        let days = 3 * 24 * 3_600_000..4 * 24 * 3_600_000;
        assert!(days.contains(&(now - start)), "{}", now - start);
    }

    #[test]
    fn different_deliveries_are_spread() {
        assert_ne!(attempts("a")[3], attempts("b")[3]);
    }

    #[test]
    fn permanent_errors_are_dead_letters() {
        assert_eq!(next_attempt(failed(1, 0, Retry::Never)), Next::DeadLetter);
    }

    proptest! {
        #[test]
        fn honours_retry_after(attempts in 1..100_u32, secs in 0..u64::MAX, now in 0..DEAD_LETTER_MS) {
            let asked = Duration::from_secs(secs);
            let Next::At(at) = next_attempt(failed(attempts, now, Retry::After(Some(asked)))) else {
                panic!("not a dead letter yet")
            };
            let asked = i64::try_from(asked.as_millis()).unwrap_or(i64::MAX).min(RETRY_AFTER_MAX_MS);
            prop_assert!(at >= (now + asked).min(DEAD_LETTER_MS));
            prop_assert!(at <= DEAD_LETTER_MS);
            prop_assert!(at > now);
        }
    }
}
