//! `steprail show`: a run with its steps.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use steprail_engine::{RunStatus, StepStatus};

use super::progress::{harmless, length};
use super::stop::Stop;
use super::target::{Target, find_run};
use super::{exit, go_on, record, session, show_as};
use steprail_http::timestamp;
use steprail_http::views::{Run, Step};

/// Show a run: its steps, what it waits for, what it gave
///
/// Exit codes are those of `run`; 0 for one that goes on by itself.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The run: its id, or the end of it
    run: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Show {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.look().await?;
            let id = find_run(&client, &self.run).await?;
            let run: Run = client.get(&format!("/runs/{id}")).await?;
            if self.json {
                show_as::json(&run)?;
            } else {
                print(&run, &self.target)?;
            }
            let goes_on = matches!(run.status, RunStatus::Pending | RunStatus::Running);
            Ok(if goes_on { ExitCode::SUCCESS } else { ExitCode::from(exit::of_run(run.status)) })
        })
    }
}

fn print(run: &Run, target: &Target) -> Result<(), Stop> {
    let mut out = anstream::stdout().lock();
    for step in run.steps.iter().flatten() {
        writeln!(out, "{}", line(step))?;
    }
    writeln!(out, "{}", record::summary(run))?;
    for hint in go_on::hints(run, target) {
        writeln!(out, "\n{hint}")?;
    }
    out.flush()?;
    Ok(())
}

fn line(step: &Step) -> String {
    let (colour, mark) = match step.status {
        StepStatus::Done => ("32", "✓"),
        StepStatus::Failed => ("31", "✗"),
        StepStatus::Running => ("36", "▸"),
        StepStatus::Waiting => ("36", "?"),
        StepStatus::Uncertain => ("33", "?"),
        StepStatus::Pending | StepStatus::Ready | StepStatus::Skipped | StepStatus::Cancelled => ("2", "·"),
    };
    let attempt = if step.attempt > 1 { format!(" (attempt {})", step.attempt) } else { String::new() };
    let tool = step.tool.as_ref().map(|tool| format!(" {tool}")).unwrap_or_default();
    let ends = step.started_at.as_ref().zip(step.completed_at.as_ref());
    let lasted =
        ends.and_then(|(began, ended)| u64::try_from(timestamp::parse(ended) - timestamp::parse(began)).ok());
    let lasted = lasted.map(|lasted| format!(" {}", length(lasted))).unwrap_or_default();
    let why = step.error.as_ref().map(|error| format!(" {error}")).unwrap_or_default();
    let status = match step.status {
        StepStatus::Done => String::new(),
        status => format!(" {}", status.word()),
    };
    let told = harmless(&format!("{tool}{attempt}{status}{lasted}{why}"));
    format!("\x1b[{colour}m{mark}\x1b[0m {}\x1b[2m{told}\x1b[0m", step.path)
}
