//! Calls in flight: each in its own task, with its own token; a panic is a failure of the step.

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde_json::Value;
use steprail_core::limits::{CANCEL_GRACE_MS, REFUSED_DELAYS_MS};
use steprail_core::pattern;
use steprail_core::run::{Failure, FailureKind, Payload, Report};
use steprail_store::Principal;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::driver::Message;
use crate::kernel::{Action, CallId, CallOrder, Request};
use crate::limits::{PROGRESS_AT_ONCE, PROGRESS_MS};
use crate::meters::Meters;
use crate::ports::{ArtefactStore, Authorizer, Outcome, ToolCall, ToolCaller};
use crate::trace::RunTrace;

/// What calls need.
pub(crate) struct Ports {
    pub tools: Arc<dyn ToolCaller>,
    pub authorizer: Arc<dyn Authorizer>,
    pub artefacts: Option<Arc<dyn ArtefactStore>>,
}

/// Makes calls and remembers how to stop them.
pub(crate) struct Calls {
    ports: Arc<Ports>,
    runtime: Handle,
    ended: Sender<Message>,
    tokens: HashMap<CallId, CancellationToken>,
    leaving: CancellationToken,
    meters: Arc<Meters>,
}

impl Calls {
    pub(crate) fn new(ports: Ports, runtime: Handle, ended: Sender<Message>, meters: Arc<Meters>) -> Self {
        Self {
            ports: Arc::new(ports),
            runtime,
            ended,
            tokens: HashMap::new(),
            leaving: CancellationToken::new(),
            meters,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.tokens.len()
    }

    /// Makes a call. Its end comes back as a message, exactly once.
    pub(crate) fn order(&mut self, order: CallOrder) {
        let token = CancellationToken::new();
        self.tokens.insert(order.id, token.clone());
        self.meters.calls_in_flight(self.tokens.len());
        let (ports, ended, leaving) = (self.ports.clone(), self.ended.clone(), self.leaving.clone());
        let meters = self.meters.clone();
        self.runtime.spawn(leaving.run_until_cancelled_owned(async move {
            let id = order.id;
            let reports = Reports::to_log(id, ended.clone());
            let begun = Instant::now();
            let outcome = CatchPanic(Box::pin(make(&ports, order, token, reports))).await;
            meters.call_ended(&outcome, begun.elapsed());
            let request = Request { action: Action::CallEnded { id, outcome }, reply: None };
            // The engine may be gone; then the call counts as lost, which is true.
            let _ = ended.send(Message::Request(request));
        }));
    }

    /// Tells a call to stop.
    pub(crate) fn cancel(&self, id: CallId) {
        if let Some(token) = self.tokens.get(&id) {
            token.cancel();
        }
    }

    /// Leaves every call to itself: what it does, the next engine finds out. Nothing is told to stop, since it may be
    /// waited for again.
    pub(crate) fn leave_all(&self) {
        self.leaving.cancel();
    }

    /// Nobody will answer what a tool asked.
    pub(crate) fn forget_question(&self, state: &Value) {
        self.ports.tools.forget(state);
    }

    /// A call ended.
    pub(crate) fn forget(&mut self, id: CallId) {
        self.tokens.remove(&id);
        self.meters.calls_in_flight(self.tokens.len());
    }
}

async fn make(
    ports: &Ports,
    order: CallOrder,
    token: CancellationToken,
    reports: Reports,
) -> Result<Payload, Failure> {
    authorize(ports, &order).await.map_err(|reason| Failure::new(FailureKind::Permission, reason))?;
    let (run, path) = (order.run, order.path.clone());
    let trace = RunTrace::new(run, order.principal.trace.as_deref()).attempt(order.n, order.attempt);
    let call = ToolCall {
        tool: order.tool,
        args: order.args,
        principal: order.principal,
        run: order.run,
        path: order.path,
        attempt: order.attempt,
        trace,
        idempotency_key: order.key,
        deadline: order.deadline,
        persona: order.persona,
        cancelled: token.clone(),
        continues: order.continues,
        reports,
        pinned: order.pinned,
    };
    let called = async {
        let tools = &*ports.tools;
        let mut value = if order.probe { ask(tools, call).await? } else { tools.call(call).await? };
        if let (Some(store), Some(Value::Array(files))) = (&ports.artefacts, value.get_mut("file_refs")) {
            for file in files {
                // The call took place: to make it again is not for the store to decide.
                *file = store.put(run, &path, file.take()).await.map_err(|error| {
                    let message = format!("what the call gave could not be kept: {}", error.message);
                    Failure::new(FailureKind::Lost, message)
                })?;
            }
        }
        Ok(value)
    };
    until_stopped(called, &token).await.map(Payload::new)
}

/// Makes a call that must not wait in a queue. If it could not be sent, it is made again until its time is up.
async fn ask(tools: &dyn ToolCaller, call: ToolCall) -> Outcome {
    let mut delays = REFUSED_DELAYS_MS.iter();
    loop {
        let outcome = tools.call(call.clone()).await;
        let not_sent = matches!(&outcome, Err(error) if error.kind == FailureKind::Transport);
        let Some(delay) = delays.next().filter(|_| not_sent) else { return outcome };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(*delay)) => {}
            () = call.cancelled.cancelled() => return outcome,
        }
    }
}

/// Where a call tells how far it is. A clone is the same place; the default is nowhere.
#[derive(Clone, Default)]
pub struct Reports(Option<Arc<dyn Fn(Report) + Send + Sync>>);

impl Reports {
    /// A place that takes every report.
    pub fn new(take: impl Fn(Report) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// Tells something.
    pub fn tell(&self, report: Report) {
        if let Some(take) = &self.0 {
            take(report);
        }
    }

    /// The log of the call's run. Progress that comes too often is left out.
    fn to_log(call: CallId, sender: Sender<Message>) -> Self {
        let pace = Mutex::<Pace>::default();
        Self::new(move |report| {
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            if !matches!(report, Report::Progress { .. }) || pace.is_time() {
                let action = Action::CallReported { id: call, report };
                // The engine may be gone; then nobody wants to know.
                let _ = sender.send(Message::Request(Request { action, reply: None }));
            }
        })
    }
}

/// How often progress was told, and when last.
#[derive(Default)]
struct Pace(u32, Option<Instant>);

impl Pace {
    fn is_time(&mut self) -> bool {
        let early = self.1.is_some_and(|last| last.elapsed() < Duration::from_millis(PROGRESS_MS));
        if self.0 >= PROGRESS_AT_ONCE && early {
            return false;
        }
        *self = Self(self.0 + 1, Some(Instant::now()));
        true
    }
}

impl std::fmt::Debug for Reports {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Reports")
    }
}

/// What the user could call when the run was started and still can.
async fn authorize(ports: &Ports, order: &CallOrder) -> Result<(), String> {
    let (user, tool) = (&order.principal, &order.tool);
    may_call(user, tool)?;
    if user.tools.as_ref().is_some_and(|tools| !tools.iter().any(|pattern| pattern::matches(pattern, tool))) {
        return Err(format!("{} could not call `{tool}` when the run was started", user.id));
    }
    ports.authorizer.may_call(user, tool).await
}

/// What a token is for does not change.
pub(crate) fn may_call(user: &Principal, tool: &str) -> Result<(), String> {
    match &user.scope {
        Some(scope) if !scope.has_tool(tool) => Err(format!("the token of {} is not for `{tool}`", user.id)),
        _ => Ok(()),
    }
}

/// A call that is told to stop has some time to do so; then it is dropped, a little before the engine would
/// give it up.
async fn until_stopped(call: impl Future<Output = Outcome>, token: &CancellationToken) -> Outcome {
    let grace = Duration::from_millis(CANCEL_GRACE_MS.unsigned_abs() / 10 * 9);
    let stopped = async {
        token.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        biased;
        outcome = call => outcome,
        () = stopped => Err(Failure::new(FailureKind::Cancelled, "the call was stopped")),
    }
}

/// A future whose panic becomes a failure.
struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future<Output = Result<Payload, Failure>>> Future for CatchPanic<F> {
    type Output = Result<Payload, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = self.0.as_mut();
        catch_unwind(AssertUnwindSafe(|| inner.poll(context))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Poll::Ready(Err(
                Failure::new(FailureKind::ToolError, format!("the tool panicked: {text}")).code("panic")
            ))
        })
    }
}
