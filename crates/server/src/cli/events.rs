//! `steprail events`: what happened, in a run or in all, and what happens.

use std::process::ExitCode;

use clap::Args;
use futures::StreamExt;
use serde_json::{Value, json};
use steprail_engine::RunId;
use tokio::time::{Duration, Instant, sleep};

use super::progress::harmless;
use super::stop::Stop;
use super::target::{Target, find_run};
use super::{session, show_as};
use crate::client::{Client, Refused};
use steprail_http::views::{Event, Page, Run};

/// Events that are asked for at once.
const PAGE: usize = 1_000;
/// How long a server that is gone is looked for, and how often.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(200);

/// Show what happened in a run, or in all, and follow what happens
#[derive(Debug, Args)]
pub(super) struct Events {
    /// The run: its id, or the end of it; without it, every run that you may see
    run: Option<String>,
    /// Go on with what happens from now on; a run is followed to its end
    #[arg(long, short)]
    follow: bool,
    /// Only events after this number
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Events {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.look().await?;
            let run = match &self.run {
                Some(run) => Some(find_run(&client, run).await?),
                None => None,
            };
            if self.follow {
                self.follow(client, run).await?;
            } else {
                self.list(&client, run).await?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn list(&self, client: &Client, run: Option<RunId>) -> Result<(), Stop> {
        let path = run.map_or_else(|| "/audit".to_owned(), |run| format!("/runs/{run}/events"));
        let mut after = self.after.map(|after| after.to_string());
        loop {
            let page: Page<Event> = client.find(&path, &json!({ "after": after, "limit": PAGE })).await?;
            page.items.iter().try_for_each(|event| self.print(event, run.is_some()))?;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Follows to the end of the run, across restarts of the server.
    async fn follow(&self, mut client: Client, run: Option<RunId>) -> Result<(), Stop> {
        let path = run.map_or_else(|| "/stream".to_owned(), |run| format!("/runs/{run}/stream"));
        let mut after = self.after;
        let mut deadline = Instant::now() + PATIENCE;
        loop {
            match client.follow(&path, after).await {
                Ok(events) => {
                    let mut events = Box::pin(events);
                    while let Some((cursor, event)) = events.next().await {
                        after = cursor.or(after);
                        deadline = Instant::now() + PATIENCE;
                        event.iter().try_for_each(|event| self.print(event, run.is_some()))?;
                    }
                }
                Err(Refused::Unreachable(_)) if Instant::now() < deadline => {}
                Err(refused) => return Err(refused.into()),
            }
            sleep(LOOK).await;
            client = client.again().await?;
            if let Some(run) = run
                && client.get::<Run>(&format!("/runs/{run}")).await?.status.is_terminal()
            {
                return self.rest(&client, run, after).await;
            }
        }
    }

    /// What an ended run has beyond what was told.
    async fn rest(&self, client: &Client, run: RunId, mut after: Option<u64>) -> Result<(), Stop> {
        loop {
            let path = format!("/runs/{run}/events");
            let page: Page<Event> = client.find(&path, &json!({ "after": after, "limit": PAGE })).await?;
            page.items.iter().try_for_each(|event| self.print(event, true))?;
            match page.items.last() {
                Some(last) => after = Some(last.seq),
                None => return Ok(()),
            }
        }
    }

    fn print(&self, event: &Event, is_one_run: bool) -> Result<(), Stop> {
        if self.json {
            return show_as::json(event);
        }
        let told = serde_json::to_value(&event.event).unwrap_or_default();
        let run = if is_one_run { String::new() } else { format!("{} ", &event.run_id.to_string()[24..]) };
        let time = &event.at;
        show_as::line(&format!("\x1b[2m{time}\x1b[0m {run}{:>4} {}", event.seq, harmless(&words(&told))))
    }
}

/// An event in words: its kind, its step, and what else is short.
fn words(event: &Value) -> String {
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
