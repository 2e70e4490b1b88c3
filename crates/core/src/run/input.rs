//! What happens outside of a run and moves it on.

use serde_json::Value;

use super::parts::Report;
use super::{Failure, Payload, TimerKind};
use crate::plan::Hash;

/// Something that happened outside. A stale or repeated one changes nothing.
#[derive(Debug, Clone)]
pub enum Input {
    /// The run was created: its first steps may begin.
    Begin,
    /// A call ended.
    CallEnded {
        /// The execution.
        n: u32,
        /// The attempt.
        attempt: u32,
        /// How.
        outcome: Result<Payload, Failure>,
    },
    /// A call tells something before it ends.
    Reported {
        /// The execution.
        n: u32,
        /// The attempt.
        attempt: u32,
        /// What.
        report: Report,
    },
    /// A call that was given up answered after all.
    AnsweredLate {
        /// The execution.
        n: u32,
        /// The attempt.
        attempt: u32,
        /// What it gave.
        output: Payload,
    },
    /// There is a place for a call.
    Admitted,
    /// The time that an timer was set for has come.
    TimerFired {
        /// The execution.
        n: u32,
        /// Which of its timers.
        timer: TimerKind,
    },
    /// Somebody decided at a gate.
    Decided {
        /// The execution.
        n: u32,
        /// Whether it was a yes.
        approved: bool,
        /// Who.
        by: Box<str>,
        /// Why.
        reason: Option<Box<str>>,
        /// What the decision is bound to, as the decider saw it.
        digest: Option<Hash>,
        /// What a tool wanted to know.
        answer: Option<Value>,
    },
    /// An event arrived for a run.
    Signalled {
        /// The event's name.
        event: Box<str>,
        /// What it carries.
        payload: Value,
        /// Whether it is kept until a step waits for it.
        keep: bool,
    },
    /// The run that a step waits for ended.
    ChildEnded {
        /// The execution.
        n: u32,
        /// The attempt.
        attempt: u32,
        /// How.
        outcome: Result<Payload, Failure>,
    },
    /// The step that held an idempotency key ended.
    KeyFreed {
        /// The execution that waits for it.
        n: u32,
    },
    /// Somebody stops the run.
    Cancel {
        /// Who.
        by: Option<Box<str>>,
        /// Why.
        reason: Box<str>,
    },
    /// Somebody pauses the run.
    Pause {
        /// Who.
        by: Box<str>,
    },
    /// Somebody lets a paused or interrupted run go on.
    Resume {
        /// Who.
        by: Box<str>,
        /// Calls with unknown outcomes that are made again without asking, by path.
        force: Vec<Box<str>>,
    },
    /// The engine restarted, and the run is not to go on by itself.
    Interrupt,
    /// Somebody says what became of a call.
    Resolve {
        /// The execution.
        n: u32,
        /// What.
        resolution: Resolution,
        /// Who.
        by: Box<str>,
    },
    /// Somebody changes the run.
    Intervene {
        /// How.
        intervention: Intervention,
        /// Who.
        by: Box<str>,
    },
}

/// What a human says about a call with an unknown outcome.
#[derive(Debug, Clone)]
pub enum Resolution {
    /// It took place and gave this.
    Happened(Payload),
    /// Call again, with the same idempotency key.
    Retry,
    /// Go on without it.
    Skip,
    /// It failed.
    Fail,
}

/// How a human changes a run.
#[derive(Debug, Clone)]
pub enum Intervention {
    /// Sets the arguments of a step that has not run yet, by its path.
    SetArguments {
        /// The step's path.
        path: Box<str>,
        /// The arguments.
        args: Value,
    },
    /// Replaces what a step gave, or the run's inputs.
    SetValue(Edit),
    /// Leaves out a step that is waiting or running.
    Skip {
        /// The step's path.
        path: Box<str>,
    },
    /// Gives the result of a step that is waiting or running.
    SupplyResult {
        /// The step's path.
        path: Box<str>,
        /// The result.
        output: Payload,
    },
}

/// A value that a human sets.
#[derive(Debug, Clone)]
pub struct Edit {
    /// The step whose output is replaced; the inputs without one.
    pub id: Option<Box<str>>,
    /// The value.
    pub value: Value,
}
