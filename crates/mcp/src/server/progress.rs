//! Progress of a run for a client that waits for it, and the notifications `$/dcc.workflowUpdated`.

use std::future::Future;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{CustomNotification, ProgressNotificationParam, ProgressToken, ServerNotification};
use rmcp::service::Peer;
use serde_json::{Value, json};
use steprail_engine::{After, Error, Event, RunId, RunRow, StoredEvent, Subscription};

use super::error::ToolError;
use super::request::ToolRequest;
use super::subscriptions::Subscriptions;
use crate::limits::HEARTBEAT_SECS;

/// Reports the events of a run to the client of a request.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    /// Whether the client called the tool by an alias: such clients receive `$/dcc.workflowUpdated`.
    by_alias: bool,
    events: Subscription,
    /// Number of reports sent.
    reports: f64,
    /// Sequence number of the last event that was read.
    seq: u64,
    /// Sends the events that follow after the request.
    subscriptions: Subscriptions,
}

impl Progress {
    /// Subscribes to the events of a run after a sequence number; `None` if the client requested no progress.
    pub(super) async fn new(
        request: &ToolRequest,
        run: RunId,
        after: u64,
    ) -> Result<Option<Self>, ToolError> {
        let token = request.context.meta.get_progress_token();
        let by_alias = super::tools::is_alias(&request.params.name);
        if token.is_none() && !by_alias {
            return Ok(None);
        }
        let events = request.user.follow(run, After::Seq(after)).await?;
        let peer = request.context.peer.clone();
        let subscriptions = request.subscriptions.clone();
        Ok(Some(Self { peer, token, by_alias, events, reports: 0.0, seq: after, subscriptions }))
    }

    /// Reports events until `wait` ends, and then those that it includes.
    pub(super) async fn report_during(
        &mut self,
        wait: impl Future<Output = Result<RunRow, Error>>,
    ) -> Result<RunRow, Error> {
        let mut wait = std::pin::pin!(wait);
        let row = loop {
            let heartbeat = tokio::time::sleep(Duration::from_secs(HEARTBEAT_SECS));
            tokio::select! {
                biased;
                event = self.events.next() => {
                    let event = event?.ok_or(Error::Stopped)?;
                    self.report_event(&event).await;
                }
                row = &mut wait => break row?,
                () = heartbeat => self.report("still running").await,
            }
        };
        while self.seq < row.seq {
            let event = self.events.next().await?.ok_or(Error::Stopped)?;
            self.report_event(&event).await;
        }
        if self.by_alias && !row.status.is_terminal() {
            self.subscriptions.follow_run(row.run_id, self.seq);
        }
        Ok(row)
    }

    async fn report_event(&mut self, stored: &StoredEvent) {
        self.seq = stored.seq;
        let Some(kind) = kind(&stored.event) else { return };
        self.report(&message(&stored.event)).await;
        if self.by_alias {
            let update = ServerNotification::CustomNotification(workflow_updated(stored, kind));
            // The run continues without its client.
            let _ = self.peer.send_notification(update).await;
        }
    }

    /// Sends a report. Its number only has to grow, because the number of steps is not known.
    async fn report(&mut self, message: &str) {
        let Some(token) = &self.token else { return };
        self.reports += 1.0;
        let report = ProgressNotificationParam::new(token.clone(), self.reports).with_message(message);
        let _ = self.peer.notify_progress(report).await;
    }
}

/// An event as `$/dcc.workflowUpdated`, if it is one of those that these notifications report.
pub(super) fn dcc_notification(stored: &StoredEvent) -> Option<CustomNotification> {
    kind(&stored.event).map(|kind| workflow_updated(stored, kind))
}

/// An event as the message of a progress report.
fn message(event: &Event) -> String {
    let path = event.step().map(|step| step.path.as_ref()).unwrap_or_default();
    match event {
        Event::StepStarted { .. } => format!("`{path}` started"),
        Event::StepCompleted { .. } => format!("`{path}` completed"),
        Event::StepFailed { error, .. } => format!("`{path}` failed: {error}"),
        Event::ApprovalRequested { prompt, .. } => format!("`{path}` waits for approval: {prompt}"),
        Event::StepProgressed { progress, total, message, .. } => {
            let total = total.map(|total| format!(" of {total}")).unwrap_or_default();
            let message = message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
            format!("`{path}` {progress}{total}{message}")
        }
        Event::ServerAwaited { error, .. } => format!("`{path}` waits for its server: {error}"),
        Event::RetryScheduled { error, .. } => format!("`{path}` is retried after: {error}"),
        other => other.name().replace('_', " "),
    }
}

/// The name of an event in `detail.kind`; `None` if it is not reported.
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
        "status": stored.event.name(),
        "detail": detail,
    });
    CustomNotification::new("notifications/$/dcc.workflowUpdated", Some(params))
}
