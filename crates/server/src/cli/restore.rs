//! `steprail restore`: replaces the database with a backup.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use steprail_store::{StoreError, sqlite};

use super::shared::database::DatabaseArgs;
use super::shared::error::CliError;
use super::terminal::output;
use super::terminal::progress_bar::ProgressBar;
use super::terminal::prompt::confirm;
use super::terminal::text::count;

/// Replace the database with a backup
///
/// The backup is verified first: the file, and the log of every run. The database must not be in use. The old database is
/// kept beside the new one, with the time in its name.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// Backup to restore
    from: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Do not prompt for confirmation
    #[arg(long)]
    yes: bool,
}

impl Restore {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let from = self.from.display();
        if !self.from.is_file() {
            return Err(CliError::new(format!("there is no file {from}")));
        }
        let database = self.database.path()?;
        let mut bar = ProgressBar::bytes("checking");
        let restore =
            sqlite::Restore::prepare(&self.from, &database, &mut |done, total| bar.set(done, total));
        drop(bar);
        let restore = restore.map_err(|error| match error {
            StoreError::Corrupt(reason) => CliError::new(format!("{from} is not a valid backup: {reason}")),
            error @ StoreError::InUse { .. } => {
                CliError::from(error).hint("stop the daemon with `steprail stop`")
            }
            error => error.into(),
        })?;
        let content = *restore.found();
        writeln!(anstream::stderr(), "verified {from}: {}", count(content.runs, "run", "runs"))?;
        if content.unfinished > 0 {
            output::warning(&format!(
                "{} unfinished and will continue from the state in the backup; calls made since then may be repeated",
                count(content.unfinished, "run is", "runs are")
            ))?;
        }
        let question = format!("Replace {}?", database.display());
        if !self.yes && confirm(&question)? != Some(true) {
            return Err(CliError::new("nothing was changed").hint("pass --yes to restore without a prompt"));
        }
        let previous = previous_path(&database);
        let was_kept = restore.put(&previous)?;
        output::line(&format!("restored {} from {from}", database.display()))?;
        if was_kept {
            output::line(&format!("the old database is {}", previous.display()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The new name of the old database.
fn previous_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(format!("-until-{}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ")));
    name.into()
}
