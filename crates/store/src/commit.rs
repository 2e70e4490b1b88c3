//! A commit as a value: everything that a batch of decisions changes, with its preconditions.

use std::sync::Arc;

use steprail_core::plan::Hash;
use steprail_core::run::{Millis, Parent, Payload, Record, RunStatus};

use crate::{
    Account, AccountKind, Actor, AdminEvent, Cursor, Definition, OutboxChange, Pins, PolicyChange, Principal,
    Purged, Rerun, RunId, Schedule, Session, StoreError, Timer, WorkflowPins,
};

/// Changes that are applied in one transaction, or not at all.
#[derive(Debug, Default)]
pub struct Commit {
    /// The time of the commit.
    pub now: Millis,
    /// Timers that fired. They are removed unless they were set to another time.
    pub fired: Vec<Timer>,
    /// Decisions of runs, in their order. Each becomes one row of the log.
    pub runs: Vec<RunCommit>,
    /// Changes of definitions.
    pub definitions: Vec<DefinitionChange>,
    /// Changes of schedules.
    pub schedules: Vec<ScheduleChange>,
    /// Changes of accounts and sessions.
    pub registry: Vec<RegistryChange>,
    /// Changes of the state of the policy.
    pub policy: Vec<PolicyChange>,
    /// Notifications that the decisions cause, and changes of their deliveries.
    pub outbox: Vec<OutboxChange>,
    /// Retention: what is deleted.
    pub purge: Option<Purge>,
    /// Administrative actions that change no rows. The store adds those that follow from the changes.
    pub admin: Vec<AdminEvent>,
}

impl Commit {
    /// Whether the commit changes nothing.
    pub fn is_empty(&self) -> bool {
        self.fired.is_empty()
            && self.runs.is_empty()
            && self.definitions.is_empty()
            && self.schedules.is_empty()
            && self.registry.is_empty()
            && self.policy.is_empty()
            && self.outbox.is_empty()
            && self.purge.is_none()
            && self.admin.is_empty()
    }
}

/// One decision of a run.
#[derive(Debug)]
pub struct RunCommit {
    /// The run.
    pub run: RunId,
    /// Precondition: the number of events in the log of the run.
    pub expected_seq: u64,
    /// The run itself, if this is its first decision.
    pub new: Option<Box<NewRun>>,
    /// The events, with the values that they refer to.
    pub records: Vec<Record>,
    /// The state of the run before the events.
    pub before: RunState,
    /// The state of the run after the events.
    pub after: RunState,
    /// Idempotency keys that the run claims. Precondition: each is free.
    pub claims: Vec<NewClaim>,
    /// Bytes that the run counts for in the quota of its user. Written with a change of its state.
    pub stored_bytes: u64,
}

/// The state of a run that its row contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunState {
    /// The status.
    pub status: RunStatus,
    /// Whether the engine has work to do on it: recovery loads such runs.
    pub active: bool,
}

/// A run to create.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Id of its definition in the store.
    pub definition: i64,
    /// The principal that it acts as.
    pub principal: Arc<Principal>,
    /// Its inputs.
    pub inputs: Payload,
    /// The run and step that wait for it.
    pub parent: Option<(RunId, Parent)>,
    /// The run whose results are reused.
    pub rerun: Option<Rerun>,
    /// Whether a restart of the engine interrupts it.
    pub interruptible: bool,
    /// Idempotency key of the start. Precondition: no other run of the user has it.
    pub request_key: Option<String>,
}

/// An idempotency key to claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewClaim {
    /// The key.
    pub key: ClaimKey,
    /// Hash of the arguments of the call.
    pub args: Hash,
    /// The step execution that claims it.
    pub n: u32,
    /// How long the result is kept under the key, in seconds; `None` and 0 keep it forever.
    pub ttl_secs: Option<u64>,
}

/// Identifies an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimKey {
    /// Where the key is unique: a run or a user.
    pub scope: String,
    /// Full name of the tool.
    pub tool: String,
    /// The key.
    pub key: String,
}

impl ClaimKey {
    /// The name that steps wait for until the key is released.
    pub fn wait_name(&self) -> String {
        format!("key:{}:{}:{}", self.scope, self.tool, self.key)
    }
}

/// The state of an idempotency key.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimState {
    /// No step holds it.
    Free,
    /// A step holds it.
    Held {
        /// Hash of the arguments of its call.
        args: Hash,
    },
    /// A call with it has completed.
    Done {
        /// Hash of its arguments.
        args: Hash,
        /// Its output.
        output: Payload,
    },
}

/// A change of definitions.
#[derive(Debug)]
pub enum DefinitionChange {
    /// Stores a version. If the newest version is the same, nothing is added.
    Put(NewDefinition),
    /// Hides all versions of a definition from new runs. Precondition: it exists.
    Delete {
        /// The name.
        name: String,
        /// Precondition: the newest version.
        expected: Expected,
        /// Precondition: the user who owns the definition; `None` for any.
        owner: Option<String>,
        /// The user who deletes it; `None` for the engine.
        by: Option<Actor>,
    },
    /// Adds versions of sub-workflows to a version, if it has none with these names.
    PinWorkflows {
        /// Id of the version in the store.
        id: i64,
        /// The versions.
        workflows: WorkflowPins,
    },
    /// Makes a user the owner and author of all versions that can be started. Precondition: it exists.
    Adopt {
        /// The name.
        name: String,
        /// Precondition: the newest version.
        expected: Expected,
        /// The new owner.
        by: Actor,
    },
    /// Stores a proposal. It replaces the proposal of the same user for the name. Preconditions as for a version, except that
    /// an agent may propose a change to the definition of a person.
    Propose(NewDefinition),
    /// Removes a proposal. Precondition: it has this hash.
    CloseProposal {
        /// The name.
        name: String,
        /// Hash of the proposal.
        hash: Hash,
        /// Whether it was accepted.
        accepted: bool,
        /// The person who decided.
        by: Actor,
    },
}

/// A definition to store.
#[derive(Debug, Clone)]
pub struct NewDefinition {
    /// The name.
    pub name: String,
    /// Hash of the definition.
    pub hash: Hash,
    /// Canonical JSON of the definition.
    pub spec_json: Arc<str>,
    /// The user who stores it.
    pub by: Actor,
    /// Whether only the run that contains it uses it. Then it is found by its id alone, and no preconditions apply.
    pub hidden: bool,
    /// Whether it is published as a tool.
    pub published: bool,
    /// Hashes of the descriptions of its tools, as far as they are known.
    pub pins: Pins,
    /// Versions of its sub-workflows, as far as they exist.
    pub workflows: WorkflowPins,
    /// Precondition: the newest version.
    pub expected: Expected,
    /// Precondition: the user who owns the name, if it is taken; `None` for any.
    pub owner: Option<String>,
}

/// The newest version of a definition that a change is based on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Expected {
    /// Any version, or none.
    #[default]
    Any,
    /// No version: the name is free.
    Absent,
    /// This version.
    Version(u32),
}

/// A change of schedules.
#[derive(Debug)]
pub enum ScheduleChange {
    /// Stores a schedule for a user, or for the engine. It replaces the one of the same name.
    Put(Box<Schedule>, Option<Actor>),
    /// Deletes a schedule. Precondition: it exists.
    Delete(String, Option<Actor>),
    /// Stops a schedule whose row is not what the log says, with a message. The row stays refused.
    Refuse(String, String),
}

/// A change of accounts or of sessions.
#[derive(Debug)]
pub enum RegistryChange {
    /// Stores an account for a user, or for the engine. It replaces the one of the same kind and id.
    PutAccount(Account, Option<Actor>),
    /// Deletes an account.
    DropAccount(AccountKind, String, Option<Actor>),
    /// Stores the session of a client. A session of another user with the same id stays as it is. Beyond a limit, the
    /// oldest sessions are deleted.
    PutSession(Session),
    /// Deletes a session.
    DropSession(String),
}

/// Which data retention deletes: ended runs, unused definitions and expired results under idempotency keys.
#[derive(Debug, Clone, Copy)]
pub struct Purge {
    /// Runs that ended before this time.
    pub before: Millis,
    /// The maximum number of runs, and of other rows.
    pub limit: usize,
}

/// The outcome of a commit.
#[derive(Debug, Default)]
pub struct Committed {
    /// Cursor of the last event, if the commit has events.
    pub last_event: Option<Cursor>,
    /// The definitions that were put, in their order.
    pub definitions: Vec<Definition>,
    /// What was deleted.
    pub purged: Purged,
}

/// Why a commit was not applied.
#[derive(Debug, Clone)]
pub enum Refused {
    /// The log of the run has other events than expected. The run must be loaded and decided again.
    Stale(RunId),
    /// Another step holds the idempotency key with this wait name.
    Held(String),
    /// A name, a version or a request key is not as expected.
    Conflict(Conflict),
    /// The rows of the run do not match its log.
    Damaged(RunId, StoreError),
    /// The store failed.
    Unavailable(StoreError),
}

/// A precondition of a definition, a schedule or a start that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conflict {
    /// There is no such definition.
    NoDefinition(String),
    /// There is no such schedule.
    NoSchedule(String),
    /// A person stored the definition, and an agent cannot change it.
    OfPerson {
        /// The name.
        name: String,
    },
    /// Another user owns the definition.
    Owned {
        /// The name.
        name: String,
        /// The owner.
        by: String,
    },
    /// The newest version is not the expected one.
    Version {
        /// The name.
        name: String,
        /// The newest version, if there is one.
        newest: Option<u32>,
    },
    /// There is no proposal for the name, or it is another one.
    Proposal {
        /// The name.
        name: String,
        /// Whether there is another one.
        changed: bool,
    },
    /// Too many proposals wait for a person.
    ProposalLimit,
    /// Another run of the user was started with the request key.
    RequestKey(String),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error)
    }
}

impl From<rusqlite::Error> for Refused {
    fn from(error: rusqlite::Error) -> Self {
        Self::Unavailable(error.into())
    }
}
