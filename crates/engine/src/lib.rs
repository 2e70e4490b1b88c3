//! Durable workflows of tool calls, as a library.
//!
//! ```text
//! Engine (a handle) ──Request──▶ one thread: Kernel ──decide, append──▶ Store ──commit──▶ effects
//!        ▲                              ▲                                                  │
//!        └────────── answers ───────────┼────────── the end of a call ◀── ToolCaller ◀─────┘
//! ```
//!
//! One thread decides and commits; whatever arrives while it commits goes into the next commit together.
//! Nothing leaves before it is durable: no call, no answer, no notice.

// No panic is reachable from input.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod builder;
mod calls;
mod clock;
mod cron;
mod driver;
mod engine;
mod error;
mod feed;
mod form;
mod intervention;
pub mod kernel;
mod limits;
mod meters;
mod ports;
mod reading;
mod start;
mod trace;
mod user;
mod waiting;

pub use access::{Access, Grants};
pub use builder::Builder;
pub use clock::{Clock, ManualClock, SystemClock};
pub use engine::{Engine, Resume, RunHandle, RunView};
pub use error::Error;
pub use feed::Subscription;
pub use intervention::{InterventionAction, InterventionRequest};
pub use limits::Limits;
pub use ports::{
    Annotations, ArtefactStore, Authorizer, BoxFuture, CallSite, Capacity, Continuation, Notice, Notifier,
    OnToolChange, Outcome, Reports, ToolCall, ToolCaller, Tools,
};
pub use start::{Start, Workflow};
pub use trace::{RunTrace, TraceParent};
pub use user::User;
pub use waiting::{NextAction, WaitCause, WaitingFor, next_action};

pub use steprail_core::run::{
    Edit, Event, Failure, FailureKind, InputRequest, InputResponse, Intervention, Payload, Report,
    Resolution, RunStatus, StepStatus,
};
pub use steprail_core::spec::step::KindName;
pub use steprail_store::sqlite::{Durability, Options, SqliteStore};
pub use steprail_store::{
    Account, AccountKind, Approval, Definition, EventPage, Fired, ListRuns, Overlap, Principal, RawEvent,
    Reads, Relay, Right, RunId, RunKey, RunRow, Schedule, Session, StepRow, StoreError, StoredEvent,
    TokenScope, UnknownCall,
};
