//! `steprail purge`: runs that ended long ago are deleted.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use steprail_store::Store;

use super::database::{self, Database};
use super::stop::Stop;

/// Runs that are deleted in one commit.
const BATCH: usize = 100;

/// Delete runs that ended long ago, with everything about them
///
/// Unfinished runs are not touched, however old they are. The file does not shrink: what is freed is used again.
#[derive(Debug, Args)]
pub(super) struct Purge {
    /// The database
    #[arg(long, value_name = "FILE")]
    db: PathBuf,
    /// Keep runs that ended within this time, such as `30d`
    #[arg(long, value_name = "TIME", value_parser = database::period)]
    keep: Duration,
}

impl Purge {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        // An engine would go on with unfinished runs, and there are no tools for them here.
        let mut store = Database::existing(self.db)?.open(None)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let purged = purge(&mut store, millis(now), millis(self.keep))?;
        let runs = if purged == 1 { "run" } else { "runs" };
        writeln!(anstream::stdout(), "{purged} {runs} deleted")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Deletes in small batches, so that a great many need no great transaction.
fn purge(store: &mut impl Store, now: i64, keep: i64) -> Result<usize, Stop> {
    let mut purged = 0;
    loop {
        store.begin()?;
        let some = store.purge(now.saturating_sub(keep), now, BATCH)?;
        store.commit()?;
        purged += some.runs;
        if some.is_nothing() {
            return Ok(purged);
        }
    }
}
