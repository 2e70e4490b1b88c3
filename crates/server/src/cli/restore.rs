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
/// kept beside the new one, with the time in its name. Unfinished runs do not continue until they are resumed with
/// `steprail resume`, because calls that were made since the backup are unknown.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// Backup to restore
    #[arg(required_unless_present = "in_place")]
    from: Option<PathBuf>,
    /// Accept the database file that is in place, although it is not the one that was last used here
    #[arg(long, conflicts_with = "from")]
    in_place: bool,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Do not prompt for confirmation
    #[arg(long)]
    yes: bool,
}

impl Restore {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let database = self.database.path()?;
        let source = self.from.as_ref().unwrap_or(&database);
        let from = source.display();
        if !source.is_file() {
            return Err(CliError::new(format!("there is no file {from}")));
        }
        let mut bar = ProgressBar::bytes("checking");
        let restore = if self.in_place {
            sqlite::Restore::in_place(&database)
        } else {
            sqlite::Restore::prepare(source, &database, &mut |done, total| bar.set(done, total))
        };
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
                "{} unfinished; unfinished runs are interrupted until a user resumes them, and calls since the backup are unknown",
                count(content.unfinished, "run is", "runs are")
            ))?;
        }
        let verb = if self.in_place { "Accept" } else { "Replace" };
        let question = format!("{verb} {}?", database.display());
        if !self.yes && confirm(&question)? != Some(true) {
            return Err(CliError::new("nothing was changed").hint("pass --yes to restore without a prompt"));
        }
        let previous = previous_path(&database);
        let was_kept = restore.put(&previous)?;
        if self.in_place {
            output::line(&format!("accepted {}", database.display()))?;
        } else {
            output::line(&format!("restored {} from {from}", database.display()))?;
        }
        if was_kept {
            output::line(&format!("the old database is {}", previous.display()))?;
        }
        if content.unfinished > 0 {
            output::line(
                "show interrupted runs with `steprail runs --status interrupted`, and resume them with \
                          `steprail resume RUN` or `steprail resume --all`",
            )?;
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
