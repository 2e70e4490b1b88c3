//! `steprail schedule`: definitions that are started again and again.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::stop::Stop;
use super::target::Target;
use super::{session, show_as};
use crate::client::escaped;
use steprail_http::views::{Page, Schedule as Shown};

/// List, add and remove schedules
#[derive(Debug, Args)]
pub(super) struct Schedule {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them
    List,
    /// Start a definition at the times of a cron pattern
    Add {
        /// What the schedule is called
        name: String,
        /// The definition
        definition: String,
        /// When, such as `0 8 * * 1-5`
        cron: String,
        /// The time zone of the pattern, such as `Europe/Berlin`; UTC by default
        #[arg(long)]
        zone: Option<String>,
        /// The inputs of each run
        #[arg(long, value_name = "JSON", value_parser = super::run::map)]
        inputs: Option<Map<String, Value>>,
        /// Start a run also if the last one has not ended
        #[arg(long)]
        overlap: bool,
        /// Start nothing for now
        #[arg(long)]
        paused: bool,
    },
    /// Take a schedule away; runs that it started go on
    Remove {
        /// The schedule
        name: String,
    },
}

impl Schedule {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.reach().await?;
            let shown = match self.action {
                None | Some(Action::List) => client.get::<Page<Shown>>("/schedules").await?.items,
                Some(Action::Add { name, definition, cron, zone, inputs, overlap, paused }) => {
                    let body = json!({
                        "definition": definition, "cron": cron, "zone": zone, "overlap": overlap, "paused": paused,
                        "input": inputs.unwrap_or_default(),
                    });
                    vec![client.put(&format!("/schedules/{}", escaped(&name)), &body).await?]
                }
                Some(Action::Remove { name }) => {
                    client.delete(&format!("/schedules/{}", escaped(&name))).await?;
                    return show_as::done(self.json, &format!("{name} starts nothing any more"))
                        .map(|()| ExitCode::SUCCESS);
                }
            };
            if self.json {
                show_as::json(&shown)?;
                return Ok(ExitCode::SUCCESS);
            }
            let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
            show_as::table(
                &["NAME", "DEFINITION", "CRON", "ZONE", "NEXT", "LAST"],
                &rows,
                "there are no schedules",
            )?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn row(schedule: &Shown) -> Vec<String> {
    let last = schedule.last.as_ref().map_or("-".to_owned(), |last| match (&last.run_id, &last.error) {
        (Some(run), _) => run.to_string(),
        (None, error) => error.clone().unwrap_or_default(),
    });
    vec![
        schedule.name.clone(),
        schedule.definition.clone(),
        schedule.cron.clone(),
        schedule.zone.clone(),
        schedule.due_at.clone().unwrap_or_else(|| "paused".to_owned()),
        last,
    ]
}
