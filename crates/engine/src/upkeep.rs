//! When the store does its upkeep: checkpoints when the engine is idle, and checks of its files at intervals.

use std::time::{Duration, Instant};

use steprail_store::limits::WAL_WARNING_BYTES;
use steprail_store::{Health, Upkeep};

use crate::limits::{IDLE_UPKEEP_MS, UPKEEP_INTERVAL_MS};

/// The times of the next upkeep.
#[derive(Debug)]
pub(crate) struct UpkeepTimes {
    /// When the engine counts as idle; `None` if the store has done its upkeep since the last commit.
    idle_at: Option<Instant>,
    report_at: Instant,
    is_warned: bool,
}

impl UpkeepTimes {
    pub(crate) fn new() -> Self {
        Self { idle_at: None, report_at: Instant::now(), is_warned: false }
    }

    /// Records that a batch was handled.
    pub(crate) fn worked(&mut self) {
        self.idle_at = Some(Instant::now() + Duration::from_millis(IDLE_UPKEEP_MS));
    }

    /// The time of the next upkeep.
    pub(crate) fn next(&self) -> Instant {
        self.idle_at.map_or(self.report_at, |idle_at| idle_at.min(self.report_at))
    }

    /// The upkeep that is due now.
    pub(crate) fn due(&mut self) -> Option<Upkeep> {
        let now = Instant::now();
        if now < self.next() {
            return None;
        }
        self.report_at = now + Duration::from_millis(UPKEEP_INTERVAL_MS);
        let is_idle = self.idle_at.take_if(|idle_at| *idle_at <= now).is_some();
        Some(if is_idle { Upkeep::Idle } else { Upkeep::Report })
    }

    /// Warns once when the WAL exceeds its limit. Returns its size.
    pub(crate) fn checked(&mut self, health: Health) -> u64 {
        let is_large = health.wal_bytes > WAL_WARNING_BYTES;
        if is_large && !self.is_warned {
            tracing::warn!(
                bytes = health.wal_bytes,
                limit = WAL_WARNING_BYTES,
                "the write-ahead log is large: a long read, such as a backup or another program, blocks checkpoints"
            );
        }
        self.is_warned = is_large;
        health.wal_bytes
    }
}
