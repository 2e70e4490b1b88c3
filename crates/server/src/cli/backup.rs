//! `steprail backup`: copies the database while it is in use.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::HumanBytes;
use serde_json::json;
use steprail_store::sqlite;

use super::shared::database::{DatabaseArgs, require_parent};
use super::shared::error::CliError;
use super::terminal::output;
use super::terminal::progress_bar::ProgressBar;
use super::terminal::text::count;

/// Back up the database, also while the daemon runs
///
/// The backup is a consistent snapshot in one file, which is verified. An existing file is not overwritten. Restore it with
/// `steprail restore`.
#[derive(Debug, Args)]
pub(super) struct Backup {
    /// File to write
    to: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Backup {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let from = self.database.existing()?;
        require_parent(&self.to)?;
        let mut bar = ProgressBar::bytes("copying");
        let content = sqlite::backup(&from, &self.to, &mut |done, total| bar.set(done, total));
        drop(bar);
        let content = content?;
        if self.json {
            output::line(&format!("{:#}", json!({ "from": from, "to": self.to, "content": content })))?;
        } else {
            let (to, bytes, runs) = (self.to.display(), HumanBytes(content.bytes), content.runs);
            output::line(&format!("wrote {to}: {}, {bytes}", count(runs, "run", "runs")))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
