//! Usage of each user, counted from commits and compared with quotas before a run starts.
//!
//! Counts are loaded with one indexed query when a user first needs them. Changes of the open transaction are kept apart
//! until it is committed.

use std::collections::BTreeMap;
use std::sync::Arc;

use steprail_core::run::{Millis, Payload, Record};
use steprail_store::{Head, Reads, StoreError};

use super::{Kernel, StartRun};
use crate::error::Error;
use crate::limits::{COUNTED_RUNS, EVENT_BYTES, QUOTA_USERS};
use crate::quotas::{Quota, QuotaExceeded, Quotas};

const MINUTE_MICROS: i64 = 60_000_000;

/// Counts the resources of users. Without quotas it counts only the bytes of runs.
#[derive(Default)]
pub(super) struct QuotaLedger {
    quotas: Quotas,
    /// `None` if there are no quotas.
    readers: Option<Arc<dyn Reads>>,
    users: BTreeMap<String, UserUsage>,
    /// Changes of the open transaction.
    changes: BTreeMap<String, Change>,
    /// Whether the open transaction deletes runs.
    deletes: bool,
}

/// Committed usage of one user.
#[derive(Debug, Clone, Copy, Default)]
struct UserUsage {
    /// `None` if the counts must be loaded.
    counts: Option<Counts>,
    /// Leaky bucket of starts: the time at which it is empty, in microseconds.
    drained_at: i64,
}

#[derive(Debug, Clone, Copy)]
struct Counts {
    active_runs: i64,
    stored_bytes: i64,
    /// Whether all unfinished runs were counted. Otherwise there are at least [`COUNTED_RUNS`].
    is_exact: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Change {
    active_runs: i64,
    stored_bytes: i64,
    starts: i64,
    now: Millis,
}

impl Kernel {
    /// Enforces quotas. Usage is loaded from the readers.
    pub(crate) fn enforce_quotas(&mut self, quotas: Quotas, readers: Arc<dyn Reads>) {
        if quotas != (Quotas { owner: quotas.owner.clone(), ..Quotas::default() }) {
            self.quotas = QuotaLedger { quotas, readers: Some(readers), ..QuotaLedger::default() };
        }
    }

    /// The quota that a start would exceed. A repeated start with the key of an earlier one exceeds none, because it
    /// creates no run.
    pub(super) fn exceeded_quota(
        &mut self,
        start: &StartRun,
        now: Millis,
    ) -> Result<Option<Error>, StoreError> {
        let user = &start.principal.id;
        let Some(exceeded) = self.quotas.check_start(user, now)? else { return Ok(None) };
        let is_repeated = match &start.request_key {
            Some(key) => self.batch.request(user, key)?.is_some(),
            None => false,
        };
        Ok((!is_repeated).then_some(exceeded))
    }
}

impl QuotaLedger {
    /// The quota that another run of a user would exceed.
    fn check_start(&mut self, user: &str, now: Millis) -> Result<Option<Error>, StoreError> {
        if !self.is_bound(user) {
            return Ok(None);
        }
        if let Some(limit) = self.quotas.active_runs
            && self.active_runs(user, limit)? >= i64::from(limit)
        {
            return Ok(Some(QuotaExceeded::amount(Quota::ActiveRuns, user, limit.into())));
        }
        if let Some(exceeded) = self.check_storage(user)? {
            return Ok(Some(exceeded));
        }
        Ok(self.check_rate(user, now))
    }

    /// The quota that storing more for a user would exceed.
    pub(super) fn check_storage(&mut self, user: &str) -> Result<Option<Error>, StoreError> {
        let Some(limit) = self.quotas.stored_bytes.filter(|_| self.is_bound(user)) else { return Ok(None) };
        let bytes = self.counts(user)?.stored_bytes + self.change(user).stored_bytes;
        let is_full = u64::try_from(bytes).unwrap_or_default() >= limit;
        Ok(is_full.then(|| QuotaExceeded::amount(Quota::StoredBytes, user, limit)))
    }

    fn check_rate(&self, user: &str, now: Millis) -> Option<Error> {
        let limit = self.quotas.starts_per_minute?;
        let interval = MINUTE_MICROS / i64::from(limit.max(1));
        let now = now.saturating_mul(1_000);
        let drained_at = self.users.get(user).map_or(now, |usage| usage.drained_at.max(now));
        let full_at = drained_at + (self.change(user).starts + 1) * interval;
        let excess = full_at - now - i64::from(limit) * interval;
        let wait = u64::try_from(excess).ok().filter(|excess| *excess > 0)?;
        Some(QuotaExceeded::rate(Quota::StartsPerMinute, user, limit.into(), wait.div_ceil(1_000)))
    }

    fn is_bound(&self, user: &str) -> bool {
        self.readers.is_some() && self.quotas.bind(user)
    }

    fn change(&self, user: &str) -> Change {
        self.changes.get(user).copied().unwrap_or_default()
    }

    fn active_runs(&mut self, user: &str, limit: u32) -> Result<i64, StoreError> {
        let counts = self.counts(user)?;
        if !counts.is_exact && counts.active_runs < i64::from(limit) {
            self.users.entry(user.to_owned()).or_default().counts = None;
        }
        Ok(self.counts(user)?.active_runs + self.change(user).active_runs)
    }

    /// The committed counts of a user.
    fn counts(&mut self, user: &str) -> Result<Counts, StoreError> {
        if let Some(UserUsage { counts: Some(counts), .. }) = self.users.get(user) {
            return Ok(*counts);
        }
        let most =
            self.quotas.active_runs.map_or(COUNTED_RUNS, |quota| COUNTED_RUNS.max(u64::from(quota) + 1));
        let usage = match &self.readers {
            Some(readers) => readers.usage(user, most)?,
            None => steprail_store::Usage::default(),
        };
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let counts = Counts {
            active_runs: count(usage.active_runs),
            stored_bytes: count(usage.stored_bytes),
            is_exact: usage.active_runs < most,
        };
        self.users.entry(user.to_owned()).or_default().counts = Some(counts);
        Ok(counts)
    }

    /// Counts a run that is created, and returns the bytes of its inputs.
    pub(super) fn started(&mut self, user: &str, is_child: bool, inputs: &Payload, now: Millis) -> u64 {
        let bytes = inputs.json().len();
        if let Some(change) = self.change_mut(user) {
            change.stored_bytes += i64::try_from(bytes).unwrap_or(i64::MAX);
            if !is_child {
                change.active_runs += 1;
                change.starts += 1;
                change.now = now;
            }
        }
        bytes as u64
    }

    /// Counts a run that ends.
    pub(super) fn ended(&mut self, head: &Head) {
        if head.parent.is_none()
            && let Some(change) = self.change_mut(&head.principal.id)
        {
            change.active_runs -= 1;
        }
    }

    /// Counts events and their values, and returns their bytes.
    pub(super) fn stored(&mut self, user: &str, records: &[Record]) -> u64 {
        let values: usize =
            records.iter().filter_map(|record| record.payload.as_ref()).map(|value| value.json().len()).sum();
        let bytes = values + records.len() * EVENT_BYTES;
        if let Some(change) = self.change_mut(user) {
            change.stored_bytes += i64::try_from(bytes).unwrap_or(i64::MAX);
        }
        bytes as u64
    }

    /// Marks that the open transaction deletes runs. Counts are loaded again after it.
    pub(super) fn purged(&mut self) {
        self.deletes = true;
    }

    fn change_mut(&mut self, user: &str) -> Option<&mut Change> {
        if !self.is_bound(user) {
            return None;
        }
        if !self.changes.contains_key(user) {
            self.changes.insert(user.to_owned(), Change::default());
        }
        self.changes.get_mut(user)
    }

    pub(super) fn commit(&mut self) {
        let now = self.changes.values().map(|change| change.now).max().unwrap_or_default();
        for (user, change) in std::mem::take(&mut self.changes) {
            if change.starts > 0 {
                self.charge_rate(&user, change);
            }
            if let Some(UserUsage { counts: Some(counts), .. }) = self.users.get_mut(&user) {
                counts.active_runs += change.active_runs;
                counts.stored_bytes += change.stored_bytes;
            }
        }
        self.evict(now);
        if std::mem::take(&mut self.deletes) {
            self.users.values_mut().for_each(|usage| usage.counts = None);
        }
    }

    /// Bounds the number of cached users. Counts can be loaded again; a bucket that is not empty is kept.
    fn evict(&mut self, now: Millis) {
        if self.users.len() > QUOTA_USERS {
            self.users.retain(|_, usage| usage.drained_at > now.saturating_mul(1_000));
        }
    }

    fn charge_rate(&mut self, user: &str, change: Change) {
        let Some(limit) = self.quotas.starts_per_minute else { return };
        let interval = MINUTE_MICROS / i64::from(limit.max(1));
        let usage = self.users.entry(user.to_owned()).or_default();
        usage.drained_at = usage.drained_at.max(change.now.saturating_mul(1_000)) + change.starts * interval;
    }

    pub(super) fn rollback(&mut self) {
        self.changes.clear();
        self.deletes = false;
    }
}
