//! `steprail show`: shows a run with its steps.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use steprail_core::run::StepStatus;
use steprail_engine::{ReasonKind, RunId, RunStatus};
use steprail_http::views::{Page, Run, Step};

use super::follow::hints::Invocation;
use super::follow::run_tree::RunTree;
use super::shared::error::CliError;
use super::shared::exit;
use super::shared::server_args::{RequestArgs, find_run};
use super::terminal::run_summary::summary;
use super::terminal::text::{count, elapsed, format_duration, local_sentence, sanitize};
use crate::client::Client;

/// Steps per request with `--all`.
const PAGE: usize = 1_000;
/// The maximum number of waits for which commands are shown.
const HINTS: usize = 10;

/// Show a run: its steps, its result, and what it waits for
///
/// Of a run with many steps, the first 100 are shown. Exit codes are those of `steprail run`, and 0 for a run in progress.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Id of the run, or its last characters
    run: String,
    /// Show only steps with this status: pending, ready, running, waiting, done, failed, skipped, cancelled, uncertain
    #[arg(long, value_parser = step_status)]
    status: Option<StepStatus>,
    /// Show all steps
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    request: RequestArgs,
}

impl Show {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect_to_read().await?;
        let id = find_run(&client, &self.run).await?;
        let mut run: Run = client.get(&format!("/runs/{id}")).await?;
        self.select_steps(&client, id, &mut run).await?;
        self.request.print(&run, |run| self.describe(run))?;
        let is_in_progress = matches!(run.status, RunStatus::Pending | RunStatus::Running);
        Ok(if is_in_progress { ExitCode::SUCCESS } else { ExitCode::from(exit::of_run(run.status)) })
    }

    /// Reads the steps that the first page does not have, or those with the status.
    async fn select_steps(&self, client: &Client, id: RunId, run: &mut Run) -> Result<(), CliError> {
        let mut steps = run.steps.take().unwrap_or_default();
        let mut is_wanted = self.all && run.steps_next.is_some();
        if self.status.is_some() {
            (steps, is_wanted, run.steps_next) = (Vec::new(), true, None);
        }
        while is_wanted {
            let query = json!({ "status": self.status, "cursor": run.steps_next, "limit": PAGE });
            let page: Page<Step> = client.query(&format!("/runs/{id}/steps"), &query).await?;
            steps.extend(page.items);
            run.steps_next = page.next;
            is_wanted = self.all && run.steps_next.is_some();
        }
        run.steps = Some(steps);
        Ok(())
    }

    fn describe(&self, run: &Run) -> String {
        let mut lines: Vec<String> = run.steps.iter().flatten().map(describe_step).collect();
        lines.extend(self.describe_omitted(run));
        lines.push(summary(run));
        // The summary of a failed run has its error.
        let reason = run.reason.as_ref().filter(|reason| reason.parts.kind != ReasonKind::Failed);
        lines.extend(reason.map(|reason| format!("reason {}", local_sentence(&reason.parts))));
        lines.extend(run.damage.iter().map(|damage| format!("\x1b[31m{}\x1b[0m", sanitize(damage))));
        let hints = Invocation::Server(self.request.server.clone()).hints(run, &RunTree::default());
        lines.extend(hints.iter().take(HINTS).map(|hint| format!("\n{hint}")));
        if hints.len() > HINTS || run.more_waiting {
            let least = if run.more_waiting { "at least " } else { "" };
            let more = hints.len().saturating_sub(HINTS).max(1);
            lines.push(format!(
                "\n{least}{} for a human or a signal",
                count(more, "more step waits", "more steps wait")
            ));
        }
        lines.join("\n")
    }

    /// The number of steps that are not shown, by status, and the options that show them.
    fn describe_omitted(&self, run: &Run) -> Option<String> {
        run.steps_next.as_ref()?;
        let listed = run.steps.as_ref().map_or(0, Vec::len);
        let by_status = run.steps_by_status.iter().flatten();
        let total = match self.status {
            Some(wanted) => {
                by_status.filter(|(status, _)| **status == wanted).map(|(_, number)| *number).sum()
            }
            None => run.steps_total.unwrap_or_default(),
        };
        let omitted = count(total.saturating_sub(listed as u64), "more step is", "more steps are");
        let by_status = run.steps_by_status.iter().flatten();
        let numbers: Vec<String> =
            by_status.map(|(status, number)| format!("{number} {}", status.name())).collect();
        Some(format!(
            "\x1b[2m… {omitted} not shown (in all: {}); --all shows them, --status failed those that failed\x1b[0m",
            numbers.join(", ")
        ))
    }
}

fn step_status(text: &str) -> Result<StepStatus, String> {
    text.parse().map_err(|_| "unknown status of a step".to_owned())
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
