//! The limits of the store.

use std::time::Duration;

/// Bytes of disk space that are kept free for cancellations on a full disk.
pub const RESERVE_BYTES: u64 = 4 * 1024 * 1024;
/// The reserve is created only if the disk has this many times its size free.
pub const RESERVE_SHARE: u64 = 4;
/// The interval at which the files of an open database are checked while it is written to.
pub const FILE_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Size of the WAL, in bytes, above which the store waits for readers in order to restart it.
pub const WAL_RESTART_BYTES: u64 = 64 * 1024 * 1024;
/// Growth of the WAL, in bytes, between two attempts to restart it.
pub const WAL_RESTART_STEP: u64 = 16 * 1024 * 1024;
/// How long an attempt to restart the WAL waits for readers: at first, and at most. The wait doubles with each attempt.
pub const WAL_RESTART_WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Size of the WAL, in bytes, above which a warning is logged: a reader blocks checkpoints.
pub const WAL_WARNING_BYTES: u64 = 256 * 1024 * 1024;
/// The maximum duration of one query, and thus of a read transaction that keeps the WAL from being restarted.
pub const READ_TIME: Duration = Duration::from_secs(10);
/// Bytes that a probe writes to find out whether the store accepts writes again.
pub const PROBE_BYTES: usize = 128 * 1024;
/// Sessions of clients that are kept.
pub const SESSIONS: usize = 10_000;
/// Definitions by agents that wait for a person.
pub const PROPOSALS: usize = 1_000;
/// Those of the agents of one user.
pub const PROPOSALS_PER_USER: usize = 100;
