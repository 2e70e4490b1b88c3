//! `steprail audit`: verifies the logs of runs.

use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use steprail_engine::RunId;
use steprail_store::sqlite::{self, Verified};

use super::shared::database::DatabaseArgs;
use super::shared::error::CliError;
use super::shared::exit;
use super::terminal::output;
use super::terminal::progress_bar::ProgressBar;
use super::terminal::text::count;

/// Verify the logs of runs
#[derive(Debug, Args)]
pub(super) struct Audit {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Verify(Verify),
}

/// Verify hash chains and stored values
///
/// Reads the database file directly, so it works while the daemon runs and when the daemon cannot start.
///
/// Exit codes: 0 no damage, 1 damage found.
#[derive(Debug, Args)]
struct Verify {
    /// Id of the run [default: all runs]
    run: Option<RunId>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Audit {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let Action::Verify(verify) = self.action;
        verify.run()
    }
}

impl Verify {
    fn run(self) -> Result<ExitCode, CliError> {
        let database = self.database.existing()?;
        let mut bar = ProgressBar::items("checking events");
        let verified = sqlite::verify(&database, self.run, &mut |done, total| {
            bar.set(done, total);
            ControlFlow::Continue(())
        });
        drop(bar);
        let verified = verified?;
        if let Some(run) = self.run.filter(|_| verified.runs == 0) {
            return Err(CliError::new(format!("there is no run {run}")));
        }
        self.print(&verified)?;
        Ok(if verified.damages == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
    }

    fn print(&self, verified: &Verified) -> Result<(), CliError> {
        if self.json {
            return output::line(&format!("{:#}", json!(verified)));
        }
        for damage in &verified.damaged {
            output::line(&damage.to_string())?;
        }
        output::line(&summary(verified))
    }
}

/// Summarises a verification on one line.
pub(super) fn summary(verified: &Verified) -> String {
    let Verified { runs, events, values, damages, .. } = verified;
    let events = count(*events, "event", "events");
    let values = count(*values, "value", "values");
    let verified = format!("verified {events} and {values} in {}", count(*runs, "run", "runs"));
    match damages {
        0 => verified,
        damages => format!("{verified}: {damages} damaged"),
    }
}
