//! One tool call: sends the request and waits for the result, an input request, a timeout or the end of the connection.

use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, InputResponses,
    RequestId, RequestMetaObject, ServerResult, UpdateTaskParams,
};
use rmcp::service::PeerRequestOptions;
use serde_json::Value;
use steprail_engine::{Continuation, Failure, FailureKind, InputResponse, Outcome, Report, ToolCall};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use super::catalogue::ToolInfo;
use super::connection::Connection;
use super::input_requests::{self, HeldCall, HeldCalls, InputRequestKind, ResumeState};
use super::link::Link;
use super::listener::{ServerMessage, ServerMessages};
use super::task::{TaskPoll, with_timeout};
use super::{failure, tool_result};
use crate::limits::{CALL_SECS, CANCEL_GRACE_MS, EXIT_DRAIN_MS, IDLE_SECS, STALL_GRACE_SECS, STALL_SECS};
use crate::relay::RelayMessage;

type Response = Result<ServerResult, ServiceError>;

/// A call in flight.
pub(super) struct SentCall {
    id: RequestId,
    response: oneshot::Receiver<Response>,
    messages: ServerMessages,
    /// Held where the connection allows one call at a time.
    _permit: Option<OwnedSemaphorePermit>,
}

/// A call of a tool over a link.
pub(super) struct Call<'c> {
    pub link: &'c Arc<Link>,
    pub call: &'c ToolCall,
    pub held: &'c HeldCalls,
    /// The client that waits for the result of a relayed call.
    pub client: Option<mpsc::Sender<RelayMessage>>,
}

impl Call<'_> {
    /// Sends the call, or resumes it with the response to an input request.
    pub(super) async fn run(&self, connection: Arc<Connection>, tool: &ToolInfo) -> Outcome {
        match &self.call.continues {
            Some(Continuation::Answer(answer)) => self.resume(connection, tool, answer).await,
            _ => self.send(connection, tool, None).await,
        }
    }

    /// Resumes a call that holds its own connection.
    pub(super) async fn resume_held(
        &self,
        id: &str,
        kind: InputRequestKind,
        answer: &InputResponse,
    ) -> Outcome {
        let Some(HeldCall { call, connection, reply }) = self.held.take(id) else {
            let reason = "the connection was closed while its tool waited for input";
            return Err(failure::lost(&self.link.server, reason));
        };
        let _ = reply.send(input_requests::response(kind, answer.answer.as_ref()));
        let outcome = self.wait(&connection, call).await;
        if !matches!(&outcome, Err(error) if error.request.is_some()) {
            connection.close().await;
        }
        outcome
    }

    async fn resume(
        &self,
        connection: Arc<Connection>,
        tool: &ToolInfo,
        response: &InputResponse,
    ) -> Outcome {
        if response.is_call_confirmation() {
            return self.send(connection, tool, None).await;
        }
        let answer = response.answer.as_ref();
        let server = &self.link.server;
        match ResumeState::read(&response.state) {
            Some(ResumeState::Held { id, kind, .. }) => self.resume_held(&id, kind, response).await,
            Some(ResumeState::Task { id, inputs, .. }) => {
                self.call.reporter.report(Report::Task { id: id.as_str().into() });
                let responses = input_requests::responses(&inputs, answer);
                let update = connection.peer.update_task(UpdateTaskParams::new(&*id, responses));
                match with_timeout(update).await {
                    Some(Ok(())) => TaskPoll { link: self.link, call: self.call }.until_ended(&id).await,
                    _ => Err(failure::lost(server, "it did not accept the response to its input request")),
                }
            }
            Some(ResumeState::Retry { inputs, request_state, .. }) => {
                let responses = input_requests::responses(&inputs, answer);
                self.send(connection, tool, Some((responses, request_state))).await
            }
            // Sending the call again could repeat its effect.
            None => Err(failure::lost(server, "its input request was recorded in an unknown format")),
        }
    }

    async fn send(
        &self,
        connection: Arc<Connection>,
        tool: &ToolInfo,
        input: Option<(InputResponses, Option<String>)>,
    ) -> Outcome {
        let mut params = CallToolRequestParams::new(tool.original.clone());
        params.arguments = self.call.args.value().as_object().cloned();
        if let Some((responses, state)) = input {
            params.input_responses = Some(responses);
            params.request_state = state;
        }
        let mut meta = request_meta(self.call);
        if let Some(relay) = &self.call.principal.relay {
            tool_result::add_relay_params(relay, &mut params, &mut meta, &connection);
        }
        let permit = tokio::select! {
            permit = connection.call_permit() => permit,
            () = self.call.cancelled.cancelled() => {
                let reason = "the step was cancelled before the call was sent";
                return Err(failure::not_sent(&self.link.server, reason));
            }
            () = connection.lost.cancelled() => {
                return Err(failure::not_sent(&self.link.server, &connection.end_reason().await));
            }
        };
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options()
            .with_meta(meta)
            .with_max_total_timeout(Duration::from_secs(CALL_SECS));
        let sent = connection.peer.send_request_with_option(request, options).await;
        let handle = match sent {
            Ok(handle) => handle,
            Err(error) => return Err(self.failed(&connection, error).await),
        };
        let messages = connection.listener.register(handle.progress_token.clone(), self.client.clone());
        let (id, (sender, response)) = (handle.id.clone(), oneshot::channel());
        tokio::spawn(async move { sender.send(handle.await_response().await) });
        self.wait(&connection, SentCall { id, response, messages, _permit: permit }).await
    }

    /// Waits until the call ends: a response, the idle timeout, a lost connection or a cancellation.
    async fn wait(&self, connection: &Arc<Connection>, mut sent: SentCall) -> Outcome {
        let idle = self.idle_timeout();
        let mut timer = Box::pin(tokio::time::sleep(idle));
        loop {
            tokio::select! {
                biased;
                message = sent.messages.next() => match message {
                    ServerMessage::Progress(progress) => {
                        timer.as_mut().reset(Instant::now() + idle);
                        self.call.reporter.report(Report::Progress {
                            progress: progress.progress,
                            total: progress.total,
                            message: progress.message.map(Into::into),
                        });
                    }
                    ServerMessage::InputRequest(request, reply) => {
                        self.link.detach(connection);
                        let held = HeldCall { call: sent, connection: connection.clone(), reply };
                        return Err(self.held.hold(&request, &self.link.server, held));
                    }
                },
                response = &mut sent.response => return self.responded(connection, response).await,
                () = connection.lost.cancelled() => return self.connection_lost(connection, sent).await,
                () = &mut timer => {
                    // A late timer means that this process was suspended: the response may be in a buffer.
                    if timer.deadline().elapsed() >= Duration::from_secs(STALL_SECS) {
                        timer.as_mut().reset(Instant::now() + Duration::from_secs(STALL_GRACE_SECS));
                        continue;
                    }
                    notify_cancelled(connection, sent.id, "the idle timeout expired").await;
                    return Err(failure::of(&self.link.server, ServiceError::Timeout { timeout: idle }));
                }
                () = self.call.cancelled.cancelled() => return self.cancelled(connection, sent).await,
            }
        }
    }

    fn idle_timeout(&self) -> Duration {
        match (self.link.entry.timeout, self.call.deadline) {
            (Some(timeout), _) => timeout,
            // The engine enforces the deadline of the step.
            (None, Some(_)) => Duration::from_secs(CALL_SECS),
            (None, None) => Duration::from_secs(IDLE_SECS),
        }
    }

    async fn responded(
        &self,
        connection: &Arc<Connection>,
        response: Result<Response, oneshot::error::RecvError>,
    ) -> Outcome {
        match response.unwrap_or(Err(ServiceError::TransportClosed)) {
            Ok(result) => {
                self.link.clear_suspicion(self.call.run, &self.call.path);
                self.outcome(result).await
            }
            Err(error) => Err(self.failed(connection, error).await),
        }
    }

    /// The server's process exited. A response that it wrote before may still be in the pipe.
    async fn connection_lost(&self, connection: &Arc<Connection>, mut sent: SentCall) -> Outcome {
        let last = tokio::time::timeout(Duration::from_millis(EXIT_DRAIN_MS), &mut sent.response).await;
        if let Ok(Ok(Ok(result))) = last {
            return self.outcome(result).await;
        }
        self.link.suspect(self.call.run, &self.call.path);
        Err(failure::lost(&self.link.server, &connection.end_reason().await))
    }

    /// The step was cancelled. Waits a moment for a response first, because servers do not answer cancelled requests.
    async fn cancelled(&self, connection: &Arc<Connection>, mut sent: SentCall) -> Outcome {
        let grace = Duration::from_millis(CANCEL_GRACE_MS);
        if let Ok(response) = tokio::time::timeout(grace, &mut sent.response).await {
            return self.responded(connection, response).await;
        }
        notify_cancelled(connection, sent.id, "the step was cancelled").await;
        Err(Failure::new(FailureKind::Cancelled, "the call was cancelled"))
    }

    /// The failure of a request without a result. Updates the link: a server that is unreachable or busy gets no further
    /// calls for a while.
    async fn failed(&self, connection: &Arc<Connection>, error: ServiceError) -> Failure {
        let is_closed = matches!(error, ServiceError::TransportClosed);
        let failure = match error {
            ServiceError::TransportClosed => failure::lost(&self.link.server, &connection.end_reason().await),
            ServiceError::McpError(error) if self.call.principal.relay.is_some() => {
                let details =
                    serde_json::json!({ "code": error.code.0, "message": error.message, "data": error.data });
                failure::of(&self.link.server, ServiceError::McpError(error)).details(details)
            }
            error => failure::of(&self.link.server, error),
        };
        match failure.kind {
            FailureKind::Transport if failure.code.as_deref() == Some(failure::LOGIN_NEEDED) => {
                self.link.needs_login(&failure.message);
            }
            FailureKind::Transport => match failure.retry_after_ms {
                Some(delay) => self.link.busy(&failure.message, Duration::from_millis(delay)),
                None => self.link.disconnected(connection, "the connection could not be used"),
            },
            FailureKind::Lost if is_closed => {
                self.link.suspect(self.call.run, &self.call.path);
                self.link.disconnected(connection, &failure.message);
            }
            _ => self.link.clear_suspicion(self.call.run, &self.call.path),
        }
        failure
    }

    async fn outcome(&self, result: ServerResult) -> Outcome {
        match result {
            ServerResult::CreateTaskResult(created) => {
                let id = created.task.task_id;
                self.call.reporter.report(Report::Task { id: id.as_str().into() });
                TaskPoll { link: self.link, call: self.call }.until_ended(&id).await
            }
            result if self.call.principal.relay.is_some() => {
                tool_result::raw_outcome(serde_json::to_value(result).unwrap_or_default())
            }
            ServerResult::CallToolResult(result) => tool_result::outcome(result),
            ServerResult::InputRequiredResult(required) => {
                let requests = required.input_requests.unwrap_or_default();
                let request_state = required.request_state;
                Err(input_requests::input_required(&self.link.server, requests, |server, inputs| {
                    ResumeState::Retry { server, inputs, request_state }
                }))
            }
            _ => Err(failure::lost(&self.link.server, "its response is not a tool result")),
        }
    }
}

/// Sends `notifications/cancelled` for a request.
async fn notify_cancelled(connection: &Connection, id: RequestId, reason: &str) {
    let params = CancelledNotificationParam::new(Some(id), Some(reason.to_owned()));
    let _ = connection.peer.notify_cancelled(params).await;
}

/// The `_meta` of a call: idempotency key, run, step, attempt and trace context.
fn request_meta(call: &ToolCall) -> RequestMetaObject {
    let mut meta = RequestMetaObject::new();
    let mut put = |key: &str, value: Value| drop(meta.0.0.insert(format!("dev.steprail/{key}"), value));
    put("idempotencyKey", Value::from(&*call.idempotency_key));
    put("run", Value::from(call.run.to_string()));
    put("step", Value::from(&*call.path));
    put("attempt", Value::from(call.attempt));
    meta.set_traceparent(call.trace.to_string());
    meta
}
