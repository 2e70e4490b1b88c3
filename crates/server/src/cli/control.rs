//! `steprail cancel`, `pause`, `rerun` and `signal`: what is done to a run that was started.

use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use super::stop::Stop;
use super::target::{Target, find_run};
use super::{session, show_as};
use steprail_http::views::Run;

/// Which run.
#[derive(Debug, Args)]
pub(super) struct OfRun {
    /// The run: its id, or the end of it
    run: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl OfRun {
    /// Has something done to the run, and says how it stands then.
    async fn act(&self, action: &str, body: &Value) -> Result<ExitCode, Stop> {
        let client = self.target.reach().await?;
        let id = find_run(&client, &self.run).await?;
        let run: Run = client.post(&format!("/runs/{id}/{action}"), body).await?;
        if self.json {
            show_as::json(&run)?;
        } else {
            show_as::line(&format!("{} {} is {}", run.name, run.run_id, run.status.word()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Stop a run and everything in it, for good
#[derive(Debug, Args)]
pub(super) struct Cancel {
    #[command(flatten)]
    of: OfRun,
    /// Why
    #[arg(long)]
    reason: Option<String>,
}

impl Cancel {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(self.of.act("cancel", &json!({ "reason": self.reason })))
    }
}

/// Hold back every step of a run that would begin; `steprail resume` lets it go on
#[derive(Debug, Args)]
pub(super) struct Pause {
    #[command(flatten)]
    of: OfRun,
}

impl Pause {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(self.of.act("pause", &json!({})))
    }
}

/// Run once more what an ended run ran, with the same inputs
#[derive(Debug, Args)]
pub(super) struct Rerun {
    #[command(flatten)]
    of: OfRun,
    /// Take over what its calls gave, where the arguments are the same
    #[arg(long)]
    reuse: bool,
    /// With --reuse: run this step anew all the same
    #[arg(long, value_name = "PATH", requires = "reuse")]
    anew: Vec<String>,
}

impl Rerun {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(self.of.act("rerun", &json!({ "reuse": self.reuse, "run_anew": self.anew })))
    }
}

/// Bring an event to a run, or to every run that waits for it
#[derive(Debug, Args)]
pub(super) struct Signal {
    /// The event's name
    event: String,
    /// What it carries, as JSON
    #[arg(value_parser = json_value)]
    payload: Option<Value>,
    /// The run, which keeps it until a step waits for it; without it, every run that waits for it now
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Deserialize)]
struct Reached {
    runs: usize,
}

impl Signal {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.reach().await?;
            let path = match &self.run {
                Some(run) => format!("/runs/{}/signal", find_run(&client, run).await?),
                None => "/signals".to_owned(),
            };
            let body = json!({ "event": self.event, "payload": self.payload });
            let Reached { runs } = client.post(&path, &body).await?;
            if self.json {
                show_as::json(&json!({ "runs": runs }))?;
            } else {
                let word = if runs == 1 { "run" } else { "runs" };
                show_as::line(&format!("`{}` reached {runs} {word}", self.event))?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn json_value(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}
