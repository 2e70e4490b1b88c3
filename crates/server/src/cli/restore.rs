//! `steprail restore`: a backup in the place of the database.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use steprail_store::sqlite;

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
        let ready = ready?;
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
        if !self.yes && !is_meant(&database)? {
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

/// Asks at a terminal; nobody else can mean it without saying so.
fn is_meant(database: &Path) -> Result<bool, Stop> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Ok(false);
    }
    write!(anstream::stderr(), "Put it in the place of {}? [y/N] ", database.display())?;
    let mut said = String::new();
    stdin.lock().read_line(&mut said)?;
    Ok(matches!(said.trim(), "y" | "Y" | "yes"))
}
