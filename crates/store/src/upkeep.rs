//! What an engine has to know about a store beside its contents: how it was opened, its upkeep and its health.

use steprail_core::run::Millis;

/// Work that a store does between commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upkeep {
    /// The engine is busy: verify the files, and nothing else.
    Report,
    /// The engine is idle: verify the files, checkpoint, and reserve disk space if there is room again.
    Idle,
    /// A write failed: try one, to learn whether the store accepts writes again.
    Probe,
    /// The disk is full and a run is to be cancelled: release the reserved disk space.
    ReleaseReserve,
    /// Reserve what is left of the released disk space.
    ReclaimReserve,
    /// The unfinished runs of a restored database are parked.
    FinishRestore,
}

/// The state of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Health {
    /// Size of the write-ahead log, in bytes.
    pub wal_bytes: u64,
}

/// What a store contained when it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    /// The time of the last event. The time of an engine must not be before it.
    pub last_time: Option<Millis>,
    /// A restore whose unfinished runs are not parked yet.
    pub restored: Option<RestoredBackup>,
}

/// The backup that a database was restored from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoredBackup {
    /// The incarnation that the restore started.
    pub incarnation: u64,
    /// When the backup was made. Calls after this time are unknown to the database.
    pub backup_at: Millis,
}
