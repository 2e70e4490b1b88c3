//! Quotas of users: limits on the resources that one user can occupy, so that other users and the owner can continue to
//! work.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::metrics;
use crate::user::User;

/// Limits per user. `None` means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Unfinished runs. Runs of sub-workflows belong to the run that waits for them and do not count.
    pub active_runs: Option<u32>,
    /// Runs started per minute, also by schedules. After a pause, this many starts are possible at once.
    pub starts_per_minute: Option<u32>,
    /// Bytes of stored runs and definitions.
    pub stored_bytes: Option<u64>,
    /// Schedules.
    pub schedules: Option<u32>,
    /// Open event streams.
    pub subscriptions: Option<u32>,
    /// Id of the user that has no quotas.
    pub owner: Option<String>,
}

impl Quotas {
    /// Whether quotas apply to a user.
    pub(crate) fn bind(&self, user: &str) -> bool {
        self.owner.as_deref() != Some(user)
    }
}

/// The resource that a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// [`Quotas::active_runs`]
    ActiveRuns,
    /// [`Quotas::starts_per_minute`]
    StartsPerMinute,
    /// [`Quotas::stored_bytes`]
    StoredBytes,
    /// [`Quotas::schedules`]
    Schedules,
    /// [`Quotas::subscriptions`]
    Subscriptions,
}

impl Quota {
    /// The name of the setting, without its section.
    pub fn name(self) -> &'static str {
        match self {
            Self::ActiveRuns => "active_runs",
            Self::StartsPerMinute => "starts_per_minute",
            Self::StoredBytes => "stored_bytes",
            Self::Schedules => "schedules",
            Self::Subscriptions => "subscriptions",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::ActiveRuns => "unfinished runs",
            Self::StartsPerMinute => "started runs per minute",
            Self::StoredBytes => "bytes of stored runs and definitions",
            Self::Schedules => "schedules",
            Self::Subscriptions => "open event streams",
        }
    }

    /// What the user can do about it.
    fn remedy(self) -> &'static str {
        match self {
            Self::ActiveRuns => "wait until runs end, or cancel some",
            Self::StartsPerMinute => "start fewer runs, or try again later",
            Self::StoredBytes => "delete runs that ended with retention (`store.keep`) or `steprail purge`",
            Self::Schedules => "delete a schedule",
            Self::Subscriptions => "close a stream",
        }
    }
}

/// A quota that a request would exceed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaExceeded {
    /// The quota.
    pub quota: Quota,
    /// Id of the user.
    pub user: String,
    /// The limit.
    pub limit: u64,
    /// For a rate: how long to wait until the request can succeed, in milliseconds.
    pub retry_after_ms: Option<u64>,
}

impl QuotaExceeded {
    pub(crate) fn amount(quota: Quota, user: &str, limit: u64) -> Error {
        Self { quota, user: user.to_owned(), limit, retry_after_ms: None }.into_error()
    }

    pub(crate) fn rate(quota: Quota, user: &str, limit: u64, retry_after_ms: u64) -> Error {
        Self { quota, user: user.to_owned(), limit, retry_after_ms: Some(retry_after_ms) }.into_error()
    }

    fn into_error(self) -> Error {
        metrics::quota_exceeded(self.quota.name());
        Error::QuotaExceeded(self)
    }

    /// Seconds to wait, rounded up; `None` if waiting does not help.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after_ms.map(|millis| millis.div_ceil(1_000).max(1))
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        let (remedy, name) = (self.quota.remedy(), self.quota.name());
        format!("{remedy}; the operator can raise `quota.{name}`")
    }
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the quota of {} is exhausted: {} {}", self.user, self.limit, self.quota.noun())?;
        match self.retry_after_secs() {
            Some(seconds) => write!(out, "; try again in {seconds} s"),
            None => Ok(()),
        }
    }
}

/// The open event streams of each user.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenSubscriptions(Arc<Mutex<HashMap<String, u32>>>);

/// One of a user's open event streams. It is released when it is dropped.
#[derive(Debug)]
pub struct SubscriptionSlot {
    open: OpenSubscriptions,
    user: String,
}

impl OpenSubscriptions {
    fn open(&self, user: &str, limit: Option<u32>) -> Result<SubscriptionSlot, Error> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.get(user).copied().unwrap_or_default();
        if let Some(limit) = limit.filter(|limit| count >= *limit) {
            return Err(QuotaExceeded::amount(Quota::Subscriptions, user, limit.into()));
        }
        open.insert(user.to_owned(), count.saturating_add(1));
        Ok(SubscriptionSlot { open: self.clone(), user: user.to_owned() })
    }
}

impl Drop for SubscriptionSlot {
    fn drop(&mut self) {
        let mut open = self.open.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = open.get(&self.user).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            open.remove(&self.user);
        } else {
            open.insert(self.user.clone(), left);
        }
    }
}

impl User {
    /// Takes a slot for an event stream of the user. Surfaces that read events themselves hold it while the stream is open.
    pub fn open_subscription(&self) -> Result<SubscriptionSlot, Error> {
        let (shared, user) = (&self.engine().0, &self.principal().id);
        let limit = shared.quotas.subscriptions.filter(|_| shared.quotas.bind(user));
        shared.subscriptions.open(user, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_slot_can_be_taken_again() {
        let open = OpenSubscriptions::default();
        let first = open.open("ann", Some(2)).expect("a slot");
        let _second = open.open("ann", Some(2)).expect("a slot");
        let error = open.open("ann", Some(2)).expect_err("two are open");
        assert_eq!(error.to_string(), "the quota of ann is exhausted: 2 open event streams");
        assert!(open.open("bob", Some(2)).is_ok(), "each user has a quota");
        drop(first);
        assert!(open.open("ann", Some(2)).is_ok());
    }
}
