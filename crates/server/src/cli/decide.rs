//! `steprail approve` and `steprail deny`: a human's decision, from the terminal.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use steprail_mcp::Client;

use super::progress::harmless;
use super::stop::Stop;
use super::{ask, session};
use crate::daemon::{self, Home};

/// Which gate, and why.
///
/// What is asked is shown first, and the decision counts for that and nothing else. At a terminal you are asked whether
/// you mean it.
#[derive(Debug, Args)]
pub(super) struct Decide {
    /// The run
    run: String,
    /// The step that waits, by its path
    step: String,
    /// Why
    #[arg(long)]
    reason: Option<String>,
    /// What the step's tool wants to know, if it asks something: a JSON map
    #[arg(long, value_name = "JSON", value_parser = super::run::map)]
    answer: Option<Map<String, Value>>,
    /// Do not ask whether you mean it
    #[arg(long)]
    yes: bool,
    /// The data directory of the daemon
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl Decide {
    pub(super) fn run(self, approved: bool) -> Result<ExitCode, Stop> {
        session::block_on(self.decide(approved))
    }

    async fn decide(&self, approved: bool) -> Result<ExitCode, Stop> {
        let home = Home::find(self.data.clone()).map_err(Stop::usage)?;
        let stream = daemon::reach(&home, &home.humans()).await.map_err(|problem| {
            Stop::usage(problem)
                .hint("`steprail serve` runs it, and so does any client that uses `steprail mcp`")
        })?;
        let (read, write) = stream.into_split();
        let client = Client::open(read, write).await.map_err(Stop::usage)?;
        let digest = self.shown(&client).await?;
        if !self.yes && !is_meant(approved)? {
            return Err(Stop::usage("nothing was decided"));
        }
        let mut args = json!({ "run_id": self.run, "step_name": self.step, "digest": digest });
        if let Some(reason) = &self.reason {
            args["reason"] = reason.as_str().into();
        }
        if let Some(answer) = &self.answer {
            args["answer"] = Value::Object(answer.clone());
        }
        let tool = if approved { "workflow_approve" } else { "workflow_deny" };
        let said = client.call(tool, object(args)).await.map_err(Stop::usage)?;
        writeln!(anstream::stdout(), "{}", said.line)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Shows what is asked; gives what the decision is bound to. A gate that is not open says so when it is decided.
    async fn shown(&self, client: &Client) -> Result<Option<String>, Stop> {
        let status = object(json!({ "run_id": self.run }));
        let status = client.call("workflow_status", status).await.map_err(Stop::usage)?.facts;
        let waiting = status["waiting"].as_array();
        let gate = waiting
            .into_iter()
            .flatten()
            .find(|gate| gate["step"] == *self.step && gate["for"] == "approval");
        let Some(gate) = gate else { return Ok(None) };
        let mut err = anstream::stderr();
        writeln!(err, "{}", harmless(gate["prompt"].as_str().unwrap_or_default()))?;
        for (name, key) in [("tool", "tool"), ("with", "args"), ("asks for", "form")] {
            if let Some(value) = gate.get(key) {
                writeln!(err, "{name} {}", harmless(&value.to_string()))?;
            }
        }
        Ok(gate["digest"].as_str().map(str::to_owned))
    }
}

/// Asks at a terminal; elsewhere, whoever wrote the command means it.
fn is_meant(approved: bool) -> Result<bool, Stop> {
    let word = if approved { "Approve" } else { "Deny" };
    Ok(ask::yes_or_no(&format!("{word}?"))?.unwrap_or(true))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
