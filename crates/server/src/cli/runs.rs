//! `steprail runs`: runs, newest first.

use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::json;

use super::progress::length;
use super::stop::Stop;
use super::target::Target;
use super::{session, show_as};
use steprail_http::timestamp;
use steprail_http::views::{Page, Run};

/// List runs, newest first
#[derive(Debug, Args)]
pub(super) struct Runs {
    /// Only those with this status: running, paused, completed, failed, cancelled, interrupted
    #[arg(long)]
    status: Option<String>,
    /// Only those of this definition
    #[arg(long)]
    name: Option<String>,
    /// Only those of this user
    #[arg(long)]
    user: Option<String>,
    /// At most so many
    #[arg(long, default_value = "20")]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Runs {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.look().await?;
            let words =
                json!({ "status": self.status, "name": self.name, "user": self.user, "limit": self.limit });
            let page: Page<Run> = client.find("/runs", &words).await?;
            if page.next.is_some() {
                writeln!(anstream::stderr(), "there are older ones, too: --limit shows more")?;
            }
            if self.json {
                show_as::json(&page.items)?;
                return Ok(ExitCode::SUCCESS);
            }
            let rows: Vec<Vec<String>> = page.items.iter().map(row).collect();
            show_as::table(
                &["RUN", "NAME", "STATUS", "STEP", "BY", "STARTED"],
                &rows,
                "there are no such runs",
            )?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn row(run: &Run) -> Vec<String> {
    let step = run.current_step.clone().or_else(|| run.error.as_ref().map(|error| short(&error.to_string())));
    vec![
        run.run_id.to_string(),
        run.name.clone(),
        run.status.word().to_owned(),
        step.unwrap_or_else(|| "-".to_owned()),
        run.created_by.clone(),
        ago(&run.started_at),
    ]
}

fn short(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.to_owned(),
    }
}

/// How long ago something was.
pub(super) fn ago(time: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let since = i64::try_from(now).unwrap_or(i64::MAX) - timestamp::parse(time);
    format!("{} ago", length(u64::try_from(since).unwrap_or_default()))
}
