//! What an engine needs from the program around it.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;
use steprail_core::names;
use steprail_core::plan::Hash;
pub use steprail_core::run::Annotations;
use steprail_core::run::{Failure, FailureKind, Millis, Payload};
pub use steprail_core::spec::head::OnToolChange;
use steprail_store::{Principal, Right, RunId};
use tokio_util::sync::CancellationToken;

pub use crate::calls::Reports;
pub use crate::kernel::Continuation;
use crate::trace::TraceParent;

/// A future in a box: what an async method of a port gives back.
pub type BoxFuture<'f, T> = Pin<Box<dyn Future<Output = T> + Send + 'f>>;

/// How a call ended.
pub type Outcome = Result<Value, Failure>;

/// One call of a tool.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The tool's name, `server__tool`.
    pub tool: Box<str>,
    /// The arguments: a map.
    pub args: Payload,
    /// Whom the call is made for.
    pub principal: Arc<Principal>,
    /// The run.
    pub run: RunId,
    /// The step's path in its run.
    pub path: Arc<str>,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The place of the attempt in the run's trace: send it along.
    pub trace: TraceParent,
    /// The same for every attempt of the same step: send it along, so that the tool can tell a repetition.
    pub idempotency_key: Box<str>,
    /// When the step's time is up; the token is cancelled then.
    pub deadline: Option<Millis>,
    /// A role for the tool to take.
    pub persona: Option<Box<str>>,
    /// Cancelled when the call should stop: its time is up, or its run ended.
    pub cancelled: CancellationToken,
    /// What it goes on with, if it is not new.
    pub continues: Option<Continuation>,
    /// Where to tell how far it is.
    pub reports: Reports,
    /// What the tool was like when the run's definition was stored, and what to do if it is not any more.
    pub pinned: Option<(Hash, OnToolChange)>,
}

/// The call that a step is about to make.
#[derive(Debug, Clone, Copy)]
pub struct CallSite<'c> {
    /// The tool's name, `server__tool`.
    pub tool: &'c str,
    /// Whom the call is made for.
    pub principal: &'c Principal,
    /// The run.
    pub run: RunId,
    /// The step's path in its run.
    pub path: &'c str,
}

/// How many calls a server takes at the same time, and whether it takes any now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// What the slots belong to: a server, or one user's connection to it.
    pub server: Box<str>,
    /// Calls at the same time; without a number, [`crate::Limits::calls_per_server`] counts.
    pub slots: Option<u32>,
    /// Why it cannot take calls now. Nothing is committed or sent until [`ToolCaller::on_available`] reports the server.
    pub unavailable: Option<Box<str>>,
    /// Whether this call must be the only one in flight, because its server crashed when it was last made.
    pub exclusive: bool,
}

impl Capacity {
    /// A server that takes calls, with no limit of its own.
    pub fn unlimited(server: &str) -> Self {
        Self { server: server.into(), slots: None, unavailable: None, exclusive: false }
    }
}

/// Calls tools. A call that fails says how: [`FailureKind::Transport`] if it was never sent,
/// [`FailureKind::Lost`] if it was sent and the answer was lost, [`FailureKind::ToolError`] if the tool
/// answered with an error. A tool that asks a human something ends its call with [`Failure::input_required`]; the call is made
/// again with the answer.
pub trait ToolCaller: Send + Sync {
    /// Makes a call. When `call.cancelled` is cancelled it should end soon; a panic is a failure of the step.
    fn call(&self, call: ToolCall) -> BoxFuture<'_, Outcome>;

    /// What is known about a tool.
    fn annotations(&self, tool: &str) -> Annotations {
        let _ = tool;
        Annotations::default()
    }

    /// Whether the tool's server can take a call of a step now. Asked on the thread that decides for all runs, so it must
    /// answer at once.
    fn capacity(&self, call: &CallSite<'_>) -> Capacity {
        Capacity::unlimited(names::server(call.tool))
    }

    /// Registers what to call with a server's name ([`Capacity::server`]) when it may be able to take calls again.
    fn on_available(&self, available: Box<dyn Fn(&str) + Send + Sync>) {
        drop(available);
    }

    /// Nobody will answer what a tool asked: the state of the question that a call ended with.
    fn forget(&self, state: &Value) {
        let _ = state;
    }

    /// The tool that is asked to create one that is missing: it is called with `tool` and `arguments`.
    fn provider(&self) -> Option<Box<str>> {
        None
    }

    /// A hash of everything that its server says about a tool: what a definition is written for.
    fn pin(&self, tool: &str) -> Option<Hash> {
        let _ = tool;
        None
    }
}

/// Says who may do what, now. Asked before every call.
pub trait Authorizer: Send + Sync {
    /// Whether a user may call a tool; the error says why not.
    fn may_call<'a>(&'a self, principal: &'a Principal, tool: &'a str) -> BoxFuture<'a, Result<(), String>>;

    /// Whether a user has a right; the error says why not.
    fn may(&self, principal: &Principal, right: Right) -> Result<(), String> {
        let _ = (principal, right);
        Ok(())
    }

    /// The tools that a user may call, as patterns; none means all. A run never gets more than its user had when it
    /// was started.
    fn tools(&self, principal: &Principal) -> Option<Vec<String>> {
        let _ = principal;
        None
    }
}

/// Something that humans should hear of.
#[derive(Debug, Clone)]
pub enum Notice {
    /// A gate waits for an answer.
    ApprovalRequested {
        /// The run.
        run: RunId,
        /// The step's path.
        path: Arc<str>,
        /// The question.
        prompt: Box<str>,
        /// Whom to tell.
        notify: Vec<Box<str>>,
    },
    /// Nobody has answered yet.
    ApprovalEscalated {
        /// The run.
        run: RunId,
        /// The step's path.
        path: Arc<str>,
        /// Whom to tell.
        notify: Vec<Box<str>>,
    },
    /// The outcome of a call is unknown.
    StepUncertain {
        /// The run.
        run: RunId,
        /// The step's path.
        path: Arc<str>,
    },
    /// A step waits for a server that cannot take its call.
    ServerAwaited {
        /// The run.
        run: RunId,
        /// The step's path.
        path: Arc<str>,
        /// Why the call was not sent.
        reason: Box<str>,
        /// When the step fails.
        until: Option<Millis>,
    },
    /// A run ended.
    RunEnded {
        /// The run.
        run: RunId,
        /// The user who started it.
        created_by: String,
        /// How.
        status: steprail_core::run::RunStatus,
    },
}

/// Tells humans. Called after what it speaks of is durable.
pub trait Notifier: Send + Sync {
    /// Passes a notice on.
    fn notify(&self, notice: Notice) -> BoxFuture<'_, ()>;
}

/// Keeps the files that tools give.
pub trait ArtefactStore: Send + Sync {
    /// Takes an entry of a result's `file_refs` and gives the entry that later steps read.
    fn put(&self, run: RunId, path: &str, file_ref: Value) -> BoxFuture<'_, Result<Value, Failure>>;
}

type ToolFn = dyn Fn(ToolCall) -> BoxFuture<'static, Outcome> + Send + Sync;

/// Tools in the same process: a name, a function, and what is known about it.
#[derive(Default, Clone)]
pub struct Tools {
    tools: HashMap<Box<str>, (Arc<ToolFn>, Annotations)>,
}

impl Tools {
    /// No tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more tool.
    #[must_use]
    pub fn tool<F>(self, name: &str, run: impl Fn(ToolCall) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        self.tool_with(name, Annotations::default(), run)
    }

    /// With one more tool of which something is known.
    #[must_use]
    pub fn tool_with<F>(
        mut self,
        name: &str,
        annotations: Annotations,
        run: impl Fn(ToolCall) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let run: Arc<ToolFn> = Arc::new(move |call| Box::pin(run(call)));
        self.tools.insert(name.into(), (run, annotations));
        self
    }
}

impl ToolCaller for Tools {
    fn call(&self, call: ToolCall) -> BoxFuture<'_, Outcome> {
        if let Some((run, _)) = self.tools.get(&*call.tool) {
            run(call)
        } else {
            let message = format!("there is no tool `{}`", call.tool);
            Box::pin(async { Err(Failure::new(FailureKind::NotFound, message)) })
        }
    }

    fn annotations(&self, tool: &str) -> Annotations {
        self.tools.get(tool).map(|(_, annotations)| *annotations).unwrap_or_default()
    }
}
