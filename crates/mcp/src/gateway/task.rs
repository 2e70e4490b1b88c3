//! Polls a task of a server until it ends.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{CallToolResult, CancelTaskParams, DetailedTask, ErrorCode, GetTaskParams, TaskPayload};
use serde_json::Value;
use steprail_engine::{Failure, FailureKind, Outcome, Report, ToolCall};

use super::input_requests::{self, ResumeState};
use super::link::Link;
use super::{failure, tool_result};
use crate::limits::{CALL_SECS, REQUEST_SECS, TASK_POLL_FAILURES, TASK_POLL_MS};
use crate::redact;

/// Polls the task of a call.
pub(super) struct TaskPoll<'p> {
    pub link: &'p Arc<Link>,
    pub call: &'p ToolCall,
}

impl TaskPoll<'_> {
    /// Polls a task until it has ended. Reconnects if the connection is lost, because the task continues meanwhile.
    pub(super) async fn until_ended(&self, id: &str) -> Outcome {
        let ended = tokio::time::timeout(Duration::from_secs(CALL_SECS), self.poll(id));
        ended.await.unwrap_or_else(|_| Err(failure::lost(&self.link.server, "its task did not end in time")))
    }

    async fn poll(&self, id: &str) -> Outcome {
        let mut failures = 0;
        let mut reported = None;
        loop {
            let delay = match self.get(id).await {
                Ok(task) => {
                    failures = 0;
                    let interval = task.task.poll_interval_ms.unwrap_or(TASK_POLL_MS.0);
                    let message = task.task.status_message.clone();
                    if let Some(outcome) = self.outcome(id, task) {
                        return outcome;
                    }
                    if let Some(message) = message.filter(|message| reported.as_ref() != Some(message)) {
                        reported = Some(message.clone());
                        let message = Some(message.into());
                        self.call.reporter.report(Report::Progress { progress: 0.0, total: None, message });
                    }
                    interval.clamp(TASK_POLL_MS.0, TASK_POLL_MS.1)
                }
                Err(error) => {
                    failures += 1;
                    if failures >= TASK_POLL_FAILURES || error.code.is_some() {
                        return Err(error);
                    }
                    TASK_POLL_MS.1
                }
            };
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(delay)) => {}
                () = self.call.cancelled.cancelled() => {
                    cancel_task(self.link, id).await;
                    return Err(Failure::new(FailureKind::Cancelled, "the call was cancelled"));
                }
            }
        }
    }

    async fn get(&self, id: &str) -> Result<DetailedTask, Failure> {
        let server = &self.link.server;
        let connection = self.link.connection().await.map_err(|problem| failure::lost(server, &problem))?;
        match with_timeout(connection.peer.get_task(GetTaskParams::new(id))).await {
            Some(Ok(found)) => Ok(found.task),
            // A server may delete a task some time after it ended.
            Some(Err(ServiceError::McpError(error))) if error.code == ErrorCode::INVALID_PARAMS => {
                let message = format!("{server} has no task `{id}` any more: {}", error.message);
                Err(Failure::new(FailureKind::Lost, message).code("task_unknown"))
            }
            Some(Err(error)) => Err(failure::lost(server, &failure::of(server, error).message)),
            None => Err(failure::lost(server, "it does not report the status of its task")),
        }
    }

    /// The outcome of a task; `None` while it works.
    fn outcome(&self, id: &str, task: DetailedTask) -> Option<Outcome> {
        let server = &self.link.server;
        let is_relayed = self.call.principal.relay.is_some();
        match task.payload {
            TaskPayload::Completed { result } if is_relayed => {
                Some(tool_result::raw_outcome(Value::Object(result)))
            }
            TaskPayload::Completed { result } => {
                let result = serde_json::from_value::<CallToolResult>(Value::Object(result));
                Some(match result {
                    Ok(result) => tool_result::outcome(result),
                    Err(error) => {
                        Err(failure::lost(server, &format!("the result of its task is invalid: {error}")))
                    }
                })
            }
            TaskPayload::Failed { error } => {
                let message = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
                let code = error.get("code").cloned().unwrap_or_default();
                let failure =
                    Failure::new(FailureKind::ToolError, format!("{server}: {}", redact::text(message)));
                let failure = failure.code(&format!("mcp {code}"));
                Some(Err(if is_relayed { failure.details(Value::Object(error)) } else { failure }))
            }
            TaskPayload::Cancelled => {
                Some(Err(Failure::new(FailureKind::Cancelled, format!("{server} cancelled the task"))))
            }
            TaskPayload::InputRequired { input_requests } => {
                let id = id.to_owned();
                let state = |server, inputs| ResumeState::Task { server, id, inputs };
                Some(Err(input_requests::input_required(server, input_requests, state)))
            }
            _ => None,
        }
    }
}

/// Cancels a task whose result is no longer needed.
pub(super) async fn cancel_task(link: &Arc<Link>, id: &str) {
    if let Ok(connection) = link.connection().await {
        let _ = with_timeout(connection.peer.cancel_task(CancelTaskParams::new(id))).await;
    }
}

/// Runs a request with the timeout [`REQUEST_SECS`]; `None` if it expired.
pub(super) async fn with_timeout<T>(request: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_secs(REQUEST_SECS), request).await.ok()
}
