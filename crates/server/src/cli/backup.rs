//! `steprail backup`: a copy of the database, also while the daemon writes to it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::HumanBytes;
use serde_json::json;
use steprail_store::sqlite;

use super::database::DatabaseAt;
use super::meter::Meter;
use super::stop::Stop;

/// Copy the database, also while the daemon runs
///
/// The copy is one moment of the database, checked, in one file. `steprail restore` puts it back. A file that is there
/// is not overwritten.
#[derive(Debug, Args)]
pub(super) struct Backup {
    /// The file to write
    to: PathBuf,
    #[command(flatten)]
    database: DatabaseAt,
    /// Print one JSON record
    #[arg(long)]
    json: bool,
}

impl Backup {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        let from = self.database.existing()?;
        let folder = self.to.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Err(Stop::usage(format!("there is no folder {}", folder.display())));
        }
        let mut meter = Meter::bytes("copying");
        let made = sqlite::backup(&from, &self.to, &mut |done, all| meter.at(done, all));
        drop(meter);
        let made = made?;
        let mut out = anstream::stdout();
        if self.json {
            writeln!(out, "{:#}", json!({ "from": from, "to": self.to, "content": made }))?;
        } else {
            let (to, bytes) = (self.to.display(), HumanBytes(made.bytes));
            writeln!(out, "{to}: {bytes}, runs: {}, checked", made.runs)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
