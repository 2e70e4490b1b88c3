//! Durable workflows of tool calls, as a library.
//!
//! ```text
//! Engine (a handle) ──Request──▶ one thread: Kernel ──decide, append──▶ Store ──commit──▶ effects
//!        ▲                              ▲                                                  │
//!        └────────── replies ───────────┼────────── end of a call ◀────── ToolCaller ◀─────┘
//! ```
//!
//! One thread decides and commits. Requests that arrive during a commit share the next one (group commit). Calls,
//! replies and notices leave the engine only after the commit that they depend on.

// Input must not be able to cause a panic.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod approval_codes;
mod builder;
mod calls;
mod clock;
mod cron;
mod decisions;
mod definitions;
mod direct_call;
mod driver;
mod engine;
mod error;
mod feed;
mod form;
mod intervention;
pub mod kernel;
mod limits;
mod metrics;
mod named_start;
mod outbox;
mod policy;
mod ports;
mod presence;
mod proposals;
mod queries;
mod quotas;
mod read_pool;
mod reason;
mod registry;
mod reporter;
mod restore_notice;
mod run_signals;
mod runs;
mod start;
mod supervision;
mod trace;
mod upkeep;
mod user;
mod waiting;

pub use access::{Access, Grants};
pub use approval_codes::{CodeRequest, IssuedCode, RedeemRequest};
pub use builder::Builder;
pub use clock::{Clock, ManualClock, SystemClock};
pub use decisions::{DecisionRequest, Remember};
pub use definitions::DefineOptions;
pub use engine::{Engine, WeakEngine};
pub use error::Error;
pub use feed::Subscription;
pub use intervention::{InterventionAction, InterventionRequest};
pub use limits::{Limits, STATUS_ITEMS};
pub use outbox::Courier;
pub use policy::{ExplainCall, PolicyExplanation, PolicyHandle, compile_policy};
pub use ports::{
    Annotations, ArtefactStore, Authorizer, BoxFuture, CallSite, Capacity, Continuation, Notice, Notifier,
    OnToolChange, Outage, Outcome, People, ToolCall, ToolCaller, Tools, UnknownPrincipal,
};
pub use proposals::ProposalView;
pub use queries::RunView;
pub use quotas::{Quota, QuotaExceeded, Quotas, SubscriptionSlot};
pub use reason::{NextStep, ReasonKind, RunReason};
pub use registry::Registry;
pub use reporter::CallReporter;
pub use restore_notice::restore_notice;
pub use runs::{Resume, RunHandle};
pub use start::{Start, Workflow};
pub use trace::{RunTrace, TraceParent};
pub use user::User;
pub use waiting::{NextAction, WaitCause, WaitingFor, next_action};

pub use steprail_core::presence::Presence;
pub use steprail_core::run::{
    Edit, Event, Failure, FailureKind, InputRequest, InputResponse, Intervention, Payload, Report,
    Resolution, Restored, RunStatus, StepStatus,
};
pub use steprail_core::spec::step::KindName;
pub use steprail_store::sqlite::{Durability, Options, SqliteStore};
pub use steprail_store::{
    Account, AccountKind, Actor, AdminAction, AdminEvent, After, Approval, AttemptOutcome, Binding,
    ChainHead, Cursor, Definition, Delivery, DeliveryStatus, DueMessage, EventPage, Expected, Fired, Freeze,
    InvalidCursor, ListRuns, ListSteps, NameCursor, NewDelivery, NewNotification, Notification,
    NotificationKind, NotificationQuery, Overlap, Principal, Proposal, RawEvent, Reads, Relay, Remembered,
    Right, RowKind, RunCursor, RunId, RunRow, Schedule, ScheduledVersion, Session, Starter, StepCounts,
    StepCursor, StepFilter, StepPage, StepRow, StoreError, StoredAdminEvent, StoredEvent, TokenScope,
    UnknownCall, VersionPin, Visibility,
};
