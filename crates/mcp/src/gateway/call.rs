//! One call: sent, listened to, asked for again if it goes on by itself, and ended.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, CancelTaskParams, CancelledNotificationParam,
    ClientRequest, DetailedTask, ErrorCode, GetTaskParams, InputResponses, RequestId, RequestMetaObject,
    ServerResult, TaskPayload, UpdateTaskParams,
};
use rmcp::service::PeerRequestOptions;
use serde_json::Value;
use steprail_engine::{Continuation, Failure, FailureKind, InputResponse, Outcome, Report, ToolCall};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use super::catalogue::ToolInfo;
use super::connection::Connection;
use super::link::Link;
use super::listener::{Heard, Hearing};
use super::questions::{self, Held, HeldCall, Kind, Pending};
use super::{answer, failure};
use crate::limits::{
    CALL_SECS, IDLE_SECS, LAST_WORDS_MS, POLL_TRIES, REQUEST_SECS, STALL_GRACE_SECS, STALL_SECS,
    STOP_ANSWER_MS, TASK_POLL_MS,
};

use crate::relay::FromServer;

type Response = Result<ServerResult, ServiceError>;

/// A call that was sent.
pub(super) struct Sent {
    id: RequestId,
    response: oneshot::Receiver<Response>,
    hearing: Hearing,
    /// The only call of its connection, where questions could not be told apart otherwise.
    _turn: Option<OwnedSemaphorePermit>,
}

/// A call of a tool over a link.
pub(super) struct Call<'c> {
    pub link: &'c Arc<Link>,
    pub call: &'c ToolCall,
    pub held: &'c Held,
    /// The client that waits for the result, if the call is relayed.
    pub client: Option<mpsc::Sender<FromServer>>,
}

impl Call<'_> {
    /// Makes the call, or goes on with it.
    pub(super) async fn make(&self, connection: Arc<Connection>, tool: &ToolInfo) -> Outcome {
        match &self.call.continues {
            Some(Continuation::Answer(answered)) => self.go_on(connection, tool, answered).await,
            _ => self.send(connection, tool, None).await,
        }
    }

    /// Goes on with a call whose tool waits for an answer on a connection that it has for itself.
    pub(super) async fn go_on_held(&self, id: &str, asked: Kind, answered: &InputResponse) -> Outcome {
        let Some(HeldCall { sent, connection, reply }) = self.held.take(id) else {
            let reason = "the connection was closed while its tool waited for an answer";
            return Err(failure::lost(&self.link.server, reason));
        };
        let _ = reply.send(questions::response(asked, answered.answer.as_ref()));
        let outcome = self.hear(&connection, sent).await;
        if !matches!(&outcome, Err(error) if error.request.is_some()) {
            connection.close().await;
        }
        outcome
    }

    /// Goes on with a call whose tool asked something.
    async fn go_on(&self, connection: Arc<Connection>, tool: &ToolInfo, answered: &InputResponse) -> Outcome {
        if answered.is_whether() {
            return self.send(connection, tool, None).await;
        }
        let answer = answered.answer.as_ref();
        let server = &self.link.server;
        match Pending::read(&answered.state) {
            Some(Pending::Held { id, asked, .. }) => self.go_on_held(&id, asked, answered).await,
            Some(Pending::Task { id, asked, .. }) => {
                self.call.reporter.report(Report::Task { id: id.as_str().into() });
                let responses = questions::responses(&asked, answer);
                let update = connection.peer.update_task(UpdateTaskParams::new(&*id, responses));
                match in_time(update).await {
                    Some(Ok(())) => Poll { link: self.link, call: self.call }.until_ended(&id).await,
                    _ => Err(failure::lost(server, "it did not take the answer to its question")),
                }
            }
            Some(Pending::Retry { asked, request_state, .. }) => {
                self.send(connection, tool, Some((questions::responses(&asked, answer), request_state))).await
            }
            // To send the call again would be a guess.
            None => Err(failure::lost(server, "its question was recorded in a form that is not known here")),
        }
    }

    async fn send(
        &self,
        connection: Arc<Connection>,
        tool: &ToolInfo,
        answers: Option<(InputResponses, Option<String>)>,
    ) -> Outcome {
        let mut params = CallToolRequestParams::new(tool.original.clone());
        params.arguments = self.call.args.value().as_object().cloned();
        if let Some((answers, state)) = answers {
            params.input_responses = Some(answers);
            params.request_state = state;
        }
        let mut meta = meta(self.call);
        if let Some(relay) = &self.call.principal.relay {
            answer::relay(relay, &mut params, &mut meta, &connection);
        }
        let turn = tokio::select! {
            turn = connection.turn() => turn,
            () = self.call.cancelled.cancelled() => {
                return Err(failure::not_sent(&self.link.server, "the step was stopped before its call was sent"));
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
        let hearing = connection.listener.listen(handle.progress_token.clone(), self.client.clone());
        let (id, (sender, response)) = (handle.id.clone(), oneshot::channel());
        tokio::spawn(async move { sender.send(handle.await_response().await) });
        self.hear(&connection, Sent { id, response, hearing, _turn: turn }).await
    }

    /// Waits for the end of a call: an answer, too long a silence, the end of the connection, or a cancellation.
    async fn hear(&self, connection: &Arc<Connection>, mut sent: Sent) -> Outcome {
        let idle = match (self.link.entry.timeout, self.call.deadline) {
            (Some(timeout), _) => timeout,
            // The engine tells when the time of the step is up.
            (None, Some(_)) => Duration::from_secs(CALL_SECS),
            (None, None) => Duration::from_secs(IDLE_SECS),
        };
        let mut silence = Box::pin(tokio::time::sleep(idle));
        loop {
            tokio::select! {
                biased;
                heard = sent.hearing.next() => match heard {
                    Heard::Progress(progress) => {
                        silence.as_mut().reset(Instant::now() + idle);
                        self.call.reporter.report(Report::Progress {
                            progress: progress.progress,
                            total: progress.total,
                            message: progress.message.map(Into::into),
                        });
                    }
                    Heard::InputRequest(question, reply) => {
                        // The connection stays with this call; others open another one.
                        self.link.give_up(connection);
                        let held = HeldCall { sent, connection: connection.clone(), reply };
                        return Err(self.held.keep(&question, &self.link.server, held));
                    }
                },
                response = &mut sent.response => return self.responded(connection, response).await,
                () = connection.lost.cancelled() => return self.cut_off(connection, sent).await,
                () = &mut silence => {
                    // A timer that is late tells that this process was stopped: the answer may lie in a buffer.
                    if silence.deadline().elapsed() >= Duration::from_secs(STALL_SECS) {
                        silence.as_mut().reset(Instant::now() + Duration::from_secs(STALL_GRACE_SECS));
                        continue;
                    }
                    stop(connection, sent.id, "it was silent for too long").await;
                    return Err(failure::of(&self.link.server, ServiceError::Timeout { timeout: idle }));
                }
                () = self.call.cancelled.cancelled() => return self.stopped(connection, sent).await,
            }
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
                self.answered(result).await
            }
            Err(error) => Err(self.failed(connection, error).await),
        }
    }

    /// The server's process ended. What it wrote last may still be on its way.
    async fn cut_off(&self, connection: &Arc<Connection>, mut sent: Sent) -> Outcome {
        let last = tokio::time::timeout(Duration::from_millis(LAST_WORDS_MS), &mut sent.response).await;
        if let Ok(Ok(Ok(result))) = last {
            return self.answered(result).await;
        }
        self.link.suspect(self.call.run, &self.call.path);
        Err(failure::lost(&self.link.server, &connection.end_reason().await))
    }

    /// The step was stopped. An answer that is on its way still counts: no server answers once it was told to stop.
    async fn stopped(&self, connection: &Arc<Connection>, mut sent: Sent) -> Outcome {
        let patience = Duration::from_millis(STOP_ANSWER_MS);
        if let Ok(response) = tokio::time::timeout(patience, &mut sent.response).await {
            return self.responded(connection, response).await;
        }
        stop(connection, sent.id, "the step was stopped").await;
        Err(Failure::new(FailureKind::Cancelled, "the call was stopped"))
    }

    /// A request without a result. A server that cannot be reached, or is busy, takes no further calls for a while.
    async fn failed(&self, connection: &Arc<Connection>, error: ServiceError) -> Failure {
        let closed = matches!(error, ServiceError::TransportClosed);
        let failure = match error {
            ServiceError::TransportClosed => failure::lost(&self.link.server, &connection.end_reason().await),
            ServiceError::McpError(error) if self.call.principal.relay.is_some() => {
                let sent =
                    serde_json::json!({ "code": error.code.0, "message": error.message, "data": error.data });
                failure::of(&self.link.server, ServiceError::McpError(error)).details(sent)
            }
            error => failure::of(&self.link.server, error),
        };
        match failure.kind {
            FailureKind::Transport if failure.code.as_deref() == Some(failure::LOGIN_NEEDED) => {
                self.link.needs_login(&failure.message);
            }
            FailureKind::Transport => match failure.retry_after_ms {
                Some(delay) => self.link.busy(&failure.message, Duration::from_millis(delay)),
                None => self.link.dropped(connection, "the connection could not be used"),
            },
            FailureKind::Lost if closed => {
                self.link.suspect(self.call.run, &self.call.path);
                self.link.dropped(connection, &failure.message);
            }
            _ => self.link.clear_suspicion(self.call.run, &self.call.path),
        }
        failure
    }

    async fn answered(&self, result: ServerResult) -> Outcome {
        match result {
            ServerResult::CreateTaskResult(created) => {
                let id = created.task.task_id;
                self.call.reporter.report(Report::Task { id: id.as_str().into() });
                Poll { link: self.link, call: self.call }.until_ended(&id).await
            }
            result if self.call.principal.relay.is_some() => {
                answer::exact(serde_json::to_value(result).unwrap_or_default())
            }
            ServerResult::CallToolResult(result) => answer::outcome(result),
            ServerResult::InputRequiredResult(needed) => {
                let requests = needed.input_requests.unwrap_or_default();
                let request_state = needed.request_state;
                Err(questions::asks(&self.link.server, requests, |server, asked| Pending::Retry {
                    server,
                    asked,
                    request_state,
                }))
            }
            _ => Err(failure::lost(&self.link.server, "its answer is not a result of a tool")),
        }
    }
}

/// A call that goes on by itself at its server, under a name.
pub(super) struct Poll<'p> {
    pub link: &'p Arc<Link>,
    pub call: &'p ToolCall,
}

impl Poll<'_> {
    /// Asks for a task until it has ended. A connection that is cut is opened again: the task goes on meanwhile.
    pub(super) async fn until_ended(&self, id: &str) -> Outcome {
        let ended = tokio::time::timeout(Duration::from_secs(CALL_SECS), self.poll(id));
        ended.await.unwrap_or_else(|_| Err(failure::lost(&self.link.server, "its task does not end")))
    }

    async fn poll(&self, id: &str) -> Outcome {
        let mut failures = 0;
        let mut told = None;
        loop {
            let wait = match self.look(id).await {
                Ok(task) => {
                    failures = 0;
                    let wait = task.task.poll_interval_ms.unwrap_or(TASK_POLL_MS.0);
                    let message = task.task.status_message.clone();
                    if let Some(outcome) = self.task_ended(id, task) {
                        return outcome;
                    }
                    if let Some(message) = message.filter(|message| told.as_ref() != Some(message)) {
                        told = Some(message.clone());
                        let message = Some(message.into());
                        self.call.reporter.report(Report::Progress { progress: 0.0, total: None, message });
                    }
                    wait.clamp(TASK_POLL_MS.0, TASK_POLL_MS.1)
                }
                Err(error) => {
                    failures += 1;
                    if failures >= POLL_TRIES || error.code.is_some() {
                        return Err(error);
                    }
                    TASK_POLL_MS.1
                }
            };
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
                () = self.call.cancelled.cancelled() => {
                    cancel_task(self.link, id).await;
                    return Err(Failure::new(FailureKind::Cancelled, "the call was stopped"));
                }
            }
        }
    }

    async fn look(&self, id: &str) -> Result<DetailedTask, Failure> {
        let server = &self.link.server;
        let connection = self.link.connection().await.map_err(|problem| failure::lost(server, &problem))?;
        match in_time(connection.peer.get_task(GetTaskParams::new(id))).await {
            Some(Ok(found)) => Ok(found.task),
            // What is not known there may have ended long ago.
            Some(Err(ServiceError::McpError(error))) if error.code == ErrorCode::INVALID_PARAMS => {
                let message = format!("{server} no longer knows the task `{id}`: {}", error.message);
                Err(Failure::new(FailureKind::Lost, message).code("task_unknown"))
            }
            Some(Err(error)) => Err(failure::lost(server, &failure::of(server, error).message)),
            None => Err(failure::lost(server, "it does not say how its task stands")),
        }
    }

    fn task_ended(&self, id: &str, task: DetailedTask) -> Option<Outcome> {
        let server = &self.link.server;
        match task.payload {
            TaskPayload::Completed { result } if self.call.principal.relay.is_some() => {
                Some(answer::exact(Value::Object(result)))
            }
            TaskPayload::Completed { result } => {
                let result = serde_json::from_value::<CallToolResult>(Value::Object(result));
                Some(match result {
                    Ok(result) => answer::outcome(result),
                    Err(error) => Err(failure::lost(server, &format!("its task gave no result: {error}"))),
                })
            }
            TaskPayload::Failed { error } => {
                let message = error.get("message").and_then(Value::as_str).unwrap_or("it gave no reason");
                let code = error.get("code").cloned().unwrap_or_default();
                let failure = Failure::new(FailureKind::ToolError, format!("{server}: {message}"));
                let failure = failure.code(&format!("mcp {code}"));
                let is_relayed = self.call.principal.relay.is_some();
                Some(Err(if is_relayed { failure.details(Value::Object(error)) } else { failure }))
            }
            TaskPayload::Cancelled => {
                Some(Err(Failure::new(FailureKind::Cancelled, format!("{server} cancelled the task"))))
            }
            TaskPayload::InputRequired { input_requests } => {
                Some(Err(questions::asks(server, input_requests, |server, asked| Pending::Task {
                    server,
                    id: id.to_owned(),
                    asked,
                })))
            }
            _ => None,
        }
    }
}

/// An answer, if it comes in time.
async fn in_time<T>(request: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_secs(REQUEST_SECS), request).await.ok()
}

/// Tells a server that nobody waits for a task any more.
pub(super) async fn cancel_task(link: &Arc<Link>, id: &str) {
    if let Ok(connection) = link.connection().await {
        let _ = in_time(connection.peer.cancel_task(CancelTaskParams::new(id))).await;
    }
}

async fn stop(connection: &Connection, id: RequestId, why: &str) {
    let stop = CancelledNotificationParam::new(Some(id), Some(why.to_owned()));
    let _ = connection.peer.notify_cancelled(stop).await;
}

/// What goes along with a call: who it is for, what tells a repetition, and where it stands in a trace.
fn meta(call: &ToolCall) -> RequestMetaObject {
    let mut meta = RequestMetaObject::new();
    let mut put = |key: &str, value: Value| drop(meta.0.0.insert(format!("dev.steprail/{key}"), value));
    put("idempotencyKey", Value::from(&*call.idempotency_key));
    put("run", Value::from(call.run.to_string()));
    put("step", Value::from(&*call.path));
    put("attempt", Value::from(call.attempt));
    meta.set_traceparent(call.trace.to_string());
    meta
}
