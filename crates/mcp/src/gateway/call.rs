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
use serde_json::{Value, json};
use steprail_engine::{Answered, Failure, FailureKind, Outcome, Report, Resumes, ToolCall};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::answer;
use super::catalogue::ToolInfo;
use super::connection::Connection;
use super::line::Line;
use super::listener::{Heard, Hearing};
use super::questions::{self, Held, HeldCall};
use crate::limits::{CALL_SECS, IDLE_SECS, LAST_WORDS_MS, POLL_TRIES, REQUEST_SECS, TASK_POLL_MS};

type Response = Result<ServerResult, ServiceError>;

/// A call that was sent.
pub(super) struct Sent {
    id: RequestId,
    response: oneshot::Receiver<Response>,
    hearing: Hearing,
    /// The only call of its connection, where questions could not be told apart otherwise.
    _turn: Option<OwnedSemaphorePermit>,
}

/// A call of a tool on a line.
pub(super) struct Call<'c> {
    pub line: &'c Line,
    pub tool: &'c ToolInfo,
    pub call: &'c ToolCall,
    pub held: &'c Held,
}

impl Call<'_> {
    /// Makes the call, or goes on with it.
    pub(super) async fn make(&self, connection: Arc<Connection>) -> Outcome {
        match &self.call.resumes {
            Some(Resumes::Answer(answered)) => self.go_on(connection, answered).await,
            _ => self.send(connection, None).await,
        }
    }

    /// Goes on with a call whose tool asked something.
    async fn go_on(&self, connection: Arc<Connection>, answered: &Answered) -> Outcome {
        let state = &answered.state;
        let keys = state["keys"].as_array().cloned().unwrap_or_default();
        let answers = || questions::responses(&keys, answered.answer.as_ref());
        match state["kind"].as_str() {
            Some("held") => match self.held.take(state["id"].as_str().unwrap_or_default()) {
                Some(HeldCall { sent, connection, reply }) => {
                    let _ = reply.send(questions::elicited(answered.answer.as_ref()));
                    let outcome = self.hear(&connection, sent).await;
                    // Others have another one by now.
                    if !matches!(&outcome, Err(error) if error.question.is_some()) {
                        connection.close().await;
                    }
                    outcome
                }
                None => {
                    Err(answer::lost(&self.line.server, "it was asked something when the connection was cut"))
                }
            },
            _ if answered.is_whether() => self.send(connection, None).await,
            Some("task") => {
                let id = state["id"].as_str().unwrap_or_default();
                self.call.reports.tell(Report::Task { id: id.into() });
                let update = connection.peer.update_task(UpdateTaskParams::new(id, answers()));
                match in_time(update).await {
                    Some(Ok(())) => Poll { line: self.line, call: self.call }.until_ended(id).await,
                    _ => Err(answer::lost(&self.line.server, "it did not take the answer to its question")),
                }
            }
            _ => {
                let given = state["requestState"].as_str().map(str::to_owned);
                self.send(connection, Some((answers(), given))).await
            }
        }
    }

    async fn send(
        &self,
        connection: Arc<Connection>,
        answers: Option<(InputResponses, Option<String>)>,
    ) -> Outcome {
        let mut params = CallToolRequestParams::new(self.tool.original.clone());
        params.arguments = self.call.args.value().as_object().cloned();
        if let Some((answers, state)) = answers {
            params.input_responses = Some(answers);
            params.request_state = state;
        }
        let turn = tokio::select! {
            turn = connection.turn() => turn,
            () = self.call.cancelled.cancelled() => {
                return Err(Failure::new(FailureKind::Cancelled, "stopped before the call was sent"));
            }
            () = connection.lost.cancelled() => {
                return Err(Failure::new(FailureKind::Transport, "the server ended before the call was sent"));
            }
        };
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options()
            .with_meta(meta(self.call))
            .with_max_total_timeout(Duration::from_secs(CALL_SECS));
        let sent = connection.peer.send_request_with_option(request, options).await;
        let handle = sent.map_err(|error| answer::failure(&self.line.server, error))?;
        let hearing = connection.listener.listen(handle.progress_token.clone());
        let (id, (sender, response)) = (handle.id.clone(), oneshot::channel());
        tokio::spawn(async move { sender.send(handle.await_response().await) });
        self.hear(&connection, Sent { id, response, hearing, _turn: turn }).await
    }

    /// Waits for the end of a call: an answer, too long a silence, the end of the connection, or the word to stop.
    async fn hear(&self, connection: &Arc<Connection>, mut sent: Sent) -> Outcome {
        let idle = match (self.line.entry.timeout, self.call.deadline) {
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
                        silence.as_mut().reset(tokio::time::Instant::now() + idle);
                        self.call.reports.tell(Report::Progress {
                            progress: progress.progress,
                            total: progress.total,
                            message: progress.message.map(Into::into),
                        });
                    }
                    Heard::Question(question, reply) => {
                        // The connection stays with this call; others open another one.
                        self.line.give_up(connection).await;
                        let held = HeldCall { sent, connection: connection.clone(), reply };
                        return Err(self.held.keep(&question, &self.line.server, held));
                    }
                },
                response = &mut sent.response => {
                    return self.answered(response.unwrap_or(Err(ServiceError::TransportClosed))).await;
                }
                () = connection.lost.cancelled() => {
                    // What it said last may still be on its way.
                    let last = tokio::time::timeout(Duration::from_millis(LAST_WORDS_MS), &mut sent.response).await;
                    return match last {
                        Ok(Ok(response)) => self.answered(response).await,
                        _ => Err(answer::lost(&self.line.server, "its process ended")),
                    };
                }
                () = &mut silence => {
                    stop(connection, sent.id, "it was silent for too long").await;
                    return Err(answer::failure(&self.line.server, ServiceError::Timeout { timeout: idle }));
                }
                () = self.call.cancelled.cancelled() => {
                    stop(connection, sent.id, "the step was stopped").await;
                    return Err(Failure::new(FailureKind::Cancelled, "the call was stopped"));
                }
            }
        }
    }

    async fn answered(&self, response: Response) -> Outcome {
        match response {
            Ok(ServerResult::CallToolResult(result)) => answer::outcome(result),
            Ok(ServerResult::CreateTaskResult(created)) => {
                let id = created.task.task_id;
                self.call.reports.tell(Report::Task { id: id.as_str().into() });
                Poll { line: self.line, call: self.call }.until_ended(&id).await
            }
            Ok(ServerResult::InputRequiredResult(needed)) => {
                let requests = needed.input_requests.unwrap_or_default();
                let state = json!({ "kind": "retry", "requestState": needed.request_state });
                Err(questions::asks(&self.line.server, requests, state))
            }
            Ok(_) => Err(answer::lost(&self.line.server, "it answered with something else than a result")),
            Err(error) => Err(answer::failure(&self.line.server, error)),
        }
    }
}

/// A call that goes on by itself at its server, under a name.
pub(super) struct Poll<'p> {
    pub line: &'p Line,
    pub call: &'p ToolCall,
}

impl Poll<'_> {
    /// Asks for a task until it has ended. A connection that is cut is opened again: the task goes on meanwhile.
    pub(super) async fn until_ended(&self, id: &str) -> Outcome {
        let ended = tokio::time::timeout(Duration::from_secs(CALL_SECS), self.poll(id));
        ended.await.unwrap_or_else(|_| Err(answer::lost(&self.line.server, "its task does not end")))
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
                        self.call.reports.tell(Report::Progress { progress: 0.0, total: None, message });
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
                    cancel_task(self.line, id).await;
                    return Err(Failure::new(FailureKind::Cancelled, "the call was stopped"));
                }
            }
        }
    }

    async fn look(&self, id: &str) -> Result<DetailedTask, Failure> {
        let server = &self.line.server;
        let connection = self.line.connection().await.map_err(|problem| answer::lost(server, &problem))?;
        match in_time(connection.peer.get_task(GetTaskParams::new(id))).await {
            Some(Ok(found)) => Ok(found.task),
            // What is not known there may have ended long ago.
            Some(Err(ServiceError::McpError(error))) if error.code == ErrorCode::INVALID_PARAMS => {
                let message = format!("{server} no longer knows the task `{id}`: {}", error.message);
                Err(Failure::new(FailureKind::Lost, message).code("task_unknown"))
            }
            Some(Err(error)) => Err(answer::lost(server, &error.to_string())),
            None => Err(answer::lost(server, "it does not say how its task stands")),
        }
    }

    fn task_ended(&self, id: &str, task: DetailedTask) -> Option<Outcome> {
        let server = &self.line.server;
        match task.payload {
            TaskPayload::Completed { result } => {
                let result = serde_json::from_value::<CallToolResult>(Value::Object(result));
                Some(match result {
                    Ok(result) => answer::outcome(result),
                    Err(error) => Err(answer::lost(server, &format!("its task gave no result: {error}"))),
                })
            }
            TaskPayload::Failed { error } => {
                let message = error.get("message").and_then(Value::as_str).unwrap_or("it gave no reason");
                let code = error.get("code").cloned().unwrap_or_default();
                let failure = Failure::new(FailureKind::ToolError, format!("{server}: {message}"));
                Some(Err(failure.code(&format!("mcp {code}"))))
            }
            TaskPayload::Cancelled => {
                Some(Err(Failure::new(FailureKind::Cancelled, format!("{server} cancelled the task"))))
            }
            TaskPayload::InputRequired { input_requests } => {
                Some(Err(questions::asks(server, input_requests, json!({ "kind": "task", "id": id }))))
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
pub(super) async fn cancel_task(line: &Line, id: &str) {
    if let Ok(connection) = line.connection().await {
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
