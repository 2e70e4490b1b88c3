//! `steprail approvals`: open questions to humans.

use std::process::ExitCode;

use clap::Args;

use super::runs::ago;
use super::stop::Stop;
use super::target::Target;
use super::{session, show_as};
use steprail_http::views::{Approval, Page};

/// List open questions, the oldest first
#[derive(Debug, Args)]
pub(super) struct Approvals {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Approvals {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let open: Page<Approval> = self.target.look().await?.get("/approvals").await?;
            if self.json {
                show_as::json(&open.items)?;
                return Ok(ExitCode::SUCCESS);
            }
            let row = |open: &Approval| {
                vec![open.run_id.to_string(), open.step.clone(), open.prompt.clone(), ago(&open.requested_at)]
            };
            let rows: Vec<Vec<String>> = open.items.iter().map(row).collect();
            show_as::table(&["RUN", "STEP", "QUESTION", "ASKED"], &rows, "nothing waits for a human")?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
