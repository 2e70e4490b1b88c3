//! Ports: the interfaces that the embedding program implements.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;
use steprail_core::expr::SecretText;
use steprail_core::names;
use steprail_core::plan::Hash;
pub use steprail_core::run::Annotations;
use steprail_core::run::{Failure, FailureKind, Millis, Payload, RunStatus};
pub use steprail_core::spec::head::OnToolChange;
use steprail_store::{Principal, Right, RunId};
use tokio_util::sync::CancellationToken;

pub use crate::kernel::Continuation;
use crate::reporter::CallReporter;
use crate::trace::TraceParent;

/// The boxed future that an async method of a port returns.
pub type BoxFuture<'f, T> = Pin<Box<dyn Future<Output = T> + Send + 'f>>;

/// Output or failure of a call.
pub type Outcome = Result<Value, Failure>;

/// One tool call.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// Name of the tool, `server__tool`.
    pub tool: Box<str>,
    /// The arguments, a JSON object. They contain references to secrets, not their values.
    pub args: Payload,
    /// The texts of the arguments in which the definition refers to secrets. Only these may be resolved: the same characters
    /// elsewhere are data.
    pub secrets: Arc<[SecretText]>,
    /// The user that the run acts as.
    pub principal: Arc<Principal>,
    /// Id of the run.
    pub run: RunId,
    /// Path of the step in its run.
    pub path: Arc<str>,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Trace context of the attempt. Send it with the request.
    pub trace: TraceParent,
    /// Idempotency key, the same for all attempts of a step execution. Send it with the request, so that the tool can
    /// recognise a repeated call.
    pub idempotency_key: Box<str>,
    /// The time at which the step times out and `cancelled` is cancelled.
    pub deadline: Option<Millis>,
    /// The persona of the step, for tools that support it.
    pub persona: Option<Box<str>>,
    /// Cancelled when the call should stop: the step timed out, or its run ended.
    pub cancelled: CancellationToken,
    /// The earlier call that this one continues.
    pub continues: Option<Continuation>,
    /// Receives progress and other reports of the call.
    pub reporter: CallReporter,
    /// Hash of the tool when the definition was stored ([`ToolCaller::pin`]), and the policy if the tool has changed.
    pub pinned: Option<(Hash, OnToolChange)>,
}

/// A call before its admission.
#[derive(Debug, Clone, Copy)]
pub struct CallSite<'c> {
    /// Name of the tool, `server__tool`.
    pub tool: &'c str,
    /// The user that the run acts as.
    pub principal: &'c Principal,
    /// Id of the run.
    pub run: RunId,
    /// Path of the step in its run.
    pub path: &'c str,
}

/// Whether a server accepts calls now, and how many at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Owner of the slots: a server, or the connection of one user to it.
    pub server: Box<str>,
    /// The number of concurrency slots. `None` means [`crate::Limits::calls_per_server`].
    pub slots: Option<u32>,
    /// Why the server accepts no calls now. The step waits until [`ToolCaller::on_available`] reports the server.
    pub unavailable: Option<Box<str>>,
    /// Whether this call must be the only one in flight, because the server crashed during the last attempt.
    pub exclusive: bool,
}

impl Capacity {
    /// A server that accepts calls and has no limit of its own.
    pub fn unlimited(server: &str) -> Self {
        Self { server: server.into(), slots: None, unavailable: None, exclusive: false }
    }
}

/// A server that cannot be reached although calls wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// Name of the server.
    pub server: Box<str>,
    /// Why it cannot be reached.
    pub reason: Box<str>,
    /// Whether a login would end it.
    pub needs_login: bool,
    /// The user whose connection or login it is; `None` for a shared one.
    pub user: Option<String>,
}

/// Calls tools.
///
/// The kind of a failure decides about retries: [`FailureKind::Transport`] if the call was never sent,
/// [`FailureKind::Lost`] if it was sent and its outcome is unknown, [`FailureKind::ToolError`] if the tool returned an
/// error. A tool that needs input of a human fails with [`Failure::input_required`]; the call is repeated with the answer.
pub trait ToolCaller: Send + Sync {
    /// Makes a call. It should end soon after `call.cancelled` is cancelled. A panic fails the step.
    fn call(&self, call: ToolCall) -> BoxFuture<'_, Outcome>;

    /// Returns the annotations of a tool. By default a tool counts as destructive and not idempotent.
    fn annotations(&self, tool: &str) -> Annotations {
        let _ = tool;
        Annotations::default()
    }

    /// Returns whether the server of a tool accepts a call now. Called on the engine thread, so it must not block.
    fn capacity(&self, call: &CallSite<'_>) -> Capacity {
        Capacity::unlimited(names::server(call.tool))
    }

    /// Registers a function to call with the name of a server ([`Capacity::server`]) when it may accept calls again.
    fn on_available(&self, available: Box<dyn Fn(&str) + Send + Sync>) {
        drop(available);
    }

    /// Registers a function to call when a server that calls wait for cannot be reached, once per outage.
    fn on_outage(&self, outage: Box<dyn Fn(Outage) + Send + Sync>) {
        drop(outage);
    }

    /// Releases an input request that can no longer be answered, given its state.
    fn forget(&self, state: &Value) {
        let _ = state;
    }

    /// Returns the tool that creates missing tools. It is called with `tool` and `arguments`.
    fn provider(&self) -> Option<Box<str>> {
        None
    }

    /// Returns an error if arguments that a human edited do not match the input schema of a tool. By default, only the call
    /// itself checks them.
    fn check_args(&self, tool: &str, args: &Value) -> Result<(), String> {
        let _ = (tool, args);
        Ok(())
    }

    /// Returns a hash of the description and schemas of a tool, which is stored with each definition that calls it.
    fn pin(&self, tool: &str) -> Option<Hash> {
        let _ = tool;
        None
    }
}

/// Checks the current rights of users. The engine calls it before every tool call.
pub trait Authorizer: Send + Sync {
    /// Returns the reason as an error if a user may not call a tool.
    fn may_call<'a>(&'a self, principal: &'a Principal, tool: &'a str) -> BoxFuture<'a, Result<(), String>>;

    /// Returns the reason as an error if a user lacks a right.
    fn may(&self, principal: &Principal, right: Right) -> Result<(), String> {
        let _ = (principal, right);
        Ok(())
    }

    /// Returns when an API token expires, or `None` if it was revoked. Asked about the token of a principal.
    fn token_expiry(&self, token: &str) -> Option<Millis> {
        let _ = token;
        Some(Millis::MAX)
    }

    /// Returns the groups that a user is in now. Rules of the policy can name them.
    fn groups(&self, user: &str) -> Vec<String> {
        let _ = user;
        Vec::new()
    }

    /// Returns patterns of the tools that a user may call; `None` means all. They are stored with each run that the user
    /// starts, and bound its calls.
    fn tools(&self, principal: &Principal) -> Option<Vec<String>> {
        let _ = principal;
        None
    }

    /// Whether both a user and a group have this name. Definitions have to state which of them they mean.
    fn is_ambiguous(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Returns patterns of the tools that runs of a user's definitions may call now; `None` means all. An author who is not a
    /// known user restricts nothing: the definition is older than the users, or comes from another machine.
    fn author_tools(&self, author: &str) -> Option<Vec<String>> {
        self.tools(&Principal::user(author))
    }
}

/// Knows the users, groups and addresses that definitions can name.
pub trait People: Send + Sync {
    /// Finds an approver or recipient as a definition writes it.
    fn find(&self, name: &str, is_approver: bool) -> Result<(), UnknownPrincipal>;
}

/// Why an approver or recipient is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPrincipal {
    /// The problem.
    pub message: String,
    /// How to fix it.
    pub hint: Option<String>,
    /// Whether a definition with it is not stored. Otherwise it is a warning.
    pub is_error: bool,
}

/// An event that a program which embeds the engine can follow without reading the log.
#[derive(Debug, Clone)]
pub enum Notice {
    /// A gate waits for a decision.
    ApprovalRequested {
        /// Id of the run.
        run: RunId,
        /// Path of the step.
        path: Arc<str>,
        /// Text that asks for the decision.
        prompt: Box<str>,
        /// Recipients, as the definition names them.
        notify: Vec<Box<str>>,
    },
    /// A gate has waited for longer than its escalation time.
    ApprovalEscalated {
        /// Id of the run.
        run: RunId,
        /// Path of the step.
        path: Arc<str>,
        /// Recipients, as the definition names them.
        notify: Vec<Box<str>>,
    },
    /// A gate still waits for a decision.
    ApprovalReminded {
        /// Id of the run.
        run: RunId,
        /// Path of the step.
        path: Arc<str>,
        /// Recipients, as the definition names them: those of the request and of the levels that were reached.
        notify: Vec<Box<str>>,
    },
    /// The outcome of a call is unknown.
    StepUncertain {
        /// Id of the run.
        run: RunId,
        /// Path of the step.
        path: Arc<str>,
    },
    /// A step waits for a server that accepts no calls now.
    ServerAwaited {
        /// Id of the run.
        run: RunId,
        /// Path of the step.
        path: Arc<str>,
        /// Why the call was not sent.
        reason: Box<str>,
        /// The time at which the step fails.
        until: Option<Millis>,
    },
    /// A run ended.
    RunEnded {
        /// Id of the run.
        run: RunId,
        /// Id of the user who started the run.
        created_by: String,
        /// Final status of the run.
        status: RunStatus,
    },
}

/// Receives notices in the process, after the commit of the events that they are about. A notice is lost in a crash: messages
/// to people go through [`crate::Courier`], which has an outbox.
pub trait Notifier: Send + Sync {
    /// Delivers a notice.
    fn notify(&self, notice: Notice) -> BoxFuture<'_, ()>;
}

/// Stores files in the outputs of tools.
pub trait ArtefactStore: Send + Sync {
    /// Stores a file of an output, given its entry in `file_refs`. Returns the entry that later steps read.
    fn put(&self, run: RunId, path: &str, file_ref: Value) -> BoxFuture<'_, Result<Value, Failure>>;
}

type ToolFn = dyn Fn(ToolCall) -> BoxFuture<'static, Outcome> + Send + Sync;

/// Tools in the same process: functions by name.
#[derive(Default, Clone)]
pub struct Tools {
    tools: HashMap<Box<str>, (Arc<ToolFn>, Annotations)>,
}

impl Tools {
    /// A set without tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool without annotations.
    #[must_use]
    pub fn tool<F>(self, name: &str, run: impl Fn(ToolCall) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        self.tool_with(name, Annotations::default(), run)
    }

    /// Adds a tool with annotations.
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
