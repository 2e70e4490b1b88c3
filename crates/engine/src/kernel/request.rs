//! Requests to the kernel. Each variant with a reply names the type of its reply.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use steprail_core::plan::{Hash, Plan};
use steprail_core::run::{Failure, Intervention, Millis, Payload, Report, Resolution, RunStatus};
use steprail_store::{
    Account, AccountKind, Actor, AdminEvent, Expected, OutboxChange, PolicyChange, Principal, Purged,
    RestoredBackup, RunId, Schedule, Session,
};
use tokio::sync::oneshot;

use super::CallId;
use super::Compiled;
use crate::decisions::DecisionRequest;
use crate::error::Error;
use crate::ports::Outage;

/// A request to the kernel.
#[derive(Debug)]
pub enum Request {
    /// Stores a definition.
    Define(Box<Define>, Reply<DefinitionVersion>),
    /// Starts a run. A repeated start with the same request key replies with the id of the first run.
    Start(Box<StartRun>, Reply<RunId>),
    /// Waits until a run has ended. Other requests are handled meanwhile.
    Wait(RunId, Reply<RunStatus>),
    /// Sends an event to runs. The reply is the number of runs that received it.
    Signal(Signal, Reply<usize>),
    /// Stores a schedule. The reply is the next time at which it is due. A schedule with `due: None` is stored as paused.
    Schedule(Box<Schedule>, Reply<Option<Millis>>),
    /// Deletes runs that ended before a time, up to a batch.
    Purge(Millis, Reply<Purged>),
    /// Resumes unfinished runs after a restart, up to a batch. The reply is the run to continue after.
    Recover(Recover, Reply<Option<RunId>>),
    /// Changes or checks something. The reply has no value.
    Command(Box<Command>, Reply<()>),
    /// Reports something that happened. It has no reply and is retried until it is stored.
    Notification(Notification),
}

impl Request {
    /// Whether it cancels a run, which must work on a full disk.
    pub(crate) fn is_cancel(&self) -> bool {
        matches!(self, Self::Command(command, _) if matches!(**command, Command::Cancel { .. }))
    }

    /// Whether the request must not be lost if the store fails.
    pub fn is_notification(&self) -> bool {
        matches!(self, Self::Notification(_))
    }

    /// Whether the request is a command with which a user controls runs and decides.
    pub(crate) fn is_control_by(&self, user: &str) -> bool {
        let Self::Command(command, _) = self else { return false };
        match &**command {
            Command::Cancel { by, .. } => by == user,
            Command::Pause { by, .. } | Command::Resume { by, .. } => by.id == *user,
            Command::Decide { by, .. }
            | Command::MayDecide { by, .. }
            | Command::Resolve { by, .. }
            | Command::Intervene { by, .. } => by.id == user,
            Command::DeleteDefinition { .. }
            | Command::AdoptDefinition { .. }
            | Command::RejectProposal { .. }
            | Command::Unschedule { .. }
            | Command::EndSchedule { .. }
            | Command::PutSession(_)
            | Command::DropSession { .. }
            | Command::PutAccount(..)
            | Command::Record(_)
            | Command::DropAccount { .. }
            | Command::Policy(_)
            | Command::Outbox(_)
            | Command::Sync
            | Command::Check(_) => false,
        }
    }

    /// Replies with an error. A notification has no reply.
    pub fn reject(&self, error: Error) {
        match self {
            Self::Define(_, reply) => reply.send(Err(error)),
            Self::Start(_, reply) => reply.send(Err(error)),
            Self::Wait(_, reply) => reply.send(Err(error)),
            Self::Signal(_, reply) => reply.send(Err(error)),
            Self::Schedule(_, reply) => reply.send(Err(error)),
            Self::Purge(_, reply) => reply.send(Err(error)),
            Self::Recover(_, reply) => reply.send(Err(error)),
            Self::Command(_, reply) => reply.send(Err(error)),
            Self::Notification(_) => {}
        }
    }
}

/// The sender of one reply.
pub struct Reply<T>(Arc<Mutex<Option<Sender<T>>>>);

type Sender<T> = oneshot::Sender<Result<T, Error>>;

impl<T> Reply<T> {
    /// A sender and its receiver.
    pub fn channel() -> (Self, oneshot::Receiver<Result<T, Error>>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    /// Whether the receiver still waits.
    pub fn is_open(&self) -> bool {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sender.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Sends the reply. Later calls, and calls after the receiver was dropped, have no effect.
    pub fn send(&self, result: Result<T, Error>) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            let _ = sender.send(result);
        }
    }
}

impl<T: Clone + Send + 'static> Reply<T> {
    /// Pairs the sender with a result that is sent after the commit.
    pub(super) fn with(&self, result: Result<T, Error>) -> Response {
        let reply = self.clone();
        Response(Box::new(move || reply.send(result.clone())))
    }
}

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Reply")
    }
}

/// A result and the reply that it is sent to.
pub struct Response(Box<dyn Fn() + Send>);

impl Response {
    /// An error as the reply to a request.
    pub(super) fn rejection(request: Request, error: Error) -> Self {
        Self(Box::new(move || request.reject(error.clone())))
    }

    /// Sends the reply.
    pub fn send(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Response")
    }
}

/// A definition to store.
#[derive(Debug, Clone)]
pub struct Define {
    /// Canonical JSON of the definition.
    pub spec: Arc<str>,
    /// The compiled definition.
    pub plan: Arc<Plan>,
    /// The user who stores it.
    pub by: Actor,
    /// The newest version that the change is based on.
    pub expected: Expected,
    /// The user who must own the name, if it is taken; `None` for any.
    pub owner: Option<String>,
    /// Whether it is a proposal, which a person has to accept.
    pub propose: bool,
    /// The proposal that it was, which is closed.
    pub accepts: Option<AcceptedProposal>,
}

/// A proposal that a person accepts, as it was shown.
#[derive(Debug, Clone, Copy)]
pub struct AcceptedProposal {
    /// Its hash.
    pub hash: Hash,
    /// The tools and the versions of sub-workflows that it would be stored with.
    pub pinned: Hash,
}

/// An event to send to runs.
#[derive(Debug, Clone)]
pub struct Signal {
    /// Name of the event.
    pub event: String,
    /// Payload of the event.
    pub payload: Value,
    /// The run to send it to. `None` sends it to all runs that wait for it now.
    pub run: Option<RunId>,
}

/// A batch of runs to resume after a restart.
#[derive(Debug, Clone, Copy)]
pub struct Recover {
    /// The batch starts after this run.
    pub after: Option<RunId>,
    /// The runs to interrupt. `None` resumes runs.
    pub interrupt: Option<Interrupt>,
}

/// A change or a check whose reply has no value.
#[derive(Debug, Clone)]
pub enum Command {
    /// Hides a definition from new runs.
    DeleteDefinition {
        /// Name of the definition.
        name: String,
        /// The newest version that the change is based on.
        expected: Expected,
        /// The user who must own it; `None` for any.
        owner: Option<String>,
        /// The user who deletes it; `None` for the embedding program.
        by: Option<Actor>,
    },
    /// Makes a user the owner and author of a definition.
    AdoptDefinition {
        /// Name of the definition.
        name: String,
        /// The newest version that the change is based on.
        expected: Expected,
        /// The new owner.
        by: Actor,
    },
    /// Removes a proposal.
    RejectProposal {
        /// Name of the definition.
        name: String,
        /// Hash of the proposal.
        hash: Hash,
        /// The person who rejects it.
        by: Actor,
    },
    /// Deletes a schedule.
    Unschedule {
        /// Name of the schedule.
        name: String,
        /// The user who deletes it; `None` for the embedding program.
        by: Option<Actor>,
    },
    /// Ends a schedule that has lost the rights to fire. It stays listed with the reason.
    EndSchedule {
        /// The schedule.
        schedule: Box<Schedule>,
        /// Why it ends.
        reason: String,
    },
    /// Stores the session of an MCP client.
    PutSession(Box<Session>),
    /// Deletes a session.
    DropSession {
        /// Id of the session.
        id: String,
    },
    /// Stores an account.
    PutAccount(Box<Account>, Option<Actor>),
    /// Deletes an account.
    DropAccount {
        /// Kind of the account.
        kind: AccountKind,
        /// Id of the account.
        id: String,
        /// The user who deletes it; `None` for the embedding program.
        by: Option<Actor>,
    },
    /// Changes notifications and their deliveries.
    Outbox(Vec<OutboxChange>),
    /// Changes the state of the policy.
    Policy(PolicyChange),
    /// Records administrative actions.
    Record(Vec<AdminEvent>),
    /// Replies when all earlier requests are committed.
    Sync,
    /// Replies with an error if the stored state of a run is damaged.
    Check(RunId),
    /// Decides at a gate.
    Decide {
        /// Id of the run.
        run: RunId,
        /// Path of the step.
        path: String,
        /// The user who decides.
        by: Principal,
        /// The decision.
        decision: Box<DecisionRequest>,
    },
    /// Replies with an error if a user may not decide at an open gate.
    MayDecide {
        /// Id of the run.
        run: RunId,
        /// Path of the step.
        path: String,
        /// The user who would decide.
        by: Principal,
    },
    /// Cancels a run.
    Cancel {
        /// Id of the run.
        run: RunId,
        /// Id of the user who cancels it.
        by: String,
        /// The reason, for the log.
        reason: String,
    },
    /// Pauses a run.
    Pause {
        /// Id of the run.
        run: RunId,
        /// Who pauses it.
        by: Principal,
    },
    /// Resumes a paused or interrupted run.
    Resume {
        /// Id of the run.
        run: RunId,
        /// Who resumes it.
        by: Principal,
        /// Paths of calls with unknown outcomes that are repeated without a decision.
        force: Vec<String>,
        /// Rejects the request if the definition has another hash.
        expected_hash: Option<Hash>,
        /// Rejects the request if a call has an unknown outcome and is not forced.
        strict: bool,
    },
    /// Resolves a call with an unknown outcome.
    Resolve {
        /// Id of the run.
        run: RunId,
        /// Path of the step.
        path: String,
        /// How the step continues.
        resolution: Resolution,
        /// Digest of the attempt to resolve. `None` resolves the current attempt.
        digest: Option<Hash>,
        /// The user who resolves it.
        by: Principal,
    },
    /// Changes a run in progress.
    Intervene {
        /// Id of the run.
        run: RunId,
        /// The change.
        intervention: Intervention,
        /// The user who intervenes.
        by: Principal,
    },
}

/// Something that happened outside the kernel.
#[derive(Debug, Clone)]
pub enum Notification {
    /// A call ended.
    CallEnded {
        /// Id of the call.
        id: CallId,
        /// Output or failure of the call.
        outcome: Result<Payload, Failure>,
    },
    /// A call in flight sent a report.
    CallReported {
        /// Id of the call.
        id: CallId,
        /// The report.
        report: Report,
    },
    /// A server may accept calls again ([`crate::ToolCaller::on_available`]).
    ServerAvailable {
        /// Name of the server ([`crate::Capacity::server`]).
        server: Box<str>,
    },
    /// A server cannot be reached ([`crate::ToolCaller::on_outage`]).
    ServerUnavailable(Box<Outage>),
    /// Timers are due.
    TimersDue,
}

/// The runs that are interrupted by a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// All runs.
    All,
    /// Runs whose definitions have `on_restart: interrupt`.
    Declared,
    /// All runs, because the database was restored from a backup.
    Restored(RestoredBackup),
}

/// A run to start.
#[derive(Debug, Clone)]
pub struct StartRun {
    /// The definition to run.
    pub workflow: RunSource,
    /// Inputs of the run.
    pub inputs: Value,
    /// The user that the run acts as.
    pub principal: Principal,
    /// Idempotency key of the start.
    pub request_key: Option<String>,
    /// Id of the new run.
    pub id: RunId,
}

/// Where a new run takes its definition from.
#[derive(Debug, Clone)]
pub enum RunSource {
    /// A stored definition.
    Named {
        /// Name of the definition.
        name: String,
        /// Version of the definition; the newest if `None`.
        version: Option<u32>,
    },
    /// A stored definition that the caller has compiled, and inputs that it has checked. Rejected if the definition has
    /// changed since.
    Checked {
        /// Name of the definition.
        name: String,
        /// Version of the definition; the newest if `None`.
        version: Option<u32>,
        /// The compiled definition.
        compiled: Arc<Compiled>,
        /// The inputs of the run, with defaults filled in.
        inputs: Payload,
    },
    /// A definition that is part of the request.
    Inline {
        /// Canonical JSON of the definition.
        spec: Arc<str>,
        /// The compiled definition.
        plan: Arc<Plan>,
        /// The inputs of the run, with defaults filled in.
        inputs: Payload,
    },
    /// The definition and inputs of another run.
    Rerun {
        /// Id of the other run.
        of: RunId,
        /// Reuses the results of the other run except at these paths. `None` reuses nothing.
        reuse_except: Option<Vec<String>>,
    },
}

/// A version of a stored definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionVersion {
    /// Id of the version in the store.
    pub id: i64,
    /// Name of the definition.
    pub name: String,
    /// Version number, from 1; 0 for a proposal.
    pub version: u32,
    /// Hash of the definition.
    pub hash: Hash,
    /// Whether it is a proposal: a person has to accept it before it can be started.
    pub proposed: bool,
}
