//! How a store was opened, its maintenance tasks and its health.

use steprail_core::run::Millis;

/// Maintenance tasks of a store, which run between commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upkeep {
    /// The engine is busy: check the files only.
    Report,
    /// The engine is idle: check the files, checkpoint, and reserve disk space if there is room again.
    Idle,
    /// A write failed: probe whether the store accepts writes again.
    Probe,
    /// The disk is full and a run is to be cancelled: release the reserved disk space.
    ReleaseReserve,
    /// Reserve the released disk space again, as far as it is still free.
    ReclaimReserve,
    /// Record that the unfinished runs of a restored database are interrupted.
    FinishRestore,
}

/// The state of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Health {
    /// Size of the write-ahead log, in bytes.
    pub wal_bytes: u64,
}

/// The state of a store when it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    /// The time of the last event. The clock of an engine must not go back before it.
    pub last_time: Option<Millis>,
    /// A restore whose unfinished runs are not interrupted yet.
    pub restored: Option<RestoredBackup>,
}

/// The backup that a database was restored from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoredBackup {
    /// The incarnation that the restore started.
    pub incarnation: u64,
    /// When the backup was made. The database knows nothing of calls after this time.
    pub backup_at: Millis,
}
