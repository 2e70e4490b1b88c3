//! `steprail audit`: whether what is stored is what was written.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use steprail_engine::RunId;
use steprail_store::sqlite::{self, Verified};

use super::database::DatabaseAt;
use super::exit;
use super::meter::Meter;
use super::stop::Stop;

/// Look after the logs of runs
#[derive(Debug, Args)]
pub(super) struct Audit {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Verify(Verify),
}

/// Check that the logs of runs are what was written
///
/// The file is read as it is, so this works while the daemon runs and when it cannot start. Exit code 0: everything is
/// in order; 1: something is damaged.
#[derive(Debug, Args)]
struct Verify {
    /// The run; all runs without one
    run: Option<RunId>,
    #[command(flatten)]
    database: DatabaseAt,
    /// Print one JSON record
    #[arg(long)]
    json: bool,
}

impl Audit {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        let Verb::Verify(verify) = self.verb;
        verify.run()
    }
}

impl Verify {
    fn run(self) -> Result<ExitCode, Stop> {
        let database = self.database.existing()?;
        let mut meter = Meter::count("checking events");
        let verified = sqlite::verify(&database, self.run, &mut |done, all| {
            meter.at(done, all);
            ControlFlow::Continue(())
        });
        drop(meter);
        let verified = verified?;
        if let Some(run) = self.run.filter(|_| verified.runs == 0) {
            return Err(Stop::usage(format!("there is no run {run}")));
        }
        self.show(&verified)?;
        let fine = verified.damages == 0;
        Ok(if fine { ExitCode::SUCCESS } else { ExitCode::from(exit::ERRORS) })
    }

    fn show(&self, verified: &Verified) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        if self.json {
            return writeln!(out, "{:#}", serde_json::json!(verified));
        }
        for damage in &verified.damaged {
            writeln!(out, "{damage}")?;
        }
        writeln!(out, "{}", summary(verified))?;
        out.flush()
    }
}

/// What was found, on one line.
pub(super) fn summary(verified: &Verified) -> String {
    let Verified { runs, events, values, damages, .. } = verified;
    let count = |number: &u64, word: &str| format!("{number} {word}{}", if *number == 1 { "" } else { "s" });
    let looked_at =
        format!("{} and {} of {}", count(events, "event"), count(values, "value"), count(runs, "run"));
    match damages {
        0 => format!("{looked_at} are what was written"),
        1 => format!("{looked_at} were checked: 1 is damaged"),
        _ => format!("{looked_at} were checked: {damages} are damaged"),
    }
}
