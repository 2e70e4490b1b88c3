//! [`ToolCaller`] for the gateway: finds the connection and the tool of a call, and checks the arguments before it is sent.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_engine::{
    Annotations, BoxFuture, CallReporter, CallSite, Capacity, Continuation, Failure, FailureKind,
    InputRequest, OnToolChange, Outage, Outcome, Report, ToolCall, ToolCaller,
};

use super::call::Call;
use super::catalogue::ToolInfo;
use super::connection::Connection;
use super::input_requests::ResumeState;
use super::link::Link;
use super::task::{TaskPoll, cancel_task};
use super::{Gateway, arguments, failure, meters};
use crate::config::ServerEntry;
use crate::redact;
use crate::suggest;

const CANCELLED_BEFORE_SENT: &str = "the step was cancelled before the call was sent";

impl ToolCaller for Gateway {
    fn call(&self, mut call: ToolCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let Some(server) = self.0.aliases.server_of(&call.tool) else {
                return Err(self.unknown_tool(&call.tool));
            };
            self.0.shared.capture_runtime();
            let started = Instant::now();
            let reporter = call.reporter.clone();
            call.reporter = CallReporter::new(move |report| {
                if let Some(report) = redact::report(report) {
                    reporter.report(report);
                }
            });
            let outcome = redact::outcome(self.dispatch(server, call).await);
            meters::call_ended(server, &outcome, started.elapsed());
            outcome
        })
    }

    fn annotations(&self, tool: &str) -> Annotations {
        self.tool(tool).map_or(Annotations::UNANNOTATED, |tool| tool.annotations)
    }

    fn capacity(&self, call: &CallSite<'_>) -> Capacity {
        let link = self.0.aliases.server_of(call.tool).map(|server| self.link(server, Some(call.principal)));
        match link {
            Some(Ok(link)) => link.capacity(call),
            // The call itself reports the error.
            Some(Err(_)) | None => Capacity::unlimited(call.tool),
        }
    }

    fn on_available(&self, available: Box<dyn Fn(&str) + Send + Sync>) {
        self.0.shared.on_available(available);
    }

    fn on_outage(&self, outage: Box<dyn Fn(Outage) + Send + Sync>) {
        self.0.shared.on_outage(outage);
    }

    fn check_args(&self, tool: &str, args: &Value) -> Result<(), String> {
        let problems = self.tool(tool).map(|tool| tool.problems(args)).unwrap_or_default();
        if problems.is_empty() { Ok(()) } else { Err(invalid_arguments(tool, &problems)) }
    }

    fn pin(&self, tool: &str) -> Option<Hash> {
        // A per-user server may describe a tool differently to each user.
        let server = self.0.aliases.server_of(tool)?;
        let is_per_user = self.0.servers.servers.get(server).is_some_and(ServerEntry::is_per_user);
        self.tool(tool).filter(|_| !is_per_user).map(|tool| tool.pin)
    }

    fn forget(&self, state: &Value) {
        let Some(runtime) = self.0.shared.runtime.get() else { return };
        match ResumeState::read(state) {
            Some(ResumeState::Held { id, .. }) => {
                if let Some(held) = self.0.held.take(&id) {
                    runtime.spawn(async move { held.connection.close().await });
                }
            }
            Some(ResumeState::Task { server, id, .. }) => {
                if let Some(link) = self.links_of(&server).into_iter().next() {
                    runtime.spawn(async move { cancel_task(&link, &id).await });
                }
            }
            Some(ResumeState::Retry { .. }) | None => {}
        }
    }
}

impl Gateway {
    async fn dispatch(&self, server: &str, mut call: ToolCall) -> Outcome {
        let was_sent = was_sent(&call);
        let unreachable = |problem: String| {
            if was_sent { failure::lost(server, &problem) } else { failure::not_sent(server, &problem) }
        };
        let link = self.link(server, Some(&call.principal)).map_err(unreachable)?;
        if let Some(outcome) = self.resume_without_connection(&link, &call).await {
            return outcome;
        }
        let connection = tokio::select! {
            connection = link.connection() => connection.map_err(unreachable)?,
            () = call.cancelled.cancelled() => return Err(unreachable(CANCELLED_BEFORE_SENT.to_owned())),
        };
        arguments::resolve(self.secrets(), server, &mut call)
            .await
            .map_err(|failure| if was_sent { failure::lost(server, &failure.message) } else { failure })?;
        let tool = tokio::select! {
            tool = connection.tool(&call.tool) => tool,
            () = call.cancelled.cancelled() => return Err(unreachable(CANCELLED_BEFORE_SENT.to_owned())),
        };
        let tool = match tool {
            Some(tool) if was_sent => tool,
            Some(tool) => checked(&connection, tool, &call).await?,
            None if was_sent => return Err(failure::lost(server, "it no longer has the tool")),
            None => return Err(self.unknown_tool(&call.tool)),
        };
        let outcome = self.call_over(&link, &call).run(connection.clone(), &tool).await;
        if let Err(error) = &outcome
            && matches!(error.kind, FailureKind::NotFound | FailureKind::Validation)
        {
            // The tools of the server may have changed.
            connection.listener.mark_stale();
        }
        outcome
    }

    /// Resumes a task, or a call that holds its own connection. `None` for other calls.
    async fn resume_without_connection(&self, link: &Arc<Link>, call: &ToolCall) -> Option<Outcome> {
        match call.continues.as_ref()? {
            Continuation::Task(id) => Some(TaskPoll { link, call }.until_ended(id).await),
            Continuation::Answer(answer) => match ResumeState::read(&answer.state)? {
                ResumeState::Held { id, kind, .. } => {
                    Some(self.call_over(link, call).resume_held(&id, kind, answer).await)
                }
                ResumeState::Task { .. } | ResumeState::Retry { .. } => None,
            },
        }
    }

    fn call_over<'c>(&'c self, link: &'c Arc<Link>, call: &'c ToolCall) -> Call<'c> {
        let relay = call.principal.relay.as_ref();
        let client = relay.and_then(|relay| self.0.relays.find(&relay.id));
        Call { link, call, held: &self.0.held, client }
    }

    fn unknown_tool(&self, tool: &str) -> Failure {
        let aliases: Vec<String> = self.0.aliases.iter().map(|(alias, _)| alias.to_owned()).collect();
        let hint = suggest::hint(tool, &self.known_tools(), &aliases);
        Failure::new(FailureKind::NotFound, format!("there is no tool `{tool}`; {hint}"))
    }
}

/// Whether the call continues one that reached its server. If it fails now, its outcome is unknown.
fn was_sent(call: &ToolCall) -> bool {
    call.continues.as_ref().is_some_and(|continues| match continues {
        Continuation::Task(_) => true,
        Continuation::Answer(answer) => !answer.is_call_confirmation(),
    })
}

/// Checks the arguments and the pin of a tool. Lists the tools again before it rejects arguments.
async fn checked(
    connection: &Connection,
    tool: Arc<ToolInfo>,
    call: &ToolCall,
) -> Result<Arc<ToolInfo>, Failure> {
    let mut tool = tool;
    let mut problems = tool.problems(call.args.value());
    if !problems.is_empty() {
        connection.listener.mark_stale();
        tool = connection.tool(&call.tool).await.unwrap_or(tool);
        problems = tool.problems(call.args.value());
    }
    check_pin(&tool, call)?;
    if problems.is_empty() {
        return Ok(tool);
    }
    Err(Failure::new(FailureKind::Validation, invalid_arguments(&call.tool, &problems)))
}

fn invalid_arguments(tool: &str, problems: &[String]) -> String {
    format!("invalid arguments for `{tool}`: {}", problems.join("; "))
}

/// Reports a tool whose description changed since the definition was stored, and applies `on_tool_change`.
fn check_pin(tool: &ToolInfo, call: &ToolCall) -> Result<(), Failure> {
    let Some((_, policy)) = call.pinned.filter(|(pin, _)| *pin != tool.pin) else { return Ok(()) };
    let approved = match &call.continues {
        Some(Continuation::Answer(answer)) => answer.subject(),
        _ => None,
    };
    if approved == Some(tool.pin) {
        return Ok(());
    }
    let change = format!("the description of `{}` has changed since the definition was stored", tool.name);
    call.reporter.report(Report::ToolChanged { what: change.as_str().into() });
    match policy {
        OnToolChange::Warn => Ok(()),
        OnToolChange::Block => {
            let hint = "review the tool and define the workflow again";
            Err(Failure::new(FailureKind::Validation, format!("{change}; {hint}")).code("tool_changed"))
        }
        OnToolChange::Approve => {
            let question = format!("{change}: {}. Call it anyway?", tool.description);
            Err(Failure::input_required(InputRequest::confirm_call(question, Some(tool.pin))))
        }
    }
}
