//! Calls of exposed tools: requests and results are relayed unchanged.

#![expect(deprecated, reason = "sampling, roots and logging are relayed as long as servers use them")]

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rmcp::model::{
    CallToolResponse, ClientCapabilities, ErrorData, InputRequest, InputRequests, InputResponses,
    LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam,
};
use rmcp::service::Peer;
use rmcp::{RoleServer, ServiceError};
use serde_json::{Value, json};
use steprail_engine::{Relay, RunId};

use super::error::{ToolError, ToolResult};
use super::request::ToolRequest;
use super::tasks::{self, ResultForm, VIA_EXPOSED, WaitOptions};
use super::{content, gates};
use crate::limits::{RELAY_BYTES, RELAY_ROUNDS, RELAYED_CALL_SECS};
use crate::relay::{RelayChannel, RelayMessage, Reply};

/// The answers to the previous `input_required` result of the server, sent along with the arguments.
#[derive(Default)]
struct RoundTrip {
    responses: Option<InputResponses>,
    state: Option<String>,
}

/// Calls an exposed tool. A client with a session answers input requests during the call; any other calls again.
pub(super) async fn call(request: &ToolRequest, tool: &str) -> ToolResult {
    let mut round_trip = RoundTrip { responses: request.params.input_responses.clone(), state: None };
    if let Some(state) = &request.params.request_state {
        match suspended_call(request, tool, state).await? {
            SuspendedCall::InFlight => return super::tools::continue_call(request, state, None).await,
            SuspendedCall::InputRequired(state) => round_trip.state = state,
        }
    }
    for _ in 0..RELAY_ROUNDS {
        let response = relay_call(request, tool, round_trip).await?;
        let CallToolResponse::InputRequired(required) = &response else { return Ok(response) };
        if request.is_sessionless() {
            return Ok(response);
        }
        let state = match required.request_state.as_deref() {
            Some(run) => match suspended_call(request, tool, run).await? {
                SuspendedCall::InputRequired(state) => state,
                SuspendedCall::InFlight => None,
            },
            None => None,
        };
        let requests = required.input_requests.clone().unwrap_or_default();
        let not_answered = |error: ServiceError| {
            let message = format!("the client did not answer an input request of the tool: {error}");
            ToolError::new("not_answered", message)
        };
        let responses = send_requests(&request.context.peer, requests).await.map_err(not_answered)?;
        round_trip = RoundTrip { responses: Some(responses), state };
    }
    let message = format!("`{tool}` requested input more than {RELAY_ROUNDS} times");
    Err(ToolError::new("too_many_questions", message))
}

/// The relayed call that a `requestState` names.
enum SuspendedCall {
    /// The call is in flight and waits for an answer.
    InFlight,
    /// The call ended with `input_required` and this `requestState` of its server.
    InputRequired(Option<String>),
}

/// Finds the call of a `requestState`. It must be of the same user and tool.
async fn suspended_call(request: &ToolRequest, tool: &str, state: &str) -> Result<SuspendedCall, ToolError> {
    let invalid = ToolError::invalid_request_state;
    let run = gates::run_of(state).or_else(|| state.parse::<RunId>().ok()).ok_or_else(invalid)?;
    let row = request.user.row(run).await.map_err(|_| invalid())?;
    let is_same = row.via.as_deref() == Some(&*format!("{VIA_EXPOSED}{tool}"));
    if !is_same || row.created_by != request.user.principal().id {
        return Err(invalid());
    }
    if gates::run_of(state).is_some() {
        return Ok(SuspendedCall::InFlight);
    }
    let output = Some(content::output_of(&row)).filter(|output| output["resultType"] == "input_required");
    let output = output.ok_or_else(invalid)?;
    Ok(SuspendedCall::InputRequired(output["requestState"].as_str().map(str::to_owned)))
}

/// Makes one call, and serves the requests of the server meanwhile.
async fn relay_call(request: &ToolRequest, tool: &str, round_trip: RoundTrip) -> ToolResult {
    let full = || ToolError::new("unavailable", "too many relayed calls are in flight; try again later");
    let gateway = request.shared.gateway.as_ref().ok_or_else(full)?;
    let mut client = gateway.relay().ok_or_else(full)?;
    let responses = round_trip.responses.map(|responses| json!(responses));
    if responses.as_ref().is_some_and(|responses| responses.to_string().len() > RELAY_BYTES) {
        let message = format!("inputResponses is larger than {RELAY_BYTES} bytes");
        return Err(ToolError::Protocol(ErrorData::invalid_params(message, None)));
    }
    let capabilities = request.context.client_capabilities().unwrap_or_default();
    let state = round_trip.state;
    let relay = Relay { id: client.id.clone(), capabilities: json!(capabilities), responses, state };
    let args = Value::Object(request.params.arguments.clone().unwrap_or_default());
    let user = request.client_user().via(format!("{VIA_EXPOSED}{tool}")).relaying(relay);
    let run = user.call_tool(tool, &args).await?.id();
    let response = tasks::respond(request, run, ResultForm::Relayed, WaitOptions::new(RELAYED_CALL_SECS));
    serve_during(response, request, &capabilities, &mut client).await
}

/// Serves the requests of a server until the call has a response.
async fn serve_during(
    response: impl Future<Output = ToolResult>,
    request: &ToolRequest,
    capabilities: &ClientCapabilities,
    client: &mut RelayChannel,
) -> ToolResult {
    let mut response = std::pin::pin!(response);
    let mut serving = FuturesUnordered::new();
    let mut last_progress = f64::NEG_INFINITY;
    loop {
        tokio::select! {
            biased;
            Some(message) = client.requests.recv() => match message {
                // Notifications are sent one after another, to keep their order.
                RelayMessage::Progress(progress) if progress.progress > last_progress => {
                    last_progress = progress.progress;
                    relay_progress(request, progress).await;
                }
                RelayMessage::Progress(_) => {}
                RelayMessage::Log(message) => relay_log(request, message).await,
                message => serving.push(serve(request, capabilities, message)),
            },
            Some(()) = serving.next() => {}
            response = &mut response => return response,
        }
    }
}

/// Relays one request of a server to the client. A request that the client does not support is dropped, which the
/// gateway reports to the server.
async fn serve(request: &ToolRequest, client: &ClientCapabilities, message: RelayMessage) {
    let peer = &request.context.peer;
    let has_session = !request.is_sessionless();
    match message {
        RelayMessage::Elicit(params, reply) if has_session && client.elicitation.is_some() => {
            reply_with(reply, peer.create_elicitation(*params).await);
        }
        RelayMessage::Sample(params, reply) if has_session && client.sampling.is_some() => {
            reply_with(reply, peer.create_message(*params).await);
        }
        RelayMessage::Roots(reply) if has_session && client.roots.is_some() => {
            reply_with(reply, peer.list_roots().await);
        }
        _ => {}
    }
}

/// Relays progress under the token of the client. Errors are ignored: the run continues without its client.
async fn relay_progress(request: &ToolRequest, mut progress: ProgressNotificationParam) {
    let Some(token) = request.context.meta.get_progress_token() else { return };
    progress.progress_token = token;
    let _ = request.context.peer.notify_progress(progress).await;
}

/// Relays a log message to a client with a session, if it is at or above the level that the client set.
async fn relay_log(request: &ToolRequest, message: LoggingMessageNotificationParam) {
    if !request.is_sessionless() && request.subscriptions.includes_log(message.level) {
        let _ = request.context.peer.notify_logging_message(message).await;
    }
}

fn reply_with<T>(reply: Reply<T>, response: Result<T, ServiceError>) {
    // The call may have ended meanwhile.
    let _ = reply.send(response.map_err(|error| match error {
        ServiceError::McpError(error) => error,
        other => ErrorData::internal_error(other.to_string(), None),
    }));
}

/// Sends the input requests of a server of 2026-07-28 to a client with a session.
pub(super) async fn send_requests(
    peer: &Peer<RoleServer>,
    requests: InputRequests,
) -> Result<InputResponses, ServiceError> {
    let mut responses = InputResponses::new();
    for (key, request) in requests {
        let response = match request {
            InputRequest::Elicitation(request) => json!(peer.create_elicitation(request.params).await?),
            InputRequest::CreateMessage(request) => json!(peer.create_message(request.params).await?),
            InputRequest::ListRoots(_) => json!(peer.list_roots().await?),
            _ => return Err(ServiceError::UnexpectedResponse),
        };
        responses.insert(key, response);
    }
    Ok(responses)
}

/// The severity of a log level as a number.
pub(super) fn severity(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}
