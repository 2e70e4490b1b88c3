//! Calls in flight. Each runs in a task with a cancellation token, and a panic of a tool fails only its step.

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde_json::Value;
use steprail_core::limits::{CANCEL_GRACE_MS, REFUSED_DELAYS_MS};
use steprail_core::pattern;
use steprail_core::run::{Failure, FailureKind, Payload};
use steprail_store::{Origin, Principal, RunId};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::driver::Message;
use crate::kernel::{CallId, CallOrder, Notification, Request};
use crate::metrics::Metrics;
use crate::ports::{ArtefactStore, Authorizer, Outcome, ToolCall, ToolCaller};
use crate::reporter::CallReporter;
use crate::supervision::panic_message;
use crate::trace::RunTrace;

/// The ports that a call uses.
pub(crate) struct Ports {
    pub tools: Arc<dyn ToolCaller>,
    pub authorizer: Arc<dyn Authorizer>,
    pub artefacts: Option<Arc<dyn ArtefactStore>>,
}

/// Starts and cancels calls.
pub(crate) struct Calls {
    ports: Arc<Ports>,
    runtime: Handle,
    messages: Sender<Message>,
    in_flight: HashMap<CallId, CancellationToken>,
    abandoned: CancellationToken,
    metrics: Arc<Metrics>,
}

impl Calls {
    pub(crate) fn new(
        ports: Ports,
        runtime: Handle,
        messages: Sender<Message>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            ports: Arc::new(ports),
            runtime,
            messages,
            in_flight: HashMap::new(),
            abandoned: CancellationToken::new(),
            metrics,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Starts calls. Each sends `CallEnded` exactly once. They are handed to the runtime together, which costs one wake-up.
    pub(crate) fn start_all(&mut self, orders: Vec<CallOrder>) {
        if orders.is_empty() {
            return;
        }
        let calls: Vec<_> = orders.into_iter().map(|order| self.prepare(order)).collect();
        self.metrics.calls_in_flight(self.in_flight.len());
        match <[_; 1]>::try_from(calls) {
            Ok([call]) => drop(self.runtime.spawn(call)),
            Err(calls) => drop(self.runtime.spawn(async move {
                calls.into_iter().for_each(|call| drop(tokio::spawn(call)));
            })),
        }
    }

    /// The future of a call, which ends early if all calls are abandoned.
    fn prepare(&mut self, order: CallOrder) -> impl Future<Output = Option<()>> + Send + use<> {
        let token = CancellationToken::new();
        self.in_flight.insert(order.id, token.clone());
        let (ports, messages, metrics) = (self.ports.clone(), self.messages.clone(), self.metrics.clone());
        self.abandoned.clone().run_until_cancelled_owned(async move {
            let id = order.id;
            let reporter = CallReporter::to_log(id, messages.clone());
            let started = Instant::now();
            let outcome = CatchPanic(Box::pin(call_tool(&ports, order, token, reporter))).await;
            metrics.call_ended(&outcome, started.elapsed());
            let request = Request::Notification(Notification::CallEnded { id, outcome });
            // If the engine has stopped, recovery treats the call as lost.
            let _ = messages.send(Message::Request(request));
        })
    }

    /// Cancels the token of a call.
    pub(crate) fn cancel(&self, id: CallId) {
        if let Some(token) = self.in_flight.get(&id) {
            token.cancel();
        }
    }

    /// Drops all calls without cancelling their tokens: the next engine may wait for the same server tasks.
    pub(crate) fn abandon_all(&self) {
        self.abandoned.cancel();
    }

    /// Releases an input request that can no longer be answered.
    pub(crate) fn release_input_request(&self, state: &Value) {
        self.ports.tools.forget(state);
    }

    /// Removes a call that has ended.
    pub(crate) fn remove(&mut self, id: CallId) {
        self.in_flight.remove(&id);
        self.metrics.calls_in_flight(self.in_flight.len());
    }
}

async fn call_tool(
    ports: &Ports,
    order: CallOrder,
    token: CancellationToken,
    reporter: CallReporter,
) -> Result<Payload, Failure> {
    authorize(ports, &order).await.map_err(|reason| Failure::new(FailureKind::Permission, reason))?;
    let (run, path, is_probe) = (order.run, order.path.clone(), order.probe);
    let is_notification = order.principal.origin == Some(Origin::Notification);
    let call = tool_call(order, token.clone(), reporter);
    let call = async {
        let tools = &*ports.tools;
        let output = if is_probe { probe(tools, call).await? } else { tools.call(call).await? };
        match &ports.artefacts {
            Some(store) => store_files(&**store, run, &path, output).await,
            None => Ok(output),
        }
    };
    let outcome = until_cancelled(call, &token).await.map(Payload::new);
    if is_notification { outcome.map_err(|failure| refuse_input(ports, failure)) } else { outcome }
}

/// Nobody answers an input request of a tool that delivers a notification: it would be a notification as well.
fn refuse_input(ports: &Ports, failure: Failure) -> Failure {
    let Some(request) = failure.request else { return failure };
    ports.tools.forget(&request.state);
    let message = "the tool requests input, and a notification cannot wait for it";
    Failure::new(FailureKind::Permission, message)
}

fn tool_call(order: CallOrder, cancelled: CancellationToken, reporter: CallReporter) -> ToolCall {
    let trace = RunTrace::new(order.run, order.principal.trace.as_deref()).attempt(order.n, order.attempt);
    ToolCall {
        tool: order.tool,
        args: order.args,
        secrets: order.secrets,
        principal: order.principal,
        run: order.run,
        path: order.path,
        attempt: order.attempt,
        trace,
        idempotency_key: order.key,
        deadline: order.deadline,
        persona: order.persona,
        cancelled,
        continues: order.continues,
        reporter,
        pinned: order.pinned,
    }
}

/// Makes a call that does not go through admission. Transport failures are retried after fixed delays.
async fn probe(tools: &dyn ToolCaller, call: ToolCall) -> Outcome {
    let mut delays = REFUSED_DELAYS_MS.iter();
    loop {
        let outcome = tools.call(call.clone()).await;
        let was_not_sent = matches!(&outcome, Err(error) if error.kind == FailureKind::Transport);
        let Some(delay) = delays.next().filter(|_| was_not_sent) else { return outcome };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(*delay)) => {}
            () = call.cancelled.cancelled() => return outcome,
        }
    }
}

/// Moves the files of an output to the artefact store.
async fn store_files(store: &dyn ArtefactStore, run: RunId, path: &str, mut output: Value) -> Outcome {
    if let Some(Value::Array(files)) = output.get_mut("file_refs") {
        for file in files {
            *file = store.put(run, path, file.take()).await.map_err(|error| {
                // The call took effect, so a retry policy must not repeat it for the sake of its files.
                let message = format!("the files of the output could not be stored: {}", error.message);
                Failure::new(FailureKind::Lost, message)
            })?;
        }
    }
    Ok(output)
}

/// Checks the tools that the user had when the run started, and the current rights of the user and of the authors.
async fn authorize(ports: &Ports, order: &CallOrder) -> Result<(), String> {
    let (user, tool) = (&order.principal, &order.tool);
    check_tool(user, tool)?;
    user.authors.iter().try_for_each(|author| check_author(&*ports.authorizer, author, tool))?;
    if user.token.as_ref().is_some_and(|token| ports.authorizer.token_expiry(token).is_none()) {
        return Err(format!("the token of {} that started the run was revoked", user.id));
    }
    ports.authorizer.may_call(user, tool).await
}

/// Returns an error if the scope of the token, the tools that the user had when the run started, or `allowed_tools` of an
/// enclosing workflow exclude a tool.
pub(crate) fn check_tool(user: &Principal, tool: &str) -> Result<(), String> {
    check_scope(user, tool)?;
    if user.tools.as_ref().is_some_and(|tools| !has_tool(tools, tool)) {
        return Err(format!("{} was not allowed to call `{tool}` when the run was started", user.id));
    }
    if user.within.iter().any(|tools| !has_tool(tools, tool)) {
        return Err(format!("`allowed_tools` of an enclosing workflow does not allow the tool `{tool}`"));
    }
    Ok(())
}

/// Returns an error if the author of a definition may not call a tool now.
pub(crate) fn check_author(authorizer: &dyn Authorizer, author: &str, tool: &str) -> Result<(), String> {
    match authorizer.author_tools(author) {
        Some(tools) if !has_tool(&tools, tool) => {
            Err(format!("{author}, the author of the definition, may not call `{tool}`"))
        }
        _ => Ok(()),
    }
}

fn has_tool(tools: &[String], tool: &str) -> bool {
    tools.iter().any(|pattern| pattern::matches(pattern, tool))
}

/// Returns an error if the user acts through a token whose scope excludes the tool.
pub(crate) fn check_scope(user: &Principal, tool: &str) -> Result<(), String> {
    match &user.scope {
        Some(scope) if !scope.has_tool(tool) => {
            Err(format!("the token of {} may not call `{tool}`: its scope lacks the tool", user.id))
        }
        _ => Ok(()),
    }
}

/// Drops a cancelled call after nine tenths of the grace period, before the timer of the kernel fires.
async fn until_cancelled(call: impl Future<Output = Outcome>, token: &CancellationToken) -> Outcome {
    let grace = Duration::from_millis(CANCEL_GRACE_MS.unsigned_abs() / 10 * 9);
    let grace_ended = async {
        token.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        biased;
        outcome = call => outcome,
        () = grace_ended => Err(Failure::new(FailureKind::Cancelled, "the call was stopped")),
    }
}

/// Turns a panic of a future into a failure.
struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future<Output = Result<Payload, Failure>>> Future for CatchPanic<F> {
    type Output = Result<Payload, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = self.0.as_mut();
        catch_unwind(AssertUnwindSafe(|| inner.poll(context))).unwrap_or_else(|panic| {
            let text = panic_message(&*panic);
            Poll::Ready(Err(
                Failure::new(FailureKind::ToolError, format!("the tool panicked: {text}")).code("panic")
            ))
        })
    }
}
