//! `steprail schedule`: manages schedules.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use steprail_http::views::{self, Page};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::shared::values;
use crate::client::percent_encode;

/// List, add and remove schedules
#[derive(Debug, Args)]
pub(super) struct Schedule {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List schedules
    List,
    /// Add or replace a schedule
    Add {
        /// Name of the schedule
        name: String,
        /// Name of the definition to run
        definition: String,
        /// Cron pattern, such as `0 8 * * 1-5`
        cron: String,
        /// Version of the definition: a number, or `latest` for the newest one at each time [default: the newest one now]
        #[arg(long, value_parser = parse_version)]
        version: Option<Value>,
        /// Time zone of the pattern, such as `Europe/Berlin` [default: UTC]
        #[arg(long)]
        zone: Option<String>,
        /// Inputs of each run, as a JSON map
        #[arg(long, value_name = "JSON", value_parser = values::json_map)]
        inputs: Option<Map<String, Value>>,
        /// Start a run even if the previous one has not ended
        #[arg(long)]
        overlap: bool,
        /// Add it without starting runs
        #[arg(long)]
        paused: bool,
    },
    /// Remove a schedule; its runs continue
    Remove {
        /// Name of the schedule
        name: String,
    },
}

impl Schedule {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let path = |name: &str| format!("/schedules/{}", percent_encode(name));
        let schedules = match self.action {
            None | Some(Action::List) => client.get::<Page<views::Schedule>>("/schedules").await?.items,
            Some(Action::Add { name, definition, cron, version, zone, inputs, overlap, paused }) => {
                let body = json!({
                    "definition": definition, "cron": cron, "zone": zone, "overlap": overlap, "paused": paused,
                    "input": inputs.unwrap_or_default(), "version": version,
                });
                vec![client.put(&path(&name), &body).await?]
            }
            Some(Action::Remove { name }) => {
                client.delete(&path(&name)).await?;
                return self.request.confirm(&format!("removed {name}"));
            }
        };
        let columns = ["NAME", "DEFINITION", "VERSION", "CRON", "ZONE", "NEXT", "LAST"];
        self.request.print_table(&schedules, &columns, row, "no schedules")
    }
}

fn parse_version(text: &str) -> Result<Value, String> {
    match text.parse::<u32>() {
        Ok(version) if version > 0 => Ok(version.into()),
        _ if text == "latest" => Ok(text.into()),
        _ => Err("expected the number of a version, or `latest`".to_owned()),
    }
}

fn row(schedule: &views::Schedule) -> Vec<String> {
    let last = schedule.last.as_ref().map_or("-".to_owned(), |last| match (&last.run_id, &last.error) {
        (Some(run), _) => run.to_string(),
        (None, error) => error.clone().unwrap_or_default(),
    });
    vec![
        schedule.name.clone(),
        schedule.definition.clone(),
        schedule.version.map_or("latest".to_owned(), |version| version.to_string()),
        schedule.cron.clone(),
        schedule.zone.clone(),
        schedule.due_at.clone().unwrap_or_else(|| "paused".to_owned()),
        last,
    ]
}
