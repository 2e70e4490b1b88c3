//! Calls of exposed tools: the request goes to the server unchanged, and the result comes back unchanged.

#![expect(deprecated, reason = "sampling, roots and logging are passed on as long as servers use them")]

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

use super::answer::{Answer, Asked, Refusal};
use super::tasks::{self, EXPOSED, Given, Waiting};
use super::{Shared, gates};
use crate::limits::{PASSED_ON_SECS, RELAY_BYTES, RELAY_ROUNDS};
use crate::relay::{RelayChannel, RelayMessage, Reply};

/// What goes along with one call beside its arguments.
#[derive(Default)]
struct Round {
    responses: Option<InputResponses>,
    state: Option<String>,
}

/// Calls an exposed tool. A client with a session is asked what the tool asks; any other client calls again.
pub(super) async fn call(shared: &Shared, asked: &Asked, tool: &str) -> Answer {
    let mut round = Round { responses: asked.request.input_responses.clone(), state: None };
    if let Some(state) = &asked.request.request_state {
        match resumed(asked, tool, state).await? {
            Resumed::Waiting => return super::tools::go_on(shared, asked, state, None).await,
            Resumed::Asked(state) => round.state = state,
        }
    }
    for _ in 0..RELAY_ROUNDS {
        let response = make(shared, asked, tool, round).await?;
        let CallToolResponse::InputRequired(needed) = &response else { return Ok(response) };
        if asked.is_modern() {
            return Ok(response);
        }
        let state = needed.request_state.as_deref();
        let state = match state {
            Some(run) => match resumed(asked, tool, run).await? {
                Resumed::Asked(state) => state,
                Resumed::Waiting => None,
            },
            None => None,
        };
        let requests = needed.input_requests.clone().unwrap_or_default();
        let not_answered = |error: ServiceError| {
            let message = format!("the tool asked something that the client did not answer: {error}");
            Refusal::new("not_answered", message)
        };
        let responses = answers(&asked.context.peer, requests).await.map_err(not_answered)?;
        round = Round { responses: Some(responses), state };
    }
    Err(Refusal::new("too_many_questions", format!("`{tool}` asked more than {RELAY_ROUNDS} times")))
}

/// The run that a `requestState` of ours stands for.
enum Resumed {
    /// The tool waited for an answer in the middle of its call.
    Waiting,
    /// The call ended with questions; the server wants this state back.
    Asked(Option<String>),
}

/// Finds the run of a `requestState`: one of the same user and of the same tool.
async fn resumed(asked: &Asked, tool: &str, state: &str) -> Result<Resumed, Refusal> {
    let invalid = || Refusal::Protocol(ErrorData::invalid_params("invalid requestState", None));
    let run = gates::run_of(state).or_else(|| state.parse::<RunId>().ok()).ok_or_else(invalid)?;
    let row = asked.user.row(run).await.map_err(|_| invalid())?;
    let is_same = row.via.as_deref() == Some(&*format!("{EXPOSED}{tool}"));
    if !is_same || row.created_by != asked.user.principal().id {
        return Err(invalid());
    }
    if gates::run_of(state).is_some() {
        return Ok(Resumed::Waiting);
    }
    let output = row.output.as_ref().and_then(|output| serde_json::from_str::<Value>(output.get()).ok());
    let output = output.filter(|output| output["resultType"] == "input_required").ok_or_else(invalid)?;
    Ok(Resumed::Asked(output["requestState"].as_str().map(str::to_owned)))
}

/// Makes one call, and serves what the server asks the client meanwhile.
async fn make(shared: &Shared, asked: &Asked, tool: &str, round: Round) -> Answer {
    let full = || Refusal::new("unavailable", "too many relayed calls are in flight; try again later");
    let gateway = shared.gateway.as_ref().ok_or_else(full)?;
    let mut client = gateway.relay().ok_or_else(full)?;
    let responses = round.responses.map(|given| json!(given));
    if responses.as_ref().is_some_and(|given| given.to_string().len() > RELAY_BYTES) {
        let message = format!("inputResponses is larger than {RELAY_BYTES} bytes");
        return Err(Refusal::Protocol(ErrorData::invalid_params(message, None)));
    }
    let capabilities = asked.context.client_capabilities().unwrap_or_default();
    let relay =
        Relay { id: client.id.clone(), capabilities: json!(capabilities), responses, state: round.state };
    let args = Value::Object(asked.request.arguments.clone().unwrap_or_default());
    let user = asked.user.via(format!("{EXPOSED}{tool}")).relaying(relay);
    let run = user.call_tool(tool, &args).await?.id();
    let answering = tasks::answer(shared, asked, run, Given::Exact, Waiting::new(PASSED_ON_SECS));
    beside(answering, asked, &capabilities, &mut client).await
}

/// Serves the requests of a server until the call is answered.
async fn beside(
    answering: impl Future<Output = Answer>,
    asked: &Asked,
    capabilities: &ClientCapabilities,
    client: &mut RelayChannel,
) -> Answer {
    let mut answering = std::pin::pin!(answering);
    let mut serving = FuturesUnordered::new();
    let mut told = f64::NEG_INFINITY;
    loop {
        tokio::select! {
            biased;
            Some(request) = client.requests.recv() => match request {
                // Notifications are sent one after another: their order means something.
                RelayMessage::Progress(progress) if progress.progress > told => {
                    told = progress.progress;
                    report(asked, progress).await;
                }
                RelayMessage::Progress(_) => {}
                RelayMessage::Log(message) => log(asked, message).await,
                request => serving.push(serve(asked, capabilities, request)),
            },
            Some(()) = serving.next() => {}
            answer = &mut answering => return answer,
        }
    }
}

/// Passes one request of a server on to the client. What the client cannot answer is dropped, and the
/// server hears that.
async fn serve(asked: &Asked, client: &ClientCapabilities, request: RelayMessage) {
    let peer = &asked.context.peer;
    let is_legacy = !asked.is_modern();
    match request {
        RelayMessage::Elicit(params, reply) if is_legacy && client.elicitation.is_some() => {
            reply_with(reply, peer.create_elicitation(*params).await);
        }
        RelayMessage::Sample(params, reply) if is_legacy && client.sampling.is_some() => {
            reply_with(reply, peer.create_message(*params).await);
        }
        RelayMessage::Roots(reply) if is_legacy && client.roots.is_some() => {
            reply_with(reply, peer.list_roots().await);
        }
        _ => {}
    }
}

/// Passes progress on under the token of the client. It may be gone; its run goes on.
async fn report(asked: &Asked, mut progress: ProgressNotificationParam) {
    let Some(token) = asked.context.meta.get_progress_token() else { return };
    progress.progress_token = token;
    let _ = asked.context.peer.notify_progress(progress).await;
}

/// Passes a log message on to a client with a session that wants messages of its level.
async fn log(asked: &Asked, message: LoggingMessageNotificationParam) {
    if !asked.is_modern() && asked.watches.wants_log(message.level) {
        let _ = asked.context.peer.notify_logging_message(message).await;
    }
}

fn reply_with<T>(reply: Reply<T>, answer: Result<T, ServiceError>) {
    // The call may have ended meanwhile.
    let _ = reply.send(answer.map_err(|error| match error {
        ServiceError::McpError(error) => error,
        other => ErrorData::internal_error(other.to_string(), None),
    }));
}

/// Asks a client with a session what a server of 2026-07-28 wants to know.
pub(super) async fn answers(
    peer: &Peer<RoleServer>,
    requests: InputRequests,
) -> Result<InputResponses, ServiceError> {
    let mut answers = InputResponses::new();
    for (key, request) in requests {
        let answer = match request {
            InputRequest::Elicitation(request) => json!(peer.create_elicitation(request.params).await?),
            InputRequest::CreateMessage(request) => json!(peer.create_message(request.params).await?),
            InputRequest::ListRoots(_) => json!(peer.list_roots().await?),
            _ => return Err(ServiceError::UnexpectedResponse),
        };
        answers.insert(key, answer);
    }
    Ok(answers)
}

/// How severe a level of logging is.
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
