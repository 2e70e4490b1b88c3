//! `steprail show`: shows a run with its steps.

use std::process::ExitCode;

use clap::Args;
use steprail_core::run::StepStatus;
use steprail_engine::RunStatus;
use steprail_http::views::{Run, Step};

use super::follow::hints::Invocation;
use super::follow::run_tree::RunTree;
use super::shared::error::CliError;
use super::shared::exit;
use super::shared::server_args::{RequestArgs, find_run};
use super::terminal::run_summary::summary;
use super::terminal::text::{elapsed, format_duration, sanitize};

/// Show a run: its steps, its result, and what it waits for
///
/// Exit codes are those of `steprail run`, and 0 for a run in progress.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Id of the run, or its last characters
    run: String,
    #[command(flatten)]
    request: RequestArgs,
}

impl Show {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect_to_read().await?;
        let id = find_run(&client, &self.run).await?;
        let run: Run = client.get(&format!("/runs/{id}")).await?;
        self.request.print(&run, |run| self.describe(run))?;
        let is_in_progress = matches!(run.status, RunStatus::Pending | RunStatus::Running);
        Ok(if is_in_progress { ExitCode::SUCCESS } else { ExitCode::from(exit::of_run(run.status)) })
    }

    fn describe(&self, run: &Run) -> String {
        let mut lines: Vec<String> = run.steps.iter().flatten().map(describe_step).collect();
        lines.push(summary(run));
        lines.extend(run.damage.iter().map(|damage| format!("\x1b[31m{}\x1b[0m", sanitize(damage))));
        let hints = Invocation::Server(self.request.server.clone()).hints(run, &RunTree::default());
        lines.extend(hints.iter().map(|hint| format!("\n{hint}")));
        lines.join("\n")
    }
}

fn describe_step(step: &Step) -> String {
    let (colour, mark) = match step.status {
        StepStatus::Done => ("32", "✓"),
        StepStatus::Failed => ("31", "✗"),
        StepStatus::Running => ("36", "▸"),
        StepStatus::Waiting => ("36", "?"),
        StepStatus::Uncertain => ("33", "?"),
        StepStatus::Pending | StepStatus::Ready | StepStatus::Skipped | StepStatus::Cancelled => ("2", "·"),
    };
    let mut details = String::new();
    if let Some(tool) = &step.tool {
        details.push_str(&format!(" {tool}"));
    }
    if step.attempt > 1 {
        details.push_str(&format!(" (attempt {})", step.attempt));
    }
    if step.status != StepStatus::Done {
        details.push_str(&format!(" {}", step.status.name()));
    }
    let times = step.started_at.as_ref().zip(step.completed_at.as_ref());
    if let Some(millis) = times.and_then(|(start, end)| elapsed(start, end)) {
        details.push_str(&format!(" {}", format_duration(millis)));
    }
    if let Some(error) = &step.error {
        details.push_str(&format!(" {error}"));
    }
    format!("\x1b[{colour}m{mark}\x1b[0m {}\x1b[2m{}\x1b[0m", step.path, sanitize(&details))
}
