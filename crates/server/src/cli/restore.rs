//! `steprail restore`: a backup in the place of the database.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use steprail_store::{StoreError, sqlite};

use super::ask::yes_or_no;
use super::database::DatabaseAt;
use super::meter::Meter;
use super::stop::Stop;

/// Put a backup in the place of the database
///
/// The backup is checked first: the file, and the log of every run. The database must not be in use; it is kept beside
/// the new one, under a name with the time.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The backup
    from: PathBuf,
    #[command(flatten)]
    database: DatabaseAt,
    /// Do not ask whether you mean it
    #[arg(long)]
    yes: bool,
}

impl Restore {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        if !self.from.is_file() {
            return Err(Stop::usage(format!("there is no file {}", self.from.display())));
        }
        let database = self.database.path()?;
        let mut meter = Meter::bytes("checking");
        let ready = sqlite::Restore::prepare(&self.from, &database, &mut |done, all| meter.at(done, all));
        drop(meter);
        let ready = ready.map_err(|error| match error {
            StoreError::Corrupt(why) => {
                Stop::usage(format!("{} is no backup that can be restored: {why}", self.from.display()))
            }
            error @ StoreError::InUse { .. } => Stop::from(error).hint("`steprail stop` ends the daemon"),
            error => error.into(),
        })?;
        let found = *ready.found();
        let mut err = anstream::stderr();
        writeln!(err, "{} is in order; runs: {}", self.from.display(), found.runs)?;
        if found.unfinished > 0 {
            writeln!(
                err,
                "warning: {} of them had not ended. They go on from where they were then: what they did since is not \
                 known to them, and calls may be made a second time",
                found.unfinished
            )?;
        }
        let question = format!("Put it in the place of {}?", database.display());
        if !self.yes && yes_or_no(&question)? != Some(true) {
            return Err(Stop::usage("nothing was changed").hint("--yes means it"));
        }
        let previous = previous(&database);
        let kept = ready.put(&previous)?;
        let mut out = anstream::stdout();
        writeln!(out, "{} is in the place of {}", self.from.display(), database.display())?;
        if kept {
            writeln!(out, "what was there is {}", previous.display())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What the database is called from now on.
fn previous(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(format!("-until-{}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ")));
    name.into()
}
