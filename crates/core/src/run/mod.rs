//! A run as a pure state machine: what happened outside comes in, facts come out.
//!
//! ```text
//! Input + Plan + Run + World ──decide──▶ [Record]     (an Event, with the payload that it speaks of)
//! [Event] ──Run::apply──▶ Run                         (the same fold in deciding and in recovery)
//! ```
//!
//! [`decide`] gives no event for an input that is stale or repeated; that is no error. Values are asked for
//! through [`World`], so a run holds where it stands and nothing of what its steps gave.

mod apply;
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
mod input;
mod intervene;
mod lost;
mod missing;
mod parts;
mod path;
mod payload;
mod server_wait;
mod sleep;
mod state;
mod values;
mod wait;
mod workflow;
mod world;

pub use changes::{
    ApprovalOutcome, AttemptOutcome, Changes, GateChange, GateDecision, GateRequest, RunChange, StepChange,
    ValueChange,
};
pub use decide::decide;
pub use event::Event;
pub use failure::{Failure, FailureKind};
pub use input::{Edit, Input, Intervention, Resolution};
pub use lost::RESTARTED;
pub use parts::{
    InputRequest, InputResponse, Next, Parent, PauseReason, Report, Resolved, ScopeKey, Started, StepInfo,
    StepRef, TimerKind,
};
pub use payload::{Payload, is_deeper};
pub use state::{Live, Phase, Run, RunStatus, StepStatus};
pub use world::{Admission, Annotations, Child, Claim, Claimed, Record, World, WorldError};

/// Milliseconds since 1970.
pub type Millis = i64;
