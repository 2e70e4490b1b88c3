//! `steprail events`: lists and follows events.

use std::process::ExitCode;

use clap::Args;
use futures::StreamExt;
use serde_json::{Value, json};
use steprail_engine::RunId;
use steprail_http::views::{Event, Page, Run};
use tokio::time::{Instant, sleep};

use super::follow::{RECONNECT_DELAY, RECONNECT_TIMEOUT};
use super::shared::error::CliError;
use super::shared::server_args::{RequestArgs, find_optional_run};
use super::terminal::output;
use super::terminal::text::sanitize;
use crate::client::{Client, ClientError};

/// The number of events per request.
const PAGE: usize = 1_000;

/// Show the events of a run or of all runs, and follow new ones
#[derive(Debug, Args)]
pub(super) struct Events {
    /// Id of the run, or its last characters [default: all runs]
    run: Option<String>,
    /// Follow new events; those of a run until it ends
    #[arg(long, short)]
    follow: bool,
    /// Show only events after this cursor: the `id` of an event in the output of `--json`, or `start`
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
}

impl Events {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect_to_read().await?;
        let run = find_optional_run(&client, self.run.as_deref()).await?;
        if self.follow {
            self.follow(client, run).await?;
        } else {
            self.list(&client, run, self.after.clone()).await?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn list(
        &self,
        client: &Client,
        run: Option<RunId>,
        mut after: Option<String>,
    ) -> Result<(), CliError> {
        let path = run.map_or_else(|| "/audit".to_owned(), |run| format!("/runs/{run}/events"));
        loop {
            let page: Page<Event> = client.query(&path, &json!({ "after": after, "limit": PAGE })).await?;
            page.items.iter().try_for_each(|event| self.print(event, run.is_some()))?;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Follows events until the run ends, across restarts of the server.
    async fn follow(&self, mut client: Client, run: Option<RunId>) -> Result<(), CliError> {
        let path = run.map_or_else(|| "/stream".to_owned(), |run| format!("/runs/{run}/stream"));
        let mut after = self.after.clone();
        let mut deadline = Instant::now() + RECONNECT_TIMEOUT;
        loop {
            match client.stream(&path, after.as_deref()).await {
                Ok(events) => {
                    let mut events = Box::pin(events);
                    while let Some((cursor, event)) = events.next().await {
                        after = cursor.or(after);
                        deadline = Instant::now() + RECONNECT_TIMEOUT;
                        event.iter().try_for_each(|event| self.print(event, run.is_some()))?;
                    }
                }
                Err(ClientError::Unreachable(_)) if Instant::now() < deadline => {}
                Err(error) => return Err(error.into()),
            }
            sleep(RECONNECT_DELAY).await;
            client = client.reconnect().await?;
            if let Some(run) = run
                && client.get::<Run>(&format!("/runs/{run}")).await?.status.is_terminal()
            {
                // The stream may have ended before the last events.
                return self.list(&client, Some(run), after).await;
            }
        }
    }

    fn print(&self, event: &Event, is_one_run: bool) -> Result<(), CliError> {
        if self.request.json {
            return output::json(event);
        }
        let run = if is_one_run { String::new() } else { format!("{} ", &event.run_id.to_string()[24..]) };
        let text = describe(&serde_json::to_value(&event.event).unwrap_or_default());
        output::line(&format!("\x1b[2m{}\x1b[0m {run}{:>4} {}", event.at, event.seq, sanitize(&text)))
    }
}

/// Formats the type, the step and the short fields of an event.
fn describe(event: &Value) -> String {
    let mut text = event["type"].as_str().unwrap_or_default().to_owned();
    if let Some(path) = event["step"]["path"].as_str() {
        text.push_str(&format!(" {path}"));
        if let Some(attempt @ 2..) = event["step"]["attempt"].as_u64() {
            text.push_str(&format!("#{attempt}"));
        }
    }
    for key in ["definition", "by", "reason", "prompt", "event", "tool", "message"] {
        if let Some(value) = event[key].as_str() {
            text.push_str(&format!(" {key}={value}"));
        }
    }
    if let Some(message) = event["error"]["message"].as_str() {
        text.push_str(&format!(": {message}"));
    }
    text
}
