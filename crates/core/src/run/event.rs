//! Facts about a run, in the past tense: the log that everything else follows from.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::parts::{Next, Parent, PauseReason, Resolved, Started, StepInfo, StepRef};
use super::state::RunStatus;
use super::{Failure, Millis};
use crate::plan::Hash;

/// Something that happened in a run. Payloads are stored beside the log; events carry their hashes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(tag = "type", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Event {
    /// The first event of every run.
    RunStarted {
        /// The definition's name.
        definition: Box<str>,
        /// Its version.
        version: u32,
        /// Its hash: what the run does is pinned by it.
        hash: Hash,
        /// The user whom the run acts as.
        by: Box<str>,
        /// The hash of the inputs.
        inputs: Hash,
        /// The step of another run that waits for this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<Parent>,
        /// The run that this one repeats.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rerun_of: Option<Box<str>>,
    },
    /// Nothing goes on by itself until somebody acts.
    RunPaused {
        /// Why.
        reason: PauseReason,
        /// Who paused it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<str>>,
    },
    /// The run goes on.
    RunResumed {
        /// Who resumed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<str>>,
    },
    /// The engine restarted, and the definition asks not to go on by itself.
    RunInterrupted {},
    /// The run failed, and the steps of `on_failure` begin.
    RunFailing {
        /// Why.
        error: Failure,
    },
    /// The end: everything was done.
    RunCompleted {
        /// The hash of the output.
        output: Hash,
    },
    /// The end: something failed for good.
    RunFailed {
        /// Why.
        error: Failure,
    },
    /// The end: somebody stopped it.
    RunCancelled {
        /// Why.
        reason: Box<str>,
        /// Who stopped it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<str>>,
    },
    /// A step may run, and waits for a place, a human or the end of a pause. May be its first event.
    StepReady {
        /// The step.
        step: StepRef,
        /// Where it stands.
        place: StepInfo,
    },
    /// A step began: a call is on its way, or a block was entered. May be its first event.
    StepStarted {
        /// The step.
        step: StepRef,
        /// Where it stands.
        place: StepInfo,
        /// What it does.
        what: Started,
        /// When its time is up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
    },
    /// A step gave its output.
    StepCompleted {
        /// The step.
        step: StepRef,
        /// The hash of the output.
        output: Hash,
        /// Where the output came from, if not from the step itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<Box<str>>,
    },
    /// A step failed for good.
    StepFailed {
        /// The step.
        step: StepRef,
        /// Why.
        error: Failure,
    },
    /// An attempt failed, and another one follows.
    RetryScheduled {
        /// The attempt that failed.
        step: StepRef,
        /// Why.
        error: Failure,
        /// When the next attempt begins.
        due: Millis,
    },
    /// A step was left out.
    StepSkipped {
        /// The step.
        step: StepRef,
        /// Why.
        reason: Box<str>,
    },
    /// A step was stopped, because something around it ended.
    StepCancelled {
        /// The step.
        step: StepRef,
        /// Whether a call was in flight: then its outcome is unknown.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_flight: bool,
    },
    /// The outcome of a call is unknown, and a human has to say what happened.
    StepUncertain {
        /// The step.
        step: StepRef,
        /// Why it is unknown.
        error: Failure,
    },
    /// A human said what happened.
    UncertaintyResolved {
        /// The step.
        step: StepRef,
        /// What.
        how: Resolved,
        /// Who.
        by: Box<str>,
    },
    /// The time of a call was up; it was told to stop.
    CallTimedOut {
        /// The step.
        step: StepRef,
        /// Until when its end is waited for.
        until: Millis,
    },
    /// A call did not stop when it was told to: what follows may run beside it.
    CallAbandoned {
        /// The step.
        step: StepRef,
    },
    /// A call told how far it is.
    StepProgressed {
        /// The step.
        step: StepRef,
        /// So much.
        progress: f64,
        /// Of so much.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<f64>,
        /// In words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Box<str>>,
    },
    /// A call goes on by itself at the tool's server, under a name.
    CallAccepted {
        /// The step.
        step: StepRef,
        /// The name.
        task: Box<str>,
    },
    /// The engine restarted, and asks for a call that goes on by itself instead of making it again.
    CallResumed {
        /// The step.
        step: StepRef,
        /// The tool.
        tool: Box<str>,
        /// The name that the call goes by.
        task: Box<str>,
    },
    /// A tool is not what it was when the definition was stored.
    ToolChanged {
        /// The step.
        step: StepRef,
        /// What is different.
        what: Box<str>,
    },
    /// A tool is asked whether a call with an unknown outcome took place.
    VerifyStarted {
        /// The step.
        step: StepRef,
        /// The tool.
        tool: Box<str>,
        /// The hash of its arguments.
        args: Hash,
        /// When its time is up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
        /// Whether a restart of the engine cut the call off.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restarted: bool,
    },
    /// A tool does not exist, and another one is asked to create it.
    ToolRequested {
        /// The step.
        step: StepRef,
        /// The tool that is asked.
        tool: Box<str>,
        /// The hash of its arguments.
        args: Hash,
        /// When its time is up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
    },
    /// A tool that did not exist was created, or may have been: the step is tried again.
    ToolCreated {
        /// The step.
        step: StepRef,
        /// Whether nobody knows what became of it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lost: bool,
    },
    /// A call answered after its step had ended.
    LateResult {
        /// The step.
        step: StepRef,
    },
    /// A step waits until another one with the same idempotency key has ended.
    KeyAwaited {
        /// The step.
        step: StepRef,
        /// Where it stands.
        place: StepInfo,
        /// What it waits for.
        key: Box<str>,
    },
    /// A call was not sent, because its server cannot take it now. The step waits. May be its first event.
    ServerAwaited {
        /// The step.
        step: StepRef,
        /// Where it stands.
        place: StepInfo,
        /// Why the call was not sent.
        error: Failure,
        /// When the call is tried again; without it, as soon as the server is available.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due: Option<Millis>,
        /// When the step stops waiting and fails.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
    },
    /// A transition or a `branch` was decided.
    BranchTaken {
        /// The step.
        step: StepRef,
        /// Where it leads: a step's id, or the number of the case.
        to: Next,
    },
    /// One item of a `foreach`, one branch of a `parallel` or the chosen block of a `branch` ended.
    BlockCompleted {
        /// The step that the block belongs to.
        step: StepRef,
        /// The number of the item or branch.
        index: u32,
        /// The number of the step execution that gave its result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<u32>,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
    },
    /// A human is asked.
    ApprovalRequested {
        /// The step.
        step: StepRef,
        /// What the decision is bound to.
        digest: Hash,
        /// The question.
        prompt: Box<str>,
        /// The tool that runs after it, for a step with `needs_human`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool: Option<Box<str>>,
        /// The hash of the tool's arguments.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        args: Option<Hash>,
        /// When the time to answer is up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
        /// When the next further notice is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        escalate: Option<Millis>,
        /// Whom to tell.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        notify: Vec<Box<str>>,
        /// The JSON Schema of the answer that a tool asks for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        form: Option<Value>,
        /// What the tool wants back with the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<Value>,
    },
    /// A human said yes.
    ApprovalGranted {
        /// The step.
        step: StepRef,
        /// Who.
        by: Box<str>,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Box<str>>,
        /// What a tool wanted to know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<Value>,
    },
    /// A human said no, or the time was up.
    ApprovalDenied {
        /// The step.
        step: StepRef,
        /// Who; nobody if the time was up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<str>>,
        /// Why.
        reason: Box<str>,
    },
    /// Nobody has answered yet, and others are told.
    ApprovalEscalated {
        /// The step.
        step: StepRef,
        /// How many notices there were before.
        level: u32,
        /// Whom to tell.
        notify: Vec<Box<str>>,
        /// When the next one is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        escalate: Option<Millis>,
    },
    /// An event from outside arrived and is kept until a step waits for it.
    SignalReceived {
        /// The event's name.
        event: Box<str>,
        /// What it carries.
        payload: Value,
    },
    /// A human changed the arguments of a step that has not run yet.
    ArgumentsEdited {
        /// The step's path.
        path: Box<str>,
        /// The arguments.
        args: Value,
        /// Who.
        by: Box<str>,
    },
    /// A human changed a value of the run.
    ValueSet {
        /// The step whose output is replaced; the inputs without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Box<str>>,
        /// The value.
        value: Value,
        /// Who.
        by: Box<str>,
    },
}

impl Event {
    /// The name of the event, as it is stored.
    pub fn word(&self) -> &'static str {
        self.into()
    }

    /// The names of the events that end a run.
    pub const ENDS: [&str; 3] = ["run_completed", "run_failed", "run_cancelled"];

    /// The step that it is about.
    pub fn step(&self) -> Option<&StepRef> {
        self.changes().step.map(|change| change.step)
    }

    /// Whether it is the last event of its run.
    pub fn ends_run(&self) -> bool {
        self.changes().run.status.is_some_and(RunStatus::is_terminal)
    }

    /// Whether it ends a step execution.
    pub fn ends_step(&self) -> bool {
        self.changes().step.is_some_and(|change| change.ends())
    }
}
