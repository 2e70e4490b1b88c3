//! Events of a run. All other state is derived from them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{Provenance, Subject};
use super::changes::ValueChange;
use super::parts::{Ending, Next, Parent, PauseReason, Resolved, Restored, Started, StepInfo, StepRef};
use super::state::RunStatus;
use super::{Failure, Millis};
use crate::plan::Hash;

/// A recorded fact about a run. Payloads are stored outside the log; events contain their hashes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(tag = "type", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Event {
    /// The first event of every run.
    RunStarted {
        /// Name of the definition.
        definition: Box<str>,
        /// Version of the definition.
        version: u32,
        /// Hash of the definition, which pins what the run executes.
        hash: Hash,
        /// The user that the run acts as.
        by: Box<str>,
        /// Hash of the inputs.
        inputs: Hash,
        /// The step of another run that waits for this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<Parent>,
        /// The run that this one repeats.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rerun_of: Option<Box<str>>,
        /// Hash of the principal, the reuse of results and the request key. Logs of earlier formats have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        facts: Option<Hash>,
    },
    /// The run was paused by a user, or waits only for humans.
    RunPaused {
        /// The reason of the pause.
        reason: PauseReason,
        /// The user who paused it; `None` if it waits for humans.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<str>>,
    },
    /// The run continues after a pause or an interruption.
    RunResumed {
        /// The user who resumed it; `None` if it no longer waits for humans.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<str>>,
    },
    /// The engine restarted, and the definition has `on_restart: interrupt`; or the database was restored.
    RunInterrupted {
        /// The restore; `None` if only the engine restarted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restored: Option<Box<Restored>>,
    },
    /// A step failed the run, and the steps of `on_failure` start.
    RunFailing {
        /// The failure of the run.
        error: Failure,
    },
    /// The run ended successfully.
    RunCompleted {
        /// Hash of the output.
        output: Hash,
    },
    /// The run ended with a failure.
    RunFailed {
        /// The failure of the run.
        error: Failure,
    },
    /// The run is being cancelled, and more steps are left than one decision cancels. No further step starts, and
    /// `run_cancelled` follows.
    RunCancelling {
        /// The reason of the cancellation.
        reason: Box<str>,
        /// The user who cancelled it; `None` if its parent or a timeout did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<str>>,
    },
    /// The run was cancelled.
    RunCancelled {
        /// The reason of the cancellation.
        reason: Box<str>,
        /// The user who cancelled it; `None` if its parent or a timeout did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<str>>,
    },
    /// A step can start, and waits for a slot, an approval or the end of a pause. May be its first event.
    StepReady {
        /// The attempt.
        step: StepRef,
        /// Position of the execution in the definition.
        place: StepInfo,
    },
    /// A step started: its call is sent, its wait begins or its blocks are entered. May be its first event.
    StepStarted {
        /// The attempt.
        step: StepRef,
        /// Position of the execution in the definition.
        place: StepInfo,
        /// What the step does.
        what: Started,
        /// Deadline of the attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
    },
    /// A step ended successfully.
    StepCompleted {
        /// The attempt.
        step: StepRef,
        /// Hash of the output.
        output: Hash,
        /// Source of the output, if it is not the result of the attempt, such as `verify` or a user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<Box<str>>,
    },
    /// A step failed, and no further attempt follows.
    StepFailed {
        /// The attempt.
        step: StepRef,
        /// The failure of the last attempt.
        error: Failure,
    },
    /// An attempt failed, and another one follows.
    RetryScheduled {
        /// The attempt that failed.
        step: StepRef,
        /// The failure of the attempt.
        error: Failure,
        /// When the next attempt starts.
        due: Millis,
    },
    /// A step was skipped.
    StepSkipped {
        /// The attempt.
        step: StepRef,
        /// The reason for skipping it.
        reason: Box<str>,
    },
    /// A step was cancelled, because its block or run ended.
    StepCancelled {
        /// The attempt.
        step: StepRef,
        /// Whether a call was in flight, so that its outcome is unknown.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_flight: bool,
    },
    /// The outcome of a call is unknown, and a human has to decide.
    StepUncertain {
        /// The attempt.
        step: StepRef,
        /// Why the outcome is unknown.
        error: Failure,
    },
    /// A human decided about a call with an unknown outcome.
    UncertaintyResolved {
        /// The attempt.
        step: StepRef,
        /// The decision.
        how: Resolved,
        /// The user who decided.
        by: Box<str>,
        /// How the decision was made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provenance: Option<Box<Provenance>>,
    },
    /// A call exceeded its deadline and was cancelled.
    CallTimedOut {
        /// The attempt.
        step: StepRef,
        /// End of the grace period, in which a result still counts.
        until: Millis,
    },
    /// A cancelled call did not end within the grace period. It may still run while the run continues.
    CallAbandoned {
        /// The attempt.
        step: StepRef,
    },
    /// A call sent a progress notification.
    StepProgressed {
        /// The attempt.
        step: StepRef,
        /// The progress so far, in units of the tool.
        progress: f64,
        /// The total, if the tool knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<f64>,
        /// A description of the progress.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Box<str>>,
    },
    /// The server continues a call as a task.
    CallAccepted {
        /// The attempt.
        step: StepRef,
        /// Id of the task at the server.
        task: Box<str>,
    },
    /// The engine restarted and polls the task of a call instead of repeating the call.
    CallResumed {
        /// The attempt.
        step: StepRef,
        /// Full name of the tool.
        tool: Box<str>,
        /// Id of the task at the server.
        task: Box<str>,
    },
    /// A tool changed after the definition was stored.
    ToolChanged {
        /// The attempt.
        step: StepRef,
        /// A description of the difference.
        what: Box<str>,
    },
    /// A probe (`verify`) was started to find out whether a call with an unknown outcome took place.
    VerifyStarted {
        /// The attempt.
        step: StepRef,
        /// Full name of the tool that is called as the probe.
        tool: Box<str>,
        /// Hash of the arguments of the probe.
        args: Hash,
        /// Deadline of the probe.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
        /// Whether a restart of the engine interrupted the call.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restarted: bool,
    },
    /// A tool does not exist, and the provider was called to create it.
    ToolRequested {
        /// The attempt.
        step: StepRef,
        /// Full name of the provider's tool.
        tool: Box<str>,
        /// Hash of the arguments of that call.
        args: Hash,
        /// Deadline of that call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
    },
    /// A missing tool was created, or may have been. The step starts again.
    ToolCreated {
        /// The attempt.
        step: StepRef,
        /// Whether the outcome of the provider's call is unknown.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lost: bool,
    },
    /// A superseded call returned a result, which was ignored.
    LateResult {
        /// The attempt.
        step: StepRef,
    },
    /// A step waits until another step releases its idempotency key.
    KeyAwaited {
        /// The attempt.
        step: StepRef,
        /// Position of the execution in the definition.
        place: StepInfo,
        /// Name of the claim that it waits for.
        key: Box<str>,
    },
    /// A call was not sent, or its server rejected it before execution. The step waits. May be its first event.
    ServerAwaited {
        /// The attempt.
        step: StepRef,
        /// Position of the execution in the definition.
        place: StepInfo,
        /// Why the call was not sent.
        error: Failure,
        /// When the call is retried; `None` to retry it when the server becomes available.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due: Option<Millis>,
        /// When the step stops waiting and fails.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
    },
    /// The target of a conditional transition or of a `branch` was chosen.
    BranchTaken {
        /// The attempt.
        step: StepRef,
        /// The target: a step, a case or the end of the block.
        to: Next,
    },
    /// One item of a `foreach`, one branch of a `parallel` or the chosen block of a `branch` ended.
    BlockCompleted {
        /// The attempt that owns the block.
        step: StepRef,
        /// Number of the item or branch.
        index: u32,
        /// Number of the execution whose output is the result of the block.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<u32>,
        /// The failure of the block.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
    },
    /// A step ends early, and more steps in its blocks are left than one decision cancels. None of them starts any
    /// more, and the end of the step follows.
    StepEnding {
        /// The attempt.
        step: StepRef,
        /// How it ends.
        how: Ending,
    },
    /// An approval or an input was requested from a human.
    ApprovalRequested {
        /// The attempt.
        step: StepRef,
        /// Hash that binds the decision to what was requested.
        digest: Hash,
        /// The prompt to show.
        prompt: Box<str>,
        /// Full name of the tool that is called if approved, for a step with `needs_human`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool: Option<Box<str>>,
        /// Hash of the arguments of that call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        args: Option<Hash>,
        /// When the request expires.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
        /// When the next escalation is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        escalate: Option<Millis>,
        /// Number of escalations of the request that this one replaces.
        #[serde(default, skip_serializing_if = "is_zero")]
        level: u32,
        /// When the next reminder is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remind: Option<Millis>,
        /// Number of reminders of the request that this one replaces.
        #[serde(default, skip_serializing_if = "is_zero")]
        reminders: u32,
        /// The recipients of the notification.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        notify: Vec<Box<str>>,
        /// JSON Schema of the answer, for an input request of a tool.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        form: Option<Value>,
        /// Opaque state of the input request, which is sent back with the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<Value>,
        /// What the approval covers and who may decide. Absent in logs of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<Box<Subject>>,
        /// Whether the request replaces one that became stale.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        renewed: bool,
    },
    /// A human approved a request that needs further approvals.
    ApprovalSigned {
        /// The attempt.
        step: StepRef,
        /// The user who approved.
        by: Box<str>,
        /// The reason that the user gave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Box<str>>,
        /// The digest of the request.
        digest: Hash,
        /// How the decision was made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provenance: Option<Box<Provenance>>,
        /// Number of approvals that are still needed.
        remaining: u32,
    },
    /// A human approved a request.
    ApprovalGranted {
        /// The attempt.
        step: StepRef,
        /// The user who approved.
        by: Box<str>,
        /// The reason that the user gave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Box<str>>,
        /// The answer to an input request of a tool, or the values of the form of an `approve` step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<Value>,
        /// The digest of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Hash>,
        /// How the decision was made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provenance: Option<Box<Provenance>>,
    },
    /// A human denied a request, or it expired.
    ApprovalDenied {
        /// The attempt.
        step: StepRef,
        /// The user who denied it; `None` if it expired.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<str>>,
        /// The reason of the denial.
        reason: Box<str>,
        /// The digest of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Hash>,
        /// How the decision was made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provenance: Option<Box<Provenance>>,
    },
    /// An approval is overdue, and further recipients are notified.
    ApprovalEscalated {
        /// The attempt.
        step: StepRef,
        /// Number of escalations before this one.
        level: u32,
        /// The recipients of the notification.
        notify: Vec<Box<str>>,
        /// When the next escalation is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        escalate: Option<Millis>,
        /// When the next reminder is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remind: Option<Millis>,
    },
    /// An approval still waits, and those who were asked are reminded.
    ApprovalReminded {
        /// The attempt.
        step: StepRef,
        /// Number of reminders, with this one.
        count: u32,
        /// Number of escalations before it. Their recipients are reminded as well.
        #[serde(default, skip_serializing_if = "is_zero")]
        level: u32,
        /// When the next reminder is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remind: Option<Millis>,
        /// When the next escalation is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        escalate: Option<Millis>,
    },
    /// A signal arrived and is buffered until a step waits for it.
    SignalReceived {
        /// Name of the signal.
        event: Box<str>,
        /// The payload of the signal.
        payload: Value,
    },
    /// A human changed the arguments of a step that has not started.
    ArgumentsEdited {
        /// Path of the execution.
        path: Box<str>,
        /// The new arguments.
        args: Value,
        /// The user who changed them.
        by: Box<str>,
        /// How the decision was made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provenance: Option<Box<Provenance>>,
    },
    /// A human replaced a value of the run.
    ValueSet {
        /// Id of the step whose output is replaced; `None` for the inputs of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Box<str>>,
        /// The new value.
        value: Value,
        /// The user who replaced it.
        by: Box<str>,
        /// How the decision was made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provenance: Option<Box<Provenance>>,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(level: &u32) -> bool {
    *level == 0
}

impl Event {
    /// The name of the event in the log.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// The names of the events that end a run.
    pub const ENDS: [&str; 3] = ["run_completed", "run_failed", "run_cancelled"];

    /// The attempt that the event is about.
    pub fn step(&self) -> Option<&StepRef> {
        self.all_changes().step.map(|change| change.step)
    }

    /// Whether the event ends its run.
    pub fn ends_run(&self) -> bool {
        self.all_changes().run.status.is_some_and(RunStatus::is_terminal)
    }

    /// Whether the event ends a step execution.
    pub fn ends_step(&self) -> bool {
        self.all_changes().step.is_some_and(|change| change.ends())
    }

    /// The value that the event adds, by its hash.
    pub fn value(&self) -> Option<ValueChange> {
        self.all_changes().value
    }
}
