//! Inputs of the state machine: results, timers, decisions and requests from outside the run.

use serde_json::Value;

use super::approval::Provenance;
use super::parts::Report;
use super::{Failure, Millis, Payload, TimerKind};
use crate::plan::Hash;

/// Something that happened outside the run. A stale or repeated input causes no events.
#[derive(Debug, Clone)]
pub enum Input {
    /// The run was created, or its last decision reached the limit of events: it makes its next transitions.
    Continue,
    /// A call ended.
    CallEnded {
        /// Number of the execution.
        n: u32,
        /// Number of the attempt.
        attempt: u32,
        /// The output, or why the call failed.
        outcome: Result<Payload, Failure>,
    },
    /// A call in flight sent a report.
    Reported {
        /// Number of the execution.
        n: u32,
        /// Number of the attempt.
        attempt: u32,
        /// The report.
        report: Report,
    },
    /// A superseded call returned a result.
    AnsweredLate {
        /// Number of the execution.
        n: u32,
        /// Number of the attempt.
        attempt: u32,
        /// The result of the call.
        output: Payload,
    },
    /// A concurrency slot or a server became available. Ready steps start.
    Admitted,
    /// A durable timer fired.
    TimerFired {
        /// Number of the execution.
        n: u32,
        /// The kind of the timer.
        timer: TimerKind,
    },
    /// A user decided at a gate.
    Decided {
        /// Number of the execution.
        n: u32,
        /// The decision.
        decision: Box<Decided>,
    },
    /// A signal arrived for the run.
    Signalled {
        /// Name of the signal.
        event: Box<str>,
        /// The payload of the signal.
        payload: Value,
        /// Whether it is buffered until a step waits for it.
        keep: bool,
    },
    /// The child run of a `workflow` step ended.
    ChildEnded {
        /// Number of the execution.
        n: u32,
        /// Number of the attempt.
        attempt: u32,
        /// The output, or why the call failed.
        outcome: Result<Payload, Failure>,
    },
    /// The holder of an idempotency key ended.
    KeyFreed {
        /// Number of the execution that waits for the key.
        n: u32,
    },
    /// The run is cancelled.
    Cancel {
        /// The user who cancelled it; `None` if its parent or the engine did.
        by: Option<Box<str>>,
        /// The reason of the cancellation.
        reason: Box<str>,
    },
    /// A user pauses the run.
    Pause {
        /// The user who paused it.
        by: Box<str>,
        /// Whether an agent did, on behalf of the user.
        agent: bool,
    },
    /// A user resumes a paused or interrupted run.
    Resume {
        /// The user who resumed it.
        by: Box<str>,
        /// Paths of interrupted calls that are repeated without a decision of a human.
        force: Vec<Box<str>>,
    },
    /// The engine restarted, and the definition has `on_restart: interrupt`.
    Interrupt,
    /// The database was restored from a backup. Nothing starts before a user resumes the run.
    Restored {
        /// The incarnation of the database that the restore started.
        incarnation: u64,
        /// When the backup was made.
        backup_at: Millis,
    },
    /// A user decides about a call with an unknown outcome.
    Resolve {
        /// Number of the execution.
        n: u32,
        /// The decision.
        resolution: Resolution,
        /// The user who decided.
        by: Actor,
    },
    /// A user changes the run.
    Intervene {
        /// The change.
        intervention: Intervention,
        /// The user who made it.
        by: Actor,
    },
}

impl Input {
    /// The execution that the input is for.
    pub(super) fn execution(&self) -> Option<u32> {
        match self {
            Self::CallEnded { n, .. }
            | Self::Reported { n, .. }
            | Self::AnsweredLate { n, .. }
            | Self::TimerFired { n, .. }
            | Self::Decided { n, .. }
            | Self::ChildEnded { n, .. }
            | Self::KeyFreed { n }
            | Self::Resolve { n, .. } => Some(*n),
            Self::Continue
            | Self::Admitted
            | Self::Signalled { .. }
            | Self::Cancel { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Interrupt
            | Self::Restored { .. }
            | Self::Intervene { .. } => None,
        }
    }
}

/// A user who acts, and how.
#[derive(Debug, Clone)]
pub struct Actor {
    /// Id of the user.
    pub user: Box<str>,
    /// How the user acts.
    pub provenance: Option<Box<Provenance>>,
}

/// The decision of a user at a gate.
#[derive(Debug, Clone)]
pub struct Decided {
    /// Whether the user approved.
    pub approved: bool,
    /// The user who decided.
    pub by: Actor,
    /// The reason that the user gave.
    pub reason: Option<Box<str>>,
    /// Digest of the request that the user saw. A decision on a different digest is ignored.
    pub digest: Option<Hash>,
    /// The answer to an input request of a tool, or the values of the gate's form.
    pub answer: Option<Value>,
    /// Arguments that replace those of the request. The decision is about the call with these arguments.
    pub edited: Option<Value>,
}

/// The decision of a human about a call with an unknown outcome.
#[derive(Debug, Clone)]
pub enum Resolution {
    /// The call took place and returned this output.
    Happened(Payload),
    /// Repeat the call with the same idempotency key.
    Retry,
    /// Skip the step.
    Skip,
    /// Fail the step.
    Fail,
}

/// A change that a human makes to a run in progress.
#[derive(Debug, Clone)]
pub enum Intervention {
    /// Sets the arguments of a step that has not started.
    SetArguments {
        /// Path of the step.
        path: Box<str>,
        /// The new arguments.
        args: Value,
    },
    /// Replaces the output of a step, or the inputs of the run.
    SetValue(Edit),
    /// Skips a step that waits or runs.
    Skip {
        /// Path of the step.
        path: Box<str>,
    },
    /// Completes a step that waits or runs with a supplied result.
    SupplyResult {
        /// Path of the step.
        path: Box<str>,
        /// The result of the step.
        output: Payload,
    },
}

/// A value that a human sets.
#[derive(Debug, Clone)]
pub struct Edit {
    /// Id of the step whose output is replaced; `None` for the inputs of the run.
    pub id: Option<Box<str>>,
    /// The new value.
    pub value: Value,
}
