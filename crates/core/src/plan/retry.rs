//! Retry policies and their backoff formulas.

use std::time::Duration;

use crate::spec::retry::{Backoff, FailureKind, Retry, Shape};

/// A retry policy with defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Maximum number of attempts, including the first.
    pub max_attempts: u32,
    /// How the delay grows with the attempts.
    pub backoff: BackoffKind,
    /// The delay before the first retry, in milliseconds.
    pub initial_delay_ms: u64,
    /// The maximum delay, in milliseconds.
    pub max_delay_ms: u64,
    /// The random fraction by which a delay varies, from 0 to 1.
    pub jitter: f64,
    /// The kinds of failure to retry. `None`: all except `permission`, `cancelled` and `limit`.
    pub retry_on: Option<Box<[FailureKind]>>,
}

/// How the delay grows with the attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackoffKind {
    /// Constant.
    Fixed,
    /// Grows by the initial delay each time.
    Linear,
    /// Doubles each time.
    Exponential,
    /// The listed delays, in milliseconds; the last one repeats.
    Delays(Box<[u64]>),
}

impl RetryPolicy {
    const INITIAL_DELAY_MS: u64 = 500;
    const MAX_DELAY_MS: u64 = 10_000;

    /// The default in the graph form: 3 attempts, with delays of 30 s, 120 s and then 300 s (if a definition raises the attempts).
    pub fn graph_default() -> Self {
        Self {
            max_attempts: 3,
            backoff: BackoffKind::Delays([30_000, 120_000, 300_000].into()),
            initial_delay_ms: 30_000,
            max_delay_ms: 300_000,
            jitter: 0.0,
            retry_on: None,
        }
    }

    /// A number of retries with the default delays.
    pub fn retries(count: u32) -> Self {
        Self {
            max_attempts: count.saturating_add(1),
            backoff: BackoffKind::Exponential,
            initial_delay_ms: Self::INITIAL_DELAY_MS,
            max_delay_ms: Self::MAX_DELAY_MS,
            jitter: 0.0,
            retry_on: None,
        }
    }

    /// Fills in the defaults of a policy. Returns `None` if the number of attempts is missing.
    pub(super) fn from_spec(retry: &Retry) -> Option<Self> {
        let fields = match retry {
            Retry::Retries(count) => return Some(Self::retries(count.value)),
            Retry::Policy(fields) => fields,
        };
        let backoff = match &fields.backoff {
            Some(Backoff::Delays(delays)) => {
                BackoffKind::Delays(delays.iter().map(|delay| delay.millis).collect())
            }
            Some(Backoff::Shape(Shape::Fixed)) => BackoffKind::Fixed,
            Some(Backoff::Shape(Shape::Linear)) => BackoffKind::Linear,
            Some(Backoff::Shape(Shape::Exponential)) | None => BackoffKind::Exponential,
        };
        let longest = match &backoff {
            BackoffKind::Delays(delays) => delays.iter().copied().max().unwrap_or_default(),
            _ => Self::MAX_DELAY_MS,
        };
        Some(Self {
            max_attempts: fields.max_attempts.as_ref()?.value,
            backoff,
            initial_delay_ms: fields
                .initial_delay_ms
                .as_ref()
                .map_or(Self::INITIAL_DELAY_MS, |delay| delay.value),
            max_delay_ms: fields.max_delay_ms.as_ref().map_or(longest, |delay| delay.value),
            jitter: fields.jitter.as_ref().map_or(0.0, |jitter| jitter.value.clamp(0.0, 1.0)),
            retry_on: fields.retry_on.as_ref().map(|kinds| kinds.iter().map(|kind| kind.value).collect()),
        })
    }

    /// Returns the delay before an attempt, without jitter. The first attempt is 1 and has no delay.
    pub fn next_delay(&self, attempt: u32) -> Duration {
        let Some(retries) = attempt.checked_sub(2) else { return Duration::ZERO };
        let base = match &self.backoff {
            BackoffKind::Fixed => self.initial_delay_ms,
            BackoffKind::Linear => self.initial_delay_ms.saturating_mul(u64::from(retries) + 1),
            BackoffKind::Exponential => {
                let factor = 1u64.checked_shl(retries).unwrap_or(u64::MAX);
                self.initial_delay_ms.saturating_mul(factor)
            }
            BackoffKind::Delays(delays) => {
                let index =
                    usize::try_from(retries).unwrap_or(usize::MAX).min(delays.len().saturating_sub(1));
                delays.get(index).copied().unwrap_or_default()
            }
        };
        Duration::from_millis(base.min(self.max_delay_ms))
    }

    /// Returns the delay before an attempt, with jitter. `random` is between 0 and 1.
    pub fn jittered_delay(&self, attempt: u32, random: f64) -> Duration {
        let swing = self.jitter.clamp(0.0, 1.0) * (2.0 * random.clamp(0.0, 1.0) - 1.0);
        let delay = self.next_delay(attempt);
        if swing == 0.0 {
            return delay;
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "precision is only lost above 2^53 ms"
        )]
        let varied = (delay.as_millis() as f64 * (1.0 + swing)).round() as u64;
        Duration::from_millis(varied.min(self.max_delay_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(backoff: BackoffKind) -> RetryPolicy {
        RetryPolicy { backoff, ..RetryPolicy::retries(9) }
    }

    fn delays(policy: &RetryPolicy) -> Vec<u128> {
        (0..8).map(|attempt| policy.next_delay(attempt).as_millis()).collect()
    }

    #[test]
    fn backoff_follows_its_formula_up_to_the_maximum() {
        assert_eq!(delays(&policy(BackoffKind::Fixed)), [0, 0, 500, 500, 500, 500, 500, 500]);
        assert_eq!(delays(&policy(BackoffKind::Linear)), [0, 0, 500, 1000, 1500, 2000, 2500, 3000]);
        assert_eq!(delays(&policy(BackoffKind::Exponential)), [0, 0, 500, 1000, 2000, 4000, 8000, 10_000]);
        assert_eq!(
            delays(&RetryPolicy::graph_default()),
            [0, 0, 30_000, 120_000, 300_000, 300_000, 300_000, 300_000]
        );
    }

    #[test]
    fn large_attempt_numbers_do_not_overflow() {
        for backoff in [BackoffKind::Fixed, BackoffKind::Linear, BackoffKind::Exponential] {
            let policy =
                RetryPolicy { initial_delay_ms: u64::MAX, max_delay_ms: u64::MAX, ..policy(backoff) };
            for attempt in [0, 1, 2, 3, 65, 66, 67, u32::MAX - 1, u32::MAX] {
                assert!(policy.jittered_delay(attempt, 1.0) >= Duration::ZERO);
            }
        }
        assert_eq!(RetryPolicy::retries(u32::MAX).max_attempts, u32::MAX);
    }

    #[test]
    fn jitter_stays_within_its_fraction_and_the_maximum() {
        let policy = RetryPolicy { jitter: 0.25, ..policy(BackoffKind::Exponential) };
        let at = |attempt, random| policy.jittered_delay(attempt, random).as_millis();
        assert_eq!((at(2, 0.0), at(2, 0.5), at(2, 1.0)), (375, 500, 625));
        assert_eq!((at(9, 0.0), at(9, 1.0)), (7500, 10_000));
        assert_eq!(at(1, 1.0), 0);
    }
}
