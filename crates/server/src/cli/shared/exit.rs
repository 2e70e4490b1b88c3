//! Exit codes of all commands.

use steprail_engine::{Error, RunStatus};
use steprail_store::StoreError;

/// A run failed, or a check found damage.
pub(crate) const FAILED: u8 = 1;
/// The definition, a file, the command line or the request is invalid.
pub(crate) const INVALID: u8 = 2;
/// A run waits for a human.
pub(crate) const WAITING: u8 = 3;
/// A run was cancelled.
pub(crate) const CANCELLED: u8 = 4;
/// The server cannot be reached.
pub(crate) const UNREACHABLE: u8 = 5;
/// The database failed and a retry does not help, or the engine thread panicked and the process must be restarted
/// (`EX_SOFTWARE`).
pub(crate) const INTERNAL: u8 = 70;
/// Another process holds the lock of the database.
pub(crate) const IN_USE: u8 = 73;
/// Interrupted by Ctrl-C: 128 + SIGINT, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;
/// The reader of the output closed the pipe: 128 + SIGPIPE, as shells report it.
pub(crate) const BROKEN_PIPE: u8 = 141;

/// The exit code for a run that is no longer followed.
pub(crate) fn of_run(status: RunStatus) -> u8 {
    match status {
        RunStatus::Completed => 0,
        RunStatus::Failed => FAILED,
        RunStatus::Cancelled => CANCELLED,
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused | RunStatus::Interrupted => WAITING,
    }
}

/// The most severe exit code of several runs: failed, then waiting, then cancelled.
pub(crate) fn of_runs(statuses: impl Iterator<Item = RunStatus>) -> u8 {
    let severity = |code: &u8| [0, CANCELLED, WAITING, FAILED].iter().position(|known| known == code);
    statuses.map(of_run).max_by_key(severity).unwrap_or_default()
}

/// The exit code for an error of the engine.
pub(crate) fn of_error(error: &Error) -> u8 {
    match error {
        Error::Storage(StoreError::InUse { .. }) => IN_USE,
        // Nothing was opened or written: the path is wrong, or a permission is missing.
        Error::Storage(StoreError::ReadOnly(_) | StoreError::Exists(_)) => INVALID,
        Error::Storage(_) | Error::Stopped | Error::Failed(_) | Error::Unresponsive(_) => INTERNAL,
        _ => INVALID,
    }
}
