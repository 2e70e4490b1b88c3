//! Runs of a server, over REST and server-sent events.

use std::pin::Pin;

use futures::stream::{SelectAll, Stream, StreamExt, once};
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{Resolution, RunId, RunStatus};
use steprail_http::views::{Approval, Run, UnknownCall};

use super::run_client::{Definition, RunClient, RunUpdate};
use crate::cli::presence::Deciding;
use crate::client::{Client, ClientError};

/// The runs of a server.
pub(crate) struct RestRuns {
    client: Client,
    streams: SelectAll<Pin<Box<dyn Stream<Item = RunUpdate> + Send>>>,
}

#[derive(Deserialize)]
struct SignalResult {
    runs: usize,
}

impl RestRuns {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, streams: SelectAll::new() }
    }
}

impl RunClient for RestRuns {
    const IN_PROCESS: bool = false;

    async fn start(
        &self,
        definition: Definition<'_>,
        inputs: Value,
        key: Option<String>,
    ) -> Result<Run, ClientError> {
        let mut body = match definition {
            Definition::Stored(name) => json!({ "name": name }),
            Definition::Inline { text, source } => json!({ "text": text, "source": source }),
        };
        body["input"] = inputs;
        body["idempotency_key"] = key.unwrap_or_else(|| format!("run-{}", uuid::Uuid::now_v7())).into();
        self.client.start_run(&body).await
    }

    async fn run(&self, run: RunId) -> Result<Run, ClientError> {
        self.client.get(&format!("/runs/{run}")).await
    }

    async fn subscribe(&mut self, run: RunId, after: &str) -> Result<(), ClientError> {
        let events = self.client.stream(&format!("/runs/{run}/stream"), Some(after)).await?;
        let events = events.filter_map(|(_, event)| std::future::ready(event));
        let updates = events.map(|event| RunUpdate::Event(Box::new(event)));
        self.streams.push(Box::pin(updates.chain(once(async move { RunUpdate::StreamEnded(run) }))));
        Ok(())
    }

    async fn next(&mut self) -> Result<RunUpdate, ClientError> {
        Ok(self.streams.next().await.unwrap_or(RunUpdate::Disconnected))
    }

    async fn reconnect(&mut self) -> Result<(), ClientError> {
        self.client = self.client.reconnect().await?;
        self.streams.clear();
        Ok(())
    }

    async fn may_decide(&self, approval: &Approval) -> bool {
        approval.may_decide != Some(false)
    }

    async fn decide(&self, approval: &Approval, approved: bool) -> Result<(), ClientError> {
        let action = if approved { "approve" } else { "deny" };
        let body = json!({ "step": approval.step, "digest": approval.digest });
        let path = format!("/runs/{}/{action}", approval.run_id);
        let proof = Deciding { approval, path: &path, body: &body }.proof(&self.client).await?;
        self.client.post_with_proof::<Value>(&path, &body, proof).await.map(drop)
    }

    async fn resolve(&self, call: &UnknownCall, resolution: Resolution) -> Result<(), ClientError> {
        let (action, value) = match &resolution {
            Resolution::Retry => ("retry", None),
            Resolution::Skip => ("skip", None),
            Resolution::Fail => ("fail", None),
            Resolution::Happened(result) => ("happened", Some(result.value())),
        };
        let body = json!({ "action": action, "step": call.step, "value": value, "digest": call.digest });
        self.client.post::<Value>(&format!("/runs/{}/intervene", call.run_id), &body).await.map(drop)
    }

    async fn signal(&self, event: &str, payload: &Value, run: Option<RunId>) -> Result<usize, ClientError> {
        let path = run.map_or_else(|| "/signals".to_owned(), |run| format!("/runs/{run}/signal"));
        let body = json!({ "event": event, "payload": payload });
        self.client.post::<SignalResult>(&path, &body).await.map(|result| result.runs)
    }

    /// Reads the status first, because following a run in progress does not need the right to resume it.
    async fn resume(&self, run: RunId) -> Result<(), ClientError> {
        if !matches!(self.run(run).await?.status, RunStatus::Paused | RunStatus::Interrupted) {
            return Ok(());
        }
        self.client.post::<Value>(&format!("/runs/{run}/resume"), &json!({})).await.map(drop)
    }

    async fn close(&mut self, _has_unfinished_runs: bool) -> usize {
        0
    }
}
