//! A run as a pure state machine: inputs come in, events come out.
//!
//! ```text
//! Input + Plan + Run + World ──decide──▶ [Record]     (an Event, with the payload that it refers to)
//! [Event] ──Run::apply──▶ Run                         (the same fold for decisions and for recovery)
//! ```
//!
//! [`decide`] returns no events for a stale or repeated input; that is not an error. Values are read
//! through [`World`], so a [`Run`] holds positions and no outputs of steps.
//!
//! A decision is a slice: it ends after a bounded number of events. The transitions that are left follow from the
//! events, so a run that is rebuilt from its log owes the same ones ([`Run::owes_continuation`]).

mod apply;
mod approval;
mod approve;
mod block;
mod call;
mod changes;
mod control;
mod decide;
mod event;
mod failure;
mod flow;
mod foreach;
mod gate_timers;
mod input;
mod intervene;
mod r#let;
mod lost;
mod missing;
mod owed;
mod parts;
mod path;
mod payload;
mod phase;
mod policy;
mod result;
mod server_wait;
mod sleep;
mod state;
mod subject;
mod timer;
mod values;
mod wait;
mod workflow;
mod world;

pub use approval::{
    ApprovalKind, Approver, Cover, GuardedCall, GuardedWorkflow, OpenGate, PolicyRule, Provenance, Starter,
    Subject,
};
pub use approve::DENIED;
pub use changes::{
    ApprovalOutcome, AttemptOutcome, Changes, GateChange, GateDecision, GateRequest, RunChange, StepChange,
    ValueChange,
};
pub use decide::decide;
pub use event::Event;
pub use failure::{Failure, FailureKind};
pub use input::{Actor, Decided, Edit, Input, Intervention, Resolution};
pub use lost::RESTARTED;
pub use parts::{
    Ending, InputRequest, InputResponse, Next, Parent, PauseReason, Report, Resolved, Restored, ScopeKey,
    Started, StepInfo, StepRef, TimerKind,
};
pub use payload::{Payload, is_deeper};
pub use phase::Phase;
pub use policy::{
    ApprovedBy, BUDGET_EXCEEDED, BudgetUse, JudgedCall, Judgement, POLICY_DENIED, PolicyUse, RATE_LIMITED,
};
pub use state::{Live, Run, RunStatus, StepStatus};
pub use world::{Admission, Annotations, Child, Claim, Claimed, Record, World, WorldError};

/// Milliseconds since the Unix epoch.
pub type Millis = i64;
