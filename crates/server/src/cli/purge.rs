//! `steprail purge`: retention by hand, deletes runs that ended before a given age.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use steprail_store::{Commit, Refused, Store, StoreError};

use super::shared::database::Database;
use super::shared::error::CliError;
use super::shared::values;
use super::terminal::output;
use super::terminal::text::count;

/// The maximum number of runs that one transaction deletes.
const BATCH: usize = 100;

/// Delete runs that ended long ago
///
/// Unfinished runs are kept, regardless of their age. The file does not shrink; freed pages are reused.
#[derive(Debug, Args)]
pub(super) struct Purge {
    /// Database file
    #[arg(long, value_name = "FILE")]
    db: PathBuf,
    /// Keep runs that ended within this time, such as `30d`
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    keep: Duration,
}

impl Purge {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        // An engine would continue unfinished runs, and their tools are not available here.
        let mut store = Database::existing(self.db)?.open(None)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let purged = purge(&mut store, millis(now), millis(self.keep))?;
        output::line(&format!("{} deleted", count(purged, "run", "runs")))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Deletes in batches, so that no transaction is large.
fn purge(store: &mut impl Store, now: i64, retention: i64) -> Result<usize, CliError> {
    let mut purged = 0;
    loop {
        let purge = Some(steprail_store::Purge { before: now.saturating_sub(retention), limit: BATCH });
        let batch = match store.commit(&Commit { now, purge, ..Commit::default() }) {
            Ok(committed) => committed.purged,
            Err(Refused::Unavailable(error)) => return Err(error.into()),
            Err(refused) => return Err(StoreError::Other(format!("{refused:?}")).into()),
        };
        purged += batch.runs;
        if batch.is_nothing() {
            return Ok(purged);
        }
    }
}
