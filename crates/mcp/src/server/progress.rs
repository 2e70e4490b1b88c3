//! Progress of a run, for a client that waits for it.

use std::future::Future;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{CustomNotification, ProgressNotificationParam, ProgressToken, ServerNotification};
use rmcp::service::Peer;
use serde_json::{Value, json};
use steprail_engine::{Error, Event, RunId, RunRow, StoredEvent, Subscription};

use super::answer::{Asked, Refusal};
use super::watches::Watches;
use crate::limits::HEARTBEAT_SECS;

/// Tells a client what happens to a run while it waits.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    /// Whether the client called a tool by a name that promises notifications of its own.
    dotted: bool,
    feed: Subscription,
    told: f64,
    seen: u64,
    /// Where what follows is told, when nobody waits any more.
    watches: Watches,
}

impl Progress {
    /// For a client that wants to know.
    pub(super) async fn new(asked: &Asked, run: RunId, after: u64) -> Result<Option<Self>, Refusal> {
        let token = asked.context.meta.get_progress_token();
        let dotted = super::tools::is_old_name(&asked.request.name);
        if token.is_none() && !dotted {
            return Ok(None);
        }
        let feed = asked.user.follow(run, after).await?;
        let peer = asked.context.peer.clone();
        let watches = asked.watches.clone();
        Ok(Some(Self { peer, token, dotted, feed, told: 0.0, seen: after, watches }))
    }

    /// Reports while something else waits, and whatever it has seen in the end.
    pub(super) async fn beside(
        &mut self,
        waiting: impl Future<Output = Result<RunRow, Error>>,
    ) -> Result<RunRow, Error> {
        let mut waiting = std::pin::pin!(waiting);
        let row = loop {
            let silence = tokio::time::sleep(Duration::from_secs(HEARTBEAT_SECS));
            tokio::select! {
                biased;
                event = self.feed.next() => {
                    let event = event?.ok_or(Error::Stopped)?;
                    self.tell(&event).await;
                }
                row = &mut waiting => break row?,
                () = silence => self.report("still under way").await,
            }
        };
        while self.seen < row.seq {
            let event = self.feed.next().await?.ok_or(Error::Stopped)?;
            self.tell(&event).await;
        }
        if self.dotted && !row.status.is_terminal() {
            self.watches.follow(row.run_id, self.seen);
        }
        Ok(row)
    }

    async fn tell(&mut self, stored: &StoredEvent) {
        self.seen = stored.seq;
        let Some((kind, words)) = transition(&stored.event) else { return };
        self.report(&words).await;
        if self.dotted {
            let update = ServerNotification::CustomNotification(workflow_updated(stored, kind));
            // The client may be gone; its run goes on.
            let _ = self.peer.send_notification(update).await;
        }
    }

    /// Values only have to grow: how many steps there will be is not known.
    async fn report(&mut self, words: &str) {
        let Some(token) = &self.token else { return };
        self.told += 1.0;
        let report = ProgressNotificationParam::new(token.clone(), self.told).with_message(words);
        let _ = self.peer.notify_progress(report).await;
    }
}

/// An event in the words of clients that know `$/dcc.workflowUpdated`, if they have a word for it.
pub(super) fn in_old_words(stored: &StoredEvent) -> Option<CustomNotification> {
    kind(&stored.event).map(|kind| workflow_updated(stored, kind))
}

/// What an event is to somebody who watches: a kind, and words.
fn transition(event: &Event) -> Option<(&'static str, String)> {
    let path = event.step().map(|step| step.path.as_ref()).unwrap_or_default();
    let kind = kind(event)?;
    let words = match event {
        Event::StepStarted { .. } => format!("`{path}` began"),
        Event::StepCompleted { .. } => format!("`{path}` is done"),
        Event::StepFailed { error, .. } => format!("`{path}` failed: {error}"),
        Event::ApprovalRequested { prompt, .. } => format!("`{path}` waits for approval: {prompt}"),
        Event::StepProgressed { progress, total, message, .. } => {
            let total = total.map(|total| format!(" of {total}")).unwrap_or_default();
            let message = message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
            format!("`{path}` {progress}{total}{message}")
        }
        Event::ServerAwaited { error, .. } => format!("`{path}` waits: {error}"),
        Event::RetryScheduled { error, .. } => format!("`{path}` is tried again after: {error}"),
        other => other.word().replace('_', " "),
    };
    Some((kind, words))
}

/// The word that stands for an event in `detail.kind`.
fn kind(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::StepStarted { .. } => "step_enter",
        Event::StepCompleted { .. } | Event::StepFailed { .. } | Event::StepSkipped { .. } => "step_exit",
        Event::StepProgressed { .. } => "step_progress",
        Event::RetryScheduled { .. } | Event::ServerAwaited { .. } => "step_retry",
        Event::ApprovalRequested { .. } => "approve_requested",
        Event::ApprovalGranted { .. } | Event::ApprovalDenied { .. } => "approve_resolved",
        Event::RunCompleted { .. } | Event::RunFailed { .. } | Event::RunCancelled { .. } => {
            "workflow_terminal"
        }
        _ => return None,
    })
}

fn workflow_updated(stored: &StoredEvent, kind: &str) -> CustomNotification {
    let mut detail = json!({ "kind": kind });
    if let Some(step) = stored.event.step() {
        detail["step_id"] = Value::from(&*step.path);
        detail["attempt"] = step.attempt.into();
    }
    if let Event::ApprovalRequested { prompt, .. } = &stored.event {
        detail["prompt"] = Value::from(&**prompt);
    }
    let params = json!({
        "workflow_id": stored.run,
        "seq": stored.seq,
        "status": stored.event.word(),
        "detail": detail,
    });
    CustomNotification::new("notifications/$/dcc.workflowUpdated", Some(params))
}
